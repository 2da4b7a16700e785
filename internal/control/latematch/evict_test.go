package latematch_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/control/latematch"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	podsAt     = "/api/v1/pods"
	nodesAt    = "/api/v1/nodes"
	policiesAt = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	brakesAt   = "/apis/trunkline.dev/v1alpha1/brakes"
)

// world is an API server with a node that has branches, a policy for pods of the app web, and an
// evictor. It records events of pods by reason.
type world struct {
	*kubetest.Server
	t      *testing.T
	mu     sync.Mutex
	events []string
}

func (w *world) PodWarning(ref kube.PodRef, _, reason, message string) {
	w.PodNormal(ref, "", reason, message)
}

func (w *world) PodNormal(ref kube.PodRef, _, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, ref.Name+" "+reason+" "+message)
}

func inWorld(t *testing.T, dryRun bool, f func(w *world)) {
	t.Helper()
	server := kubetest.New(t)
	synctest.Test(t, func(t *testing.T) {
		w := &world{Server: server, t: t}
		w.node(3)
		w.policy(metav1.ConditionTrue)
		client, err := kube.FromREST(kubetest.InProcess(server))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var ran sync.WaitGroup
		e := latematch.New(latematch.Options{Client: client, Events: w, Excluded: []string{"kube-system"}, DryRun: dryRun, Log: slog.New(slog.DiscardHandler)})
		ran.Go(func() { e.Run(ctx) })
		defer func() { stop(); ran.Wait() }()
		f(w)
	})
}

func (w *world) node(branches int) {
	w.Put(nodesAt, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{vpc.ResourcePodENI: *resource.NewQuantity(int64(branches), resource.DecimalSI)}},
	})
}

func (w *world) policy(valid metav1.ConditionStatus) {
	for _, namespace := range []string{"shop", "kube-system"} {
		w.Put(policiesAt, &v1beta1.SecurityGroupPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion().String(), Kind: v1beta1.KindSecurityGroupPolicy},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
			Spec:       v1beta1.SecurityGroupPolicySpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, SecurityGroups: v1beta1.GroupIDs{Groups: []string{"sg-0000000a"}}},
			Status:     v1beta1.SecurityGroupPolicyStatus{Conditions: []metav1.Condition{{Type: v1beta1.ConditionValid, Status: valid, Reason: "UnknownGroup", Message: "no sg-0000000a"}}},
		})
	}
}

// pod puts a running pod of the ReplicaSet web that a policy selects, without a branch.
func (w *world) pod(name string, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.Now(),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs-web", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range change {
		f(p)
	}
	w.Put(podsAt, p)
}

func ownedBy(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = name, types.UID("rs-"+name) }
}

func requests(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
}

func pending(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }

func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// exist fails the test unless these pods exist, and no others.
func (w *world) exist(names ...string) {
	w.t.Helper()
	var want []string
	for _, n := range names {
		if !strings.Contains(n, "/") {
			n = "shop/" + n
		}
		want = append(want, n)
	}
	slices.Sort(want)
	got := w.Keys(podsAt)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("pods %v, want %v; events %q", got, want, w.events)
	}
}

// says fails the test unless exactly one event of a pod has the reason and the part.
func (w *world) says(pod, reason, part string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if strings.HasPrefix(e, pod+" "+reason+" ") && strings.Contains(e, part) {
			n++
		}
	}
	if n != 1 {
		w.t.Errorf("%d events of %s with %s, %q, want 1: %q", n, pod, reason, part, w.events)
	}
}

// evictions is how often the API server was asked for one.
func (w *world) evictions() (n int) {
	for _, r := range w.Requests() {
		if strings.HasSuffix(r, "/eviction") {
			n++
		}
	}
	return n
}

func TestAPodThatWasWiredBeforeItsPolicyIsEvictedAfterItHasSettled(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.pod("late")
		w.pod("other", func(p *corev1.Pod) { p.Labels = nil })
		w.pod("branch", requests)
		w.pod("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		w.pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
		w.pod("gone", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		elapse(25 * time.Second)
		w.exist("late", "other", "branch", "done", "host", "gone")
		elapse(10 * time.Second)
		w.exist("other", "branch", "done", "host", "gone")
		w.says("late", latematch.EventEvicted, "selected by web: sg-0000000a. ReplicaSet web creates its next one")
		w.pod("other", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) }) // its labels changed
		elapse(5 * time.Minute)
		w.exist("branch", "done", "host", "gone")
	})
}

// A pod that was created a moment after its policy is admitted without a request, if the policy was not
// compiled yet. Its node refuses it for as long as it exists.
func TestAPodThatItsNodeRefusesIsReplaced(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.pod("refused", pending)
		w.pod("waits", requests, pending, ownedBy("other"))
		w.pod("unscheduled", pending, ownedBy("third"), func(p *corev1.Pod) { p.Spec.NodeName = "" })
		elapse(35 * time.Second)
		w.exist("waits", "unscheduled")
		w.says("refused", latematch.EventEvicted, "is refused by its node, because it requests no branch")
		elapse(time.Hour)
		w.exist("waits", "unscheduled")
		w.pod("alone", pending, func(p *corev1.Pod) { p.OwnerReferences = nil })
		elapse(time.Minute)
		w.exist("waits", "unscheduled", "alone")
		w.says("alone", latematch.EventNotEvicted, "alone is refused by its node, because it requests no branch, although it is selected by web: sg-0000000a. It is not evicted: no controller owns it")
	})
}

func TestAPodThatWouldNotComeBackWithABranchStays(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.pod("alone", func(p *corev1.Pod) { p.OwnerReferences = nil })
		w.pod("static", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Node" })
		w.pod("dns", func(p *corev1.Pod) { p.Namespace = "kube-system" })
		elapse(time.Hour)
		w.exist("alone", "static", "kube-system/dns")
		w.says("alone", latematch.EventNotEvicted, "no controller owns it")
		w.says("static", latematch.EventNotEvicted, "static pod")
		if w.evictions() != 0 {
			t.Errorf("%d evictions", w.evictions())
		}
	})
	for part, held := range map[string][2]func(w *world){
		"SecurityGroupPolicy web is not valid (UnknownGroup)": {func(w *world) { w.policy(metav1.ConditionFalse) }, func(w *world) { w.policy(metav1.ConditionTrue) }},
		"no node can have branches":                           {func(w *world) { w.node(0) }, func(w *world) { w.node(1) }},
		"a brake forbids the calls for a branch: b: test": {func(w *world) {
			w.Put(brakesAt, &trunkline.Brake{
				TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "Brake"}, ObjectMeta: metav1.ObjectMeta{Name: "b"},
				Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeAll, Reason: "test"},
			})
		}, func(w *world) { w.Delete(brakesAt, "b") }},
	} {
		inWorld(t, false, func(w *world) {
			held[0](w)
			w.pod("late")
			elapse(10 * time.Minute)
			w.exist("late")
			w.says("late", latematch.EventNotEvicted, part)
			held[1](w)
			elapse(2 * time.Minute)
			w.exist()
		})
	}
}

func TestAPodOnFargateIsNotEvicted(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.pod("web-1", func(p *corev1.Pod) { p.Spec.NodeName = "fargate-ip-10-0-3-7.us-west-2.compute.internal" })
		elapse(10 * time.Minute)
		w.exist("web-1")
		if len(w.events) > 0 {
			t.Errorf("events %q", w.events)
		}
	})
}

func TestEvictionsAreFewAtATime(t *testing.T) {
	inWorld(t, false, func(w *world) {
		for i := range 12 {
			w.pod(fmt.Sprintf("p%02d", i), ownedBy(fmt.Sprintf("rs%d", i)))
		}
		elapse(30 * time.Second)
		for range 5 {
			before := w.evictions()
			elapse(time.Minute)
			if n := w.evictions() - before; n > 6 {
				t.Errorf("%d evictions in a minute, want at most 6", n)
			}
		}
		w.exist()
	})
}

// A PodDisruptionBudget refuses with 429.
func TestARefusedEvictionIsReportedAndTriedAgainLater(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.RefuseNext("/api/v1/namespaces/shop/pods/late/eviction", 429, 3)
		w.pod("late")
		elapse(3 * time.Minute)
		w.exist("late")
		w.says("late", latematch.EventNotEvicted, "evict pod shop/late")
		if n := w.evictions(); n != 3 {
			t.Errorf("%d attempts in 3 minutes, want 3", n)
		}
		elapse(2 * time.Minute)
		w.exist()
	})
}

// Pods of one owner go one after another: none while a next one waits for its network.
func TestNoFurtherPodOfAnOwnerIsEvictedWhileANextOneHasNoNetwork(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.pod("a")
		w.pod("b")
		elapse(35 * time.Second)
		w.exist("b")
		w.pod("c", requests, pending)
		elapse(time.Hour)
		w.exist("b", "c")
		w.says("b", latematch.EventNotEvicted, "pod shop/c of the same owner has no network yet")
		w.pod("c", requests)
		elapse(2 * time.Minute)
		w.exist("c")
	})
}

// Admission does not serve the owner's pods: evicting them changes nothing.
func TestAnOwnerThatCreatesPodsWithoutBranchesIsLeftAloneLongerEachTime(t *testing.T) {
	inWorld(t, false, func(w *world) {
		made := 0
		again := func() {
			if len(w.Keys(podsAt)) == 0 {
				made++
				w.pod(fmt.Sprintf("p%d", made))
			}
		}
		again()
		for range 24 * 60 {
			elapse(time.Minute)
			again()
		}
		if n := w.evictions(); n < 3 || n > 10 {
			t.Errorf("%d evictions in a day, want the first, and those after 10, 20, 40 minutes and so on", n)
		}
		w.says("p2", latematch.EventNotEvicted, "after the last eviction without a request for a branch")
	})
}

func TestADryRunEvictsNothing(t *testing.T) {
	inWorld(t, true, func(w *world) {
		w.pod("late")
		elapse(time.Hour)
		w.exist("late")
	})
}

// Beside these, it uses rights that the base grants.
func TestEvictionUsesExactlyTheRightsOfItsComponent(t *testing.T) {
	inWorld(t, false, func(w *world) {
		w.pod("late")
		elapse(time.Minute)
		want := append(kubetest.Granted(t, "../../../deploy/components/late-match-evict/evict-rbac.yaml"), "list brakes.trunkline.dev", "list nodenetworks.trunkline.dev", "list nodes")
		slices.Sort(want)
		if used := w.Used(); !slices.Equal(used, want) {
			t.Errorf("used    %q\nwant %q", used, want)
		}
	})
}
