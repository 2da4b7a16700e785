package kube_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const namespaces = "/api/v1/namespaces"

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
	}
}

// peerPod is a pod with addresses, on node "n2".
func peerPod(name string, addresses ...string) *corev1.Pod {
	p := pod("default", name, "n2", "uid-"+name)
	p.Labels = map[string]string{"app": name}
	p.Status.PodIPs = nil
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

func startedAt(p *corev1.Pod, hour int) *corev1.Pod {
	at := metav1.NewTime(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC))
	p.Status.StartTime = &at
	return p
}

// policyWorld is a PolicyObjects against a fake server. What Take returned is applied to the
// maps, as a user of PolicyObjects does.
type policyWorld struct {
	*kubetest.Server
	objects *kube.PolicyObjects
	changes chan struct{}
	path    string
	taken   map[string]int // changes by the name of their object
	kube.PolicyChanges
}

func newPolicyWorld(t *testing.T, prepare ...func(*kubetest.Server)) *policyWorld {
	t.Helper()
	w := &policyWorld{Server: kubetest.New(t), path: filepath.Join(t.TempDir(), "policy.json")}
	w.Put(namespaces, namespace("default", map[string]string{"kubernetes.io/metadata.name": "default"}))
	for _, p := range prepare {
		p(w.Server)
	}
	return w
}

// start makes a new PolicyObjects on the same snapshot, as after a restart of the agent. It
// returns what stops it.
func (w *policyWorld) start(t *testing.T) context.CancelFunc {
	t.Helper()
	stop := w.startWith(t, w.REST())
	t.Cleanup(stop)
	return stop
}

func (w *policyWorld) startWith(t *testing.T, access *rest.Config) context.CancelFunc {
	t.Helper()
	client, err := kube.FromREST(access)
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan struct{}, 1)
	w.taken = map[string]int{}
	w.changes, w.PolicyChanges = changes, kube.PolicyChanges{
		Policies: map[policy.Ref]*kube.PolicyObject{}, Pods: map[policy.PodRef]*policy.Pod{},
	}
	w.objects = kube.NewPolicyObjects(kube.PolicyOptions{
		Client: client, SnapshotPath: w.path, Log: quiet(),
		Changed: func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.objects.Run(ctx) }()
	return func() { cancel(); <-done }
}

// take applies what changed and returns it.
func (w *policyWorld) take() kube.PolicyChanges {
	c := w.objects.Take()
	for name := range c.Namespaces {
		w.taken[name]++
	}
	for ref, o := range c.Policies {
		w.taken[ref.Name]++
		if w.Policies[ref] = o; o == nil {
			delete(w.Policies, ref)
		}
	}
	for ref, p := range c.Pods {
		w.taken[ref.Name]++
		if w.Pods[ref] = p; p == nil {
			delete(w.Pods, ref)
		}
	}
	return c
}

// until takes changes until a condition holds.
func (w *policyWorld) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for w.take(); !holds(); w.take() {
		select {
		case <-deadline:
			t.Fatalf("not before the deadline: %s; pods %s", what, w.peers())
		case <-w.changes:
		case <-time.After(10 * time.Millisecond): // what the server shows has no signal
		}
	}
}

// peers are the pods with their addresses, such as "a:10.0.0.1 b:".
func (w *policyWorld) peers() string {
	var out []string
	for _, p := range w.Pods {
		out = append(out, p.Name+":"+strings.Trim(fmt.Sprint(p.Addresses), "[]"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *policyWorld) untilPeers(t *testing.T, want string) {
	t.Helper()
	w.until(t, "pods "+want, func() bool { return w.objects.Synced() && w.peers() == want })
}

func withPolicy(s *kubetest.Server) { s.Put(networkPolicies, networkPolicy("a")) }

func npRef(name string) policy.Ref {
	return policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: "default", Name: name}
}

func podRef(name string) policy.PodRef { return policy.PodRef{Namespace: "default", Name: name} }

func TestPolicyObjectsAreThoseOfTheServer(t *testing.T) {
	for name, stream := range map[string]bool{"list and watch": false, "streamed list": true} {
		t.Run(name, func(t *testing.T) {
			w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) {
				if stream {
					s.Stream()
				}
				s.Put(pods, peerPod("web", "10.0.0.7", "fd00::7"))
			})
			w.start(t)
			w.untilPeers(t, "web:10.0.0.7 fd00::7")
			if !w.objects.Known() || !w.objects.Any() || len(w.Policies) != 1 {
				t.Errorf("known %v, any %v, policies %v", w.objects.Known(), w.objects.Any(), w.Policies)
			}
			p := w.Pods[podRef("web")]
			if p.Node != "n2" || p.Labels["app"] != "web" || p.HostNetwork {
				t.Errorf("pod %+v", p)
			}
			w.Put(pods, peerPod("db", "10.0.0.8"))
			w.Put(networkPolicies, networkPolicy("b"))
			w.until(t, "the second pod and policy", func() bool { return len(w.Pods) == 2 && len(w.Policies) == 2 })
			w.Delete(pods, "default/web")
			w.Delete(networkPolicies, "default/a")
			w.until(t, "the first are deleted", func() bool { return w.peers() == "db:10.0.0.8" && len(w.Policies) == 1 })
		})
	}
}

func TestChangesOfAnObjectBetweenTwoTakesAreOne(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(pods, peerPod("web", "10.0.0.7")) })
	synctest.Test(t, func(t *testing.T) {
		defer w.startWith(t, kubetest.InProcess(w.Server))()
		synctest.Wait()
		w.take()
		if w.peers() != "web:10.0.0.7" {
			t.Fatal(w.peers())
		}
		for i := range 20 {
			p := peerPod("web", "10.0.0.7")
			p.Labels["version"] = fmt.Sprint(i)
			w.Put(pods, p)
		}
		w.Put(pods, peerPod("came", "10.0.0.9"))
		w.Delete(pods, "default/came")
		synctest.Wait()
		w.take()
		if got := w.Pods[podRef("web")].Labels["version"]; got != "19" || w.taken["web"] != 2 {
			t.Errorf("version %s after %d changes, want 19 after the first and one more", got, w.taken["web"])
		}
		if w.Pods[podRef("came")] != nil {
			t.Error("a deleted pod is left")
		}
		if again := w.take(); len(again.Pods)+len(again.Policies)+len(again.Namespaces) > 0 {
			t.Errorf("a second Take has %+v", again)
		}
	})
}

// Most updates of pods change conditions and container states.
func TestAnUpdateThatPoliciesDoNotSeeIsNoChange(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(pods, peerPod("web", "10.0.0.7")) })
	w.start(t)
	w.untilPeers(t, "web:10.0.0.7")
	p := startedAt(peerPod("web", "10.0.0.7"), 1)
	p.Annotations["x"] = "y"
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	w.Put(pods, p)
	w.Put(namespaces, namespace("default", map[string]string{"kubernetes.io/metadata.name": "default"}))
	w.Put(networkPolicies, networkPolicy("a"))
	w.Put(pods, peerPod("last", "10.0.0.8"))
	w.Put(networkPolicies, networkPolicy("last-policy"))
	w.Put(namespaces, namespace("last-namespace", nil))
	w.until(t, "the last objects", func() bool { return w.taken["last"]*w.taken["last-policy"]*w.taken["last-namespace"] > 0 })
	if w.taken["web"] != 1 || w.taken["a"] != 1 || w.taken["default"] != 1 {
		t.Errorf("changes %v, want one of web, a and default", w.taken)
	}
}

func TestPodsAreWatchedOnlyWhileThereArePolicies(t *testing.T) {
	w := newPolicyWorld(t, func(s *kubetest.Server) { s.Put(pods, peerPod("web", "10.0.0.7")) })
	synctest.Test(t, func(t *testing.T) {
		defer w.startWith(t, kubetest.InProcess(w.Server))()
		synctest.Wait()
		w.take()
		if !w.objects.Synced() || w.objects.Any() || slices.Contains(w.Requests(), "GET "+pods) {
			t.Errorf("without policies: synced %v, any %v, requests %q", w.objects.Synced(), w.objects.Any(), w.Requests())
		}
		step := func(what string, change func(), after time.Duration, watches int, peers string) {
			t.Helper()
			change()
			time.Sleep(after)
			synctest.Wait()
			w.take()
			if w.Watches(pods) != watches || w.peers() != peers || !w.objects.Synced() {
				t.Errorf("%s: %d watches, pods %q, synced %v; want %d, %q", what, w.Watches(pods), w.peers(), w.objects.Synced(), watches, peers)
			}
		}
		add := func() { w.Put(networkPolicies, networkPolicy("a")) }
		remove := func() { w.Delete(networkPolicies, "default/a") }
		step("the first policy", add, 0, 1, "web:10.0.0.7")
		step("the last is deleted", remove, 59*time.Second, 1, "web:10.0.0.7")
		step("it comes back", add, 2*time.Second, 1, "web:10.0.0.7")
		step("it is deleted again", remove, 61*time.Second, 0, "")
		step("no policy", func() { w.Put(pods, peerPod("db", "10.0.0.8")) }, time.Hour, 0, "")
		if _, err := os.Stat(w.path + ".peers"); err == nil {
			t.Error("the file of pods is left")
		}
		step("a policy comes back", add, 0, 1, "db:10.0.0.8 web:10.0.0.7")
	})
}

func TestAPodIsAPeerFromItsAddressToItsEnd(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) {
		host := peerPod("host", "10.0.0.100")
		host.Spec.HostNetwork = true
		pending := peerPod("pending")
		pending.Status.Phase = corev1.PodPending
		unbound := peerPod("unbound", "10.0.0.5")
		unbound.Spec.NodeName = ""
		old := peerPod("old")
		old.Status.PodIP = "10.0.0.6"
		for _, p := range []*corev1.Pod{host, pending, unbound, old, peerPod("odd", "127.0.0.1", "x", "fe80::1%eth0", "::ffff:10.0.0.9")} {
			s.Put(pods, p)
		}
	})
	w.start(t)
	w.untilPeers(t, "odd:10.0.0.9 old:10.0.0.6")
	w.Put(pods, peerPod("pending", "10.0.0.7"))
	w.untilPeers(t, "odd:10.0.0.9 old:10.0.0.6 pending:10.0.0.7")
	terminating := peerPod("pending", "10.0.0.7")
	now := metav1.Now()
	terminating.DeletionTimestamp = &now
	terminating.Labels["terminating"] = "yes"
	w.Put(pods, terminating)
	w.until(t, "the terminating pod", func() bool {
		p := w.Pods[podRef("pending")]
		return p != nil && p.Labels["terminating"] == "yes"
	})
	for name, phase := range map[string]corev1.PodPhase{"pending": corev1.PodSucceeded, "odd": corev1.PodFailed} {
		ended := peerPod(name, "10.0.0.7")
		ended.Status.Phase = phase
		w.Put(pods, ended)
	}
	w.untilPeers(t, "old:10.0.0.6")
}

func TestAnAddressIsOfThePodThatStartedLast(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) {
		s.Put(pods, startedAt(peerPod("first", "10.0.0.7", "fd00::1"), 1))
		s.Put(pods, startedAt(peerPod("third", "10.0.0.7"), 3))
		s.Put(pods, startedAt(peerPod("second", "10.0.0.7"), 2))
	})
	w.start(t)
	w.untilPeers(t, "first:fd00::1 third:10.0.0.7")
	ended := peerPod("third", "10.0.0.7")
	ended.Status.Phase = corev1.PodFailed
	w.Put(pods, ended)
	w.untilPeers(t, "first:fd00::1 second:10.0.0.7")
	w.Delete(pods, "default/second")
	w.untilPeers(t, "first:10.0.0.7 fd00::1")
	// With equal start times the one that was created later has it, then the greater uid.
	b := startedAt(peerPod("b", "10.0.0.7"), 1)
	b.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC))
	w.Put(pods, b)
	w.untilPeers(t, "b:10.0.0.7 first:fd00::1")
	c := startedAt(peerPod("c", "10.0.0.7"), 1)
	c.CreationTimestamp = b.CreationTimestamp
	w.Put(pods, c)
	w.untilPeers(t, "c:10.0.0.7 first:fd00::1")
}

// Any user who can make a pod can set its annotations.
func TestTheAnnotationOfAWSMakesAPodKnownEarlier(t *testing.T) {
	annotated := func(name, value string, reported ...string) *corev1.Pod {
		p := peerPod(name, reported...)
		p.Annotations["vpc.amazonaws.com/pod-ips"] = value
		return p
	}
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) {
		s.Put(pods, startedAt(peerPod("web", "10.0.0.7"), 1))
		s.Put(pods, annotated("new", "10.0.0.8, fd00::8"))
		s.Put(pods, annotated("thief", "10.0.0.7"))
		s.Put(pods, annotated("many", "10.0.1.1,10.0.1.2"))
		s.Put(pods, annotated("odd", "10.0.1.3,x"))
		s.Put(pods, annotated("local", "127.0.0.1"))
		s.Put(pods, annotated("moved", "10.0.1.4", "10.0.1.5"))
	})
	w.start(t)
	w.untilPeers(t, "moved:10.0.1.5 new:10.0.0.8 fd00::8 web:10.0.0.7")
	w.Delete(pods, "default/web")
	w.untilPeers(t, "moved:10.0.1.5 new:10.0.0.8 fd00::8 thief:10.0.0.7")
}

func TestNamedPortsAreThoseOfContainersAndSidecars(t *testing.T) {
	p := peerPod("web", "10.0.0.7")
	port := func(name string, number int32, protocol corev1.Protocol) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: number, Protocol: protocol}}
	}
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.Containers = []corev1.Container{
		{Name: "a", Ports: append(port("http", 80, ""), port("", 81, "")...)},
		{Name: "b", Ports: append(port("dns", 53, corev1.ProtocolUDP), port("bad", 70000, "")...)},
	}
	p.Spec.InitContainers = []corev1.Container{
		{Name: "init", Ports: port("setup", 82, "")},
		{Name: "sidecar", Ports: port("proxy", 83, corev1.ProtocolSCTP), RestartPolicy: &always},
	}
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(pods, p) })
	w.start(t)
	w.untilPeers(t, "web:10.0.0.7")
	want := []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Port: 80}, {Name: "dns", Protocol: policy.UDP, Port: 53}, {Name: "proxy", Protocol: policy.SCTP, Port: 83}}
	if got := w.Pods[podRef("web")].Ports; !slices.Equal(got, want) {
		t.Errorf("ports %v, want %v", got, want)
	}
}

func TestANamespaceIsItsLabels(t *testing.T) {
	w := newPolicyWorld(t)
	w.start(t)
	labels := map[string]string{}
	w.until(t, "sync", w.objects.Synced)
	w.Put(namespaces, namespace("default", map[string]string{"team": "a"}))
	w.Put(namespaces, namespace("other", nil))
	other, deadline := 0, time.After(time.Minute)
	for labels["team"] != "a" || other != 2 {
		c := w.take()
		if l := c.Namespaces["default"]; l != nil {
			labels = maps.Clone(*l)
		}
		if l, changed := c.Namespaces["other"]; changed && l != nil && other == 0 {
			other = 1
			w.Delete(namespaces, "other")
		} else if changed && l == nil {
			other = 2
		}
		select {
		case <-deadline:
			t.Fatalf("labels %v, other %d", labels, other)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestAnOddPolicyNamesItsProblemsAndWhenItWasWritten(t *testing.T) {
	odd := networkPolicy("odd")
	port, end := intstr.FromInt32(90), int32(80)
	odd.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: &port, EndPort: &end}}}}
	odd.UID, odd.Generation = "uid-odd", 7
	created, wrote, later := metav1.Unix(1000, 0), metav1.Unix(2000, 0), metav1.Unix(3000, 0)
	odd.CreationTimestamp = created
	odd.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &wrote}, {Time: &later, Subresource: "status"}, {}}
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(networkPolicies, odd) })
	w.start(t)
	w.until(t, "the policies", func() bool { return len(w.Policies) == 2 })
	o := w.Policies[npRef("odd")]
	if len(o.Problems) != 1 || !strings.Contains(o.Problems[0], "90 to 80") || o.UID != "uid-odd" || o.Generation != 7 || o.Created.Unix() != 2000 {
		t.Errorf("%+v", o)
	}
	if o := w.Policies[npRef("a")]; len(o.Problems) != 0 || o.Created.IsZero() {
		t.Errorf("%+v", o)
	}
}

func TestAWatchThatExpiredIsFollowedByAList(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(pods, peerPod("web", "10.0.0.7")) })
	w.start(t)
	w.untilPeers(t, "web:10.0.0.7")
	w.until(t, "the watches", func() bool { return w.Watches(pods) == 1 && w.Watches(networkPolicies) == 1 })
	w.Expire(pods)
	w.until(t, "the watch ends", func() bool { return w.Watches(pods) == 0 })
	w.Delete(pods, "default/web")
	w.Put(pods, peerPod("db", "10.0.0.8"))
	w.untilPeers(t, "db:10.0.0.8")
	for _, path := range []string{pods, networkPolicies} { // the request of a watch is refused
		w.RefuseNext(path, http.StatusGone, 2)
		w.Expire(path)
	}
	w.until(t, "the watches end", func() bool { return w.Watches(pods)+w.Watches(networkPolicies) == 0 })
	w.Delete(networkPolicies, "default/a")
	w.Put(networkPolicies, networkPolicy("b"))
	w.until(t, "the other policy", func() bool { return len(w.Policies) == 1 && w.Policies[npRef("b")] != nil })
}
