package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const leasesPath = "/apis/coordination.k8s.io/v1/leases"

// testServer returns an API server with two nodes on which no pod becomes Ready, and a
// client.
func testServer(t *testing.T) (*kubetest.Server, *kube.Client) {
	t.Helper()
	s := kubetest.New(t)
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2"} {
		s.Put("/api/v1/nodes", &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("58")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Addresses:   []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			},
		})
	}
	return s, client
}

func testOptions(namespace string) connectivity.Options {
	return connectivity.Options{Namespace: namespace, MTU: 9001, SetupTimeout: time.Minute, CaseTimeout: time.Second, Concurrency: 4}
}

// untilPods waits until there are more than two pods.
func untilPods(ctx context.Context, s *kubetest.Server) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(s.Keys(podsPath)) < 3 && ctx.Err() == nil {
		<-tick.C
	}
}

// putNamespace creates a namespace and returns its UID.
func putNamespace(s *kubetest.Server, name, part string) types.UID {
	return types.UID(s.Put(namespacesPath, &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{partOfLabel: part}},
	}))
}

// putLease creates the lease of an earlier run; an empty holder is a released lease.
func putLease(s *kubetest.Server, namespace, holder string) {
	s.Put(leasesPath, &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claimLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	})
}

func putPod(s *kubetest.Server, namespace, name string) {
	s.Put(podsPath, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
}

// withExpiry returns a cluster with leases that are renewed often and expire after expiry.
func withExpiry(c *kube.Client, expiry time.Duration) *testCluster {
	t := newTestCluster(c, "img")
	t.claim.lease.renewEvery, t.claim.lease.expiry = 10*time.Millisecond, expiry
	return t
}

func TestASecondTestIsRefusedNamesTheFirstAndDoesNotDisturbIt(t *testing.T) {
	for _, second := range []string{"trunkline-test", "another"} {
		t.Run(second, func(t *testing.T) {
			t.Parallel()
			s, client := testServer(t)
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var first sync.WaitGroup
			var firstErr error
			first.Go(func() {
				_, firstErr = connectivity.Run(ctx, NewTestCluster(client, "img"), testOptions("trunkline-test"), &TestProgress{W: t.Output()})
			})
			untilPods(ctx, s)
			var there corev1.Namespace
			s.Get(namespacesPath, "trunkline-test", &there)
			short, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			r, err := connectivity.Run(short, NewTestCluster(client, "img"), testOptions(second), &TestProgress{W: t.Output()})
			for _, want := range []string{"namespace trunkline-test", " process ", "kubectl delete namespace trunkline-test"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q in it", err, want)
				}
			}
			if short.Err() != nil || r.Succeeded() || r.Aborted == 0 {
				t.Errorf("refused at once: %v; succeeded %v, %d aborted", short.Err() == nil, r.Succeeded(), r.Aborted)
			}
			var still corev1.Namespace
			if len(s.Keys(podsPath)) < 3 || !s.Get(namespacesPath, "trunkline-test", &still) || still.UID != there.UID {
				t.Errorf("the first run has pods %v and namespaces %v", s.Keys(podsPath), s.Keys(namespacesPath))
			}
			stop()
			first.Wait()
			if left := append(s.Keys(podsPath), s.Keys(namespacesPath)...); !errors.Is(firstErr, context.Canceled) || len(left) > 0 {
				t.Errorf("the first ended with %v; %v are left", firstErr, left)
			}
		})
	}
}

func TestTheNamespaceOfAnEarlierRunIsRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		namespace string
		lease     bool
		holder    string
		expiry    time.Duration
	}{
		"that crashed":                       {"trunkline-test", true, "process 1 on elsewhere", 300 * time.Millisecond},
		"that crashed before it had a lease": {"trunkline-test", false, "", 300 * time.Millisecond},
		"that kept its namespace":            {"trunkline-test", true, "", time.Hour}, // released: no wait
		"that crashed in another namespace":  {"another", true, "process 1 on elsewhere", 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := testServer(t)
			old := putNamespace(s, c.namespace, testPart)
			putPod(s, c.namespace, "left")
			if c.lease {
				putLease(s, c.namespace, c.holder)
			}
			run := withExpiry(client, c.expiry)
			claimed, err := run.Claim(t.Context(), "trunkline-test", func(what string) { t.Log(what) })
			if !claimed || err != nil {
				t.Fatalf("claimed %v, %v", claimed, err)
			}
			var ns corev1.Namespace
			if !s.Get(namespacesPath, "trunkline-test", &ns) || ns.UID == old || len(s.Keys(namespacesPath)) != 1 {
				t.Errorf("namespaces %v, that of the run is %s, the old one was %s", s.Keys(namespacesPath), ns.UID, old)
			}
			if pods := s.Keys(podsPath); len(pods) > 0 {
				t.Errorf("pods %v are left", pods)
			}
			if lease, err := run.claim.lease.read(t.Context(), "trunkline-test"); err != nil || !run.claim.lease.holds(lease) {
				t.Errorf("the lease is %v, %v", lease, err)
			}
		})
	}
}

func TestAKeptNamespaceOfAnotherNameIsNotRemoved(t *testing.T) {
	s, client := testServer(t)
	putNamespace(s, "kept", testPart)
	putLease(s, "kept", "")
	if claimed, err := withExpiry(client, time.Hour).Claim(t.Context(), "trunkline-test", func(string) {}); !claimed || err != nil {
		t.Fatalf("claimed %v, %v", claimed, err)
	}
	if got := s.Keys(namespacesPath); len(got) != 2 {
		t.Errorf("there are namespaces %v", got)
	}
}

func TestANamespaceThatNoTestCreatedIsNotChanged(t *testing.T) {
	s, client := testServer(t)
	putNamespace(s, "trunkline-test", "foreign")
	putPod(s, "trunkline-test", "foreign")
	run := withExpiry(client, time.Millisecond)
	claimed, err := run.Claim(t.Context(), "trunkline-test", func(string) {})
	if claimed || err == nil || !strings.Contains(err.Error(), "was not created by this test: choose another one with --namespace") {
		t.Errorf("claimed %v, %v", claimed, err)
	}
	if len(s.Keys(podsPath)) != 1 || len(s.Keys(namespacesPath)) != 1 || len(s.Keys(leasesPath)) > 0 {
		t.Errorf("there are pods %v, namespaces %v, leases %v", s.Keys(podsPath), s.Keys(namespacesPath), s.Keys(leasesPath))
	}
}

// In a bubble, in which no renewal is late.
func TestOneOfSeveralRunsClaimsALeftoverNamespace(t *testing.T) {
	s, _ := testServer(t)
	synctest.Test(t, func(t *testing.T) {
		client, err := kube.FromREST(kubetest.InProcess(s))
		if err != nil {
			t.Fatal(err)
		}
		putNamespace(s, "trunkline-test", testPart)
		putLease(s, "trunkline-test", "process 1 on elsewhere")
		holding, release := context.WithCancel(t.Context())
		var claims, holds sync.WaitGroup
		var mu sync.Mutex
		var won int
		for i := range 4 {
			claims.Go(func() {
				run := withExpiry(client, 4*time.Second)
				run.claim.lease.holder = fmt.Sprintf("process %d", i+2) // they start at one instant, in one process
				claimed, err := run.Claim(t.Context(), "trunkline-test", func(string) {})
				switch {
				case claimed && err == nil:
					mu.Lock()
					won++
					mu.Unlock()
					holds.Go(func() {
						if err := run.Hold(holding, "trunkline-test"); err != nil {
							t.Errorf("the holder lost the namespace: %v", err)
						}
					})
				case claimed || !errors.Is(err, connectivity.ErrBusy):
					t.Errorf("claimed %v, %v", claimed, err)
				}
			})
		}
		claims.Wait()
		release()
		holds.Wait()
		if won != 1 {
			t.Errorf("%d runs claimed the namespace", won)
		}
		if lease, err := newRunLease(client).read(t.Context(), "trunkline-test"); err != nil || lease == nil || holderOf(lease) != "" {
			t.Errorf("after the run the lease is %v, %v; want it released", lease, err)
		}
	})
}

// A renewal that is interrupted may change the lease while it is released.
func TestALeaseIsReleasedDespiteALateRenewal(t *testing.T) {
	s, _ := testServer(t)
	cfg, releasing := s.REST(), false
	renew := sync.OnceFunc(func() {
		var lease coordinationv1.Lease
		if !s.Get(leasesPath, "trunkline-test/connectivity-test", &lease) {
			t.Error("there is no lease")
		}
		lease.APIVersion, lease.Kind = "coordination.k8s.io/v1", "Lease"
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		s.Put(leasesPath, &lease)
	})
	cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if releasing && r.Method == http.MethodPut {
				renew()
			}
			return next.RoundTrip(r)
		})
	}
	client, err := kube.FromREST(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run := NewTestCluster(client, "img")
	if claimed, err := run.Claim(t.Context(), "trunkline-test", func(string) {}); !claimed || err != nil {
		t.Fatal(claimed, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	releasing = true
	if err := run.Hold(ended, "trunkline-test"); err != nil {
		t.Error(err)
	}
	if lease, err := newRunLease(client).read(t.Context(), "trunkline-test"); err != nil || lease == nil || holderOf(lease) != "" {
		t.Errorf("after the run the lease is %v, %v; want it released", lease, err)
	}
}

// A run that was suspended longer than its lease must not disturb its successor.
func TestARunThatLostItsNamespaceStopsAndDoesNotRemoveItsSuccessors(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(s *kubetest.Server)
		want string
	}{
		"to another run": {func(s *kubetest.Server) {
			s.Delete(namespacesPath, "trunkline-test")
			putNamespace(s, "trunkline-test", testPart)
			putLease(s, "trunkline-test", "process 2 on elsewhere")
			putPod(s, "trunkline-test", "of-the-successor")
		}, "was claimed by process 2 on elsewhere"},
		// As by kubectl delete namespace: the pods are deleted seconds later.
		"to a deletion": {func(s *kubetest.Server) {
			s.Put(namespacesPath, &corev1.Namespace{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
				ObjectMeta: metav1.ObjectMeta{Name: "trunkline-test", DeletionTimestamp: &metav1.Time{Time: now()}},
			})
		}, "is being deleted by another client"},
		"to a deletion of its lease": {func(s *kubetest.Server) {
			s.Delete(leasesPath, "trunkline-test/"+claimLease)
		}, "the lease of namespace trunkline-test was deleted by another client"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := testServer(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			lost := make(chan struct{})
			go func() {
				defer close(lost)
				untilPods(ctx, s)
				c.lose(s)
			}()
			r, err := connectivity.Run(ctx, withExpiry(client, time.Minute), testOptions("trunkline-test"), &TestProgress{W: t.Output()})
			<-lost
			if !errors.Is(err, connectivity.ErrTaken) || !strings.Contains(err.Error(), c.want) || r.Succeeded() || r.Failed > 0 {
				t.Errorf("%v; succeeded %v, %d failed; want %q", err, r.Succeeded(), r.Failed, c.want)
			}
			if taken := strings.Contains(c.want, "claimed by"); taken != (len(s.Keys(namespacesPath)) == 1) || taken == (len(s.Keys(podsPath)) == 0) {
				t.Errorf("there are namespaces %v and pods %v", s.Keys(namespacesPath), s.Keys(podsPath))
			}
		})
	}
}
