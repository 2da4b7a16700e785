package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	pods   = "/api/v1/pods"
	nodes  = "/api/v1/nodes"
	brakes = "/apis/trunkline.dev/v1alpha1/brakes"
	nets   = "/apis/trunkline.dev/v1alpha1/nodenetworks"
)

func pod(ns, name, node, uid string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, UID: types.UID(uid),
			Annotations: map[string]string{"trunkline.dev/metadata": "allow", "example.com/large": strings.Repeat("x", 1000)},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.7"}}},
	}
}

func node(name string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "node-uid", Labels: map[string]string{"topology.kubernetes.io/zone": "us-west-2a"}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///us-west-2a/i-1", PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00::/64"}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("58")},
			Images:   []corev1.ContainerImage{{Names: []string{"large"}}},
		},
	}
}

func brake(name string, f trunkline.Freeze, on ...string) *trunkline.Brake {
	return &trunkline.Brake{
		TypeMeta:   metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "Brake"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       trunkline.BrakeSpec{Freeze: f, Nodes: on, Reason: "incident 7"},
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// world is a Cluster of node "n1" against a fake server.
type world struct {
	*kubetest.Server
	cluster *kube.Cluster
	changes chan struct{}
	path    string
}

func newWorld(t *testing.T, prepare ...func(*kubetest.Server)) *world {
	t.Helper()
	w := &world{Server: kubetest.New(t), path: filepath.Join(t.TempDir(), "cluster.json")}
	w.Put(nodes, node("n1"))
	for _, p := range prepare {
		p(w.Server)
	}
	w.start(t)
	return w
}

// start makes a new Cluster on the same snapshot, as after a restart of the agent.
func (w *world) start(t *testing.T) context.CancelFunc {
	t.Helper()
	client, err := kube.FromREST(w.REST())
	if err != nil {
		t.Fatal(err)
	}
	w.changes = make(chan struct{}, 1)
	changes := w.changes
	w.cluster = kube.NewCluster(kube.Options{
		Client: client, NodeName: "n1", SnapshotPath: w.path, Log: quiet(),
		Changed: func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.cluster.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return func() { cancel(); <-done }
}

// until waits for a condition, checked after each change of the cluster.
func (w *world) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-w.changes:
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

func TestTheCacheHoldsThePodsOfItsNodeWithoutUnusedFields(t *testing.T) {
	w := newWorld(t, func(s *kubetest.Server) {
		s.Put(pods, pod("a", "mine", "n1", "u1"))
		s.Put(pods, pod("a", "other", "n2", "u2"))
	})
	w.until(t, "the pod appears", func() bool { return w.cluster.Synced() && len(w.cluster.Pods()) == 1 })
	got := w.cluster.Pods()[0]
	got.Created, got.Bound = time.Time{}, time.Time{}
	want := kube.Pod{
		PodRef: kube.PodRef{Namespace: "a", Name: "mine"}, UID: "u1",
		Addresses:   []netip.Addr{netip.MustParseAddr("10.0.0.7")},
		Annotations: map[string]string{"trunkline.dev/metadata": "allow"},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("pod (-want +got)\n%s", diff)
	}
	if n, ok := w.cluster.Node(); !ok || n.MaxPods != 58 || n.ProviderID != "aws:///us-west-2a/i-1" || fmt.Sprint(n.PodCIDRs) != "[10.244.1.0/24 fd00::/64]" {
		t.Errorf("node = %+v, %v", n, ok)
	}
	w.Put(pods, pod("a", "second", "n1", "u3"))
	w.until(t, "the second pod appears", func() bool { return len(w.cluster.Pods()) == 2 })
	w.Delete(pods, "a/mine")
	w.until(t, "the first pod goes", func() bool { return len(w.cluster.Pods()) == 1 })
}

// The kubelet makes the volumes of most pods of what it has, and waits for others.
func TestThePodsThatMayWaitForAVolumeAreKnown(t *testing.T) {
	directory := corev1.HostPathDirectory
	token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
	config := func(name string) corev1.VolumeProjection {
		return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
	}
	projected := func(sources ...corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}
	}
	all := map[string]struct {
		source corev1.VolumeSource
		awaits bool
	}{
		"empty":     {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, false},
		"downward":  {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, false},
		"account":   {projected(token, config("kube-root-ca.crt")), false},
		"config":    {projected(token, config("mine")), true},
		"path":      {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}, false},
		"directory": {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x", Type: &directory}}, true},
		"secret":    {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, true},
		"claim":     {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}, true},
	}
	w := newWorld(t, func(s *kubetest.Server) {
		for name, v := range all {
			p := pod("a", name, "n1", "uid-"+name)
			p.Spec.Volumes = []corev1.Volume{{Name: "first", VolumeSource: all["empty"].source}, {Name: "second", VolumeSource: v.source}}
			s.Put(pods, p)
		}
	})
	w.until(t, "the pods appear", func() bool { return w.cluster.Synced() && len(w.cluster.Pods()) == len(all) })
	for _, p := range w.cluster.Pods() {
		if p.AwaitsVolume != all[p.Name].awaits {
			t.Errorf("%s: %v", p.Name, p.AwaitsVolume)
		}
	}
}

func TestAPodThatIsNotInTheCacheIsReadFromTheServer(t *testing.T) {
	w := newWorld(t)
	w.until(t, "sync", w.cluster.Synced)
	ref := kube.PodRef{Namespace: "a", Name: "late"}
	if _, err := w.cluster.Pod(t.Context(), ref, ""); !errors.Is(err, kube.ErrNoPod) {
		t.Errorf("absent pod: %v, want ErrNoPod", err)
	}
	// Bound elsewhere in the fake, so that only a live GET can find it.
	w.Put(pods, pod("a", "late", "n2", "u9"))
	p, err := w.cluster.Pod(t.Context(), ref, "u9")
	if err != nil || p.UID != "u9" {
		t.Errorf("live pod = %+v, %v", p, err)
	}
	if _, err := w.cluster.Pod(t.Context(), ref, "u8"); !errors.Is(err, kube.ErrNoPod) {
		t.Errorf("pod with another uid: %v, want ErrNoPod", err)
	}
	w.SetDown(true)
	if _, err := w.cluster.Pod(t.Context(), ref, ""); !errors.Is(err, kube.ErrUnavailable) {
		t.Errorf("server down: %v, want ErrUnavailable", err)
	}
}

func TestAReplacedPodOfTheSameNameIsNotReturnedFromTheCache(t *testing.T) {
	w := newWorld(t, func(s *kubetest.Server) { s.Put(pods, pod("a", "db-0", "n1", "old")) })
	w.until(t, "sync", func() bool { return w.cluster.Synced() && len(w.cluster.Pods()) == 1 })
	ref := kube.PodRef{Namespace: "a", Name: "db-0"}
	if _, err := w.cluster.Pod(t.Context(), ref, "new"); !errors.Is(err, kube.ErrNoPod) {
		t.Errorf("got %v, want ErrNoPod: the server still has the old one", err)
	}
	if !slices.Contains(w.Requests(), "GET /api/v1/namespaces/a/pods/db-0") {
		t.Error("the server got no request")
	}
}

func TestWithoutTheServerPodsAndBrakeComeFromTheSnapshot(t *testing.T) {
	w := newWorld(t, func(s *kubetest.Server) {
		s.Put(pods, pod("a", "mine", "n1", "u1"))
		s.Put(brakes, brake("night", trunkline.FreezeRelease))
	})
	w.until(t, "the snapshot holds pod and brake", func() bool {
		s, err := kube.LoadSnapshot(w.path)
		return err == nil && len(s.Pods) == 1 && s.Freeze == trunkline.FreezeRelease
	})
	w.SetDown(true)
	w.start(t)
	if w.cluster.Synced() {
		t.Fatal("synced with a server that is down")
	}
	p, err := w.cluster.Pod(t.Context(), kube.PodRef{Namespace: "a", Name: "mine"}, "u1")
	if err != nil || p.UID != "u1" || len(w.cluster.Pods()) != 1 {
		t.Errorf("pod from the snapshot: %+v, %v", p, err)
	}
	if !w.cluster.PodsKnown() {
		t.Error("the pods of the snapshot count as unknown")
	}
	if n, ok := w.cluster.Node(); !ok || n.MaxPods != 58 || fmt.Sprint(n.PodCIDRs) != "[10.244.1.0/24 fd00::/64]" {
		t.Errorf("node from the snapshot: %+v, %v", n, ok)
	}
	if f, why := w.cluster.Freeze(); f != trunkline.FreezeRelease || !strings.Contains(why, "incident 7") {
		t.Errorf("brake from the snapshot: %q %q", f, why)
	}
	w.SetDown(false)
	w.Delete(pods, "a/mine")
	w.until(t, "the cache replaces the snapshot", func() bool { return w.cluster.Synced() && len(w.cluster.Pods()) == 0 })
}

func TestWithoutServerAndSnapshotThePodsAreUnknown(t *testing.T) {
	w := newWorld(t, func(s *kubetest.Server) { s.SetDown(true) })
	if w.cluster.PodsKnown() {
		t.Error("the pods are known, with a server that is down and without a snapshot")
	}
	w.SetDown(false)
	w.until(t, "sync", w.cluster.PodsKnown)
}

func TestADamagedSnapshotIsNotUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.json")
	for name, text := range map[string]string{"torn": `{"version":1,"pods":[{"na`, "of a newer version": `{"version":99}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := kube.LoadSnapshot(path); err == nil || len(s.Pods) > 0 {
			t.Errorf("%s: %+v, %v; want an error", name, s, err)
		}
	}
}

func TestBrakesApplyWhileRunning(t *testing.T) {
	w := newWorld(t)
	w.until(t, "sync", w.cluster.Synced)
	freeze := func(want trunkline.Freeze) func() bool {
		return func() bool { f, _ := w.cluster.Freeze(); return f == want }
	}
	w.Put(brakes, brake("elsewhere", trunkline.FreezeAll, "n2"))
	w.Put(brakes, brake("release", trunkline.FreezeRelease))
	w.until(t, "release", freeze(trunkline.FreezeRelease))
	w.Put(brakes, brake("here", trunkline.FreezeAll, "n1"))
	w.until(t, "all", freeze(trunkline.FreezeAll))
	w.Delete(brakes, "here")
	w.Delete(brakes, "release")
	w.until(t, "none", freeze(trunkline.FreezeNone))
}

func TestTheReportIsOwnedByTheNodeAndWrittenWhenItChanges(t *testing.T) {
	w := newWorld(t)
	w.until(t, "sync", w.cluster.Synced)
	s := trunkline.NodeNetworkStatus{Mode: trunkline.ModeSecondaryIP, Addresses: trunkline.AddressCounts{Total: 14, Free: 14}}
	for i := range 5 {
		s.ObservedAt = metav1.NewTime(time.Unix(int64(1000+i), 0))
		s.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: s.ObservedAt}}
		if err := w.cluster.WriteNetwork(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	var got trunkline.NodeNetwork
	if !w.Get(nets, "n1", &got) {
		t.Fatal("no NodeNetwork")
	}
	if at := got.Status.Conditions[0].LastTransitionTime.Unix(); at != 1000 {
		t.Errorf("the condition changed at %d, want the first report's 1000", at)
	}
	if got.Status.Addresses.Total != 14 || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "node-uid" {
		t.Errorf("NodeNetwork = %+v", got)
	}
	if n := writes(w.Requests()); n != 3 { // status 404, object, status
		t.Errorf("%d writes, want 3", n)
	}
	s.Addresses.Free = 13
	if err := w.cluster.WriteNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if n := writes(w.Requests()); n != 4 {
		t.Errorf("%d writes after a change, want 4", n)
	}
}

func writes(requests []string) (n int) {
	for _, r := range requests {
		if strings.HasPrefix(r, "PATCH "+nets) {
			n++
		}
	}
	return n
}

func TestTheNodeIsMarkedAvailable(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		if err := w.cluster.SetNetworkUnavailable(t.Context(), false, "PoolReady", "28 addresses free"); err != nil {
			t.Fatal(err)
		}
	}
	patches := 0
	for _, r := range w.Requests() {
		if r == "PATCH "+nodes+"/n1/status" {
			patches++
		}
	}
	if patches != 1 {
		t.Errorf("%d requests for three equal conditions, want 1", patches)
	}
	var n corev1.Node
	w.Get(nodes, "n1", &n)
	if len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Type != corev1.NodeNetworkUnavailable || n.Status.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("conditions = %+v", n.Status.Conditions)
	}
}

// An agent that served the node may be followed by one that refuses to.
func TestARefusalReplacesTheConditionOfAnAgentThatServed(t *testing.T) {
	for reason, want := range map[string]string{kube.ReasonReady: kube.ReasonRefuses + ": IPv6", "CiliumIsUp": "CiliumIsUp: up", "": ""} {
		w := newWorld(t)
		n := node("n1")
		if reason != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reason, Message: "up"}}
		}
		w.Put(nodes, n)
		for range 2 {
			if err := w.cluster.Refuse(t.Context(), "IPv6"); err != nil {
				t.Fatal(err)
			}
		}
		var now corev1.Node
		w.Get(nodes, "n1", &now)
		got := ""
		for _, c := range now.Status.Conditions {
			got += c.Reason + ": " + c.Message
			if c.Status != corev1.ConditionFalse {
				t.Errorf("%s is %s: no pod would be bound to a node that another network serves", c.Type, c.Status)
			}
		}
		if got != want {
			t.Errorf("%q became %q, want %q", reason, got, want)
		}
	}
}

const events = "/api/v1/events"

func TestLeavingDeletesTheReportAndTheConditionOfTheNode(t *testing.T) {
	w := newWorld(t)
	n := node("n1")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.Put(nodes, n)
	for _, err := range []error{
		w.cluster.WriteNetwork(t.Context(), trunkline.NodeNetworkStatus{InstanceID: "i-1"}),
		w.cluster.SetNetworkUnavailable(t.Context(), true, "NoAddress", "none is free"),
		w.cluster.Leave(t.Context()),
		w.cluster.Leave(t.Context()), // again
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if keys := w.Keys(nets); len(keys) > 0 {
		t.Errorf("left: %v", keys)
	}
	var left corev1.Node
	w.Get(nodes, "n1", &left)
	if len(left.Status.Conditions) != 1 || left.Status.Conditions[0].Type != corev1.NodeReady {
		t.Errorf("conditions = %+v, want only that of the kubelet", left.Status.Conditions)
	}
	// The pod's log is gone with the pod: the event is what an operator can check.
	var e corev1.Event
	keys := w.Keys(events)
	if len(keys) == 0 || !w.Get(events, keys[0], &e) || e.Reason != kube.ReasonLeft || e.InvolvedObject.Name != "n1" || e.Source.Host != "n1" || e.Source.Component != kube.Component {
		t.Errorf("events %v, the first %+v", keys, e)
	}
}

func TestANodeThatWasNotLeftWhollyHasNoEventOfThat(t *testing.T) {
	w := newWorld(t)
	w.Put(nodes, node("n1"))
	w.Refuse("/api/v1/nodes/n1/status", 403)
	if err := w.cluster.Leave(t.Context()); err == nil {
		t.Error("no error although the condition stays")
	}
	if keys := w.Keys(events); len(keys) > 0 {
		t.Errorf("events %v", keys)
	}
}

func TestEqualEventsAreCountedOnOneObject(t *testing.T) {
	w := newWorld(t)
	w.until(t, "sync", w.cluster.Synced)
	for range 3 {
		w.cluster.Events().PodWarning(kube.PodRef{Namespace: "a", Name: "p"}, "u1", "NoAddress", "subnet-1 is full")
	}
	w.until(t, "one event with count 3", func() bool {
		keys := w.Keys(events)
		var e corev1.Event
		return len(keys) == 1 && w.Get(events, keys[0], &e) && e.Count == 3 && e.InvolvedObject.UID == "u1" && e.Source.Component == kube.Component
	})
}

func TestAnEventMadeBeforeRunIsSent(t *testing.T) {
	w := newWorld(t)
	client, err := kube.FromREST(w.REST())
	if err != nil {
		t.Fatal(err)
	}
	e := kube.NewEvents(client.Core, "n1")
	e.NodeWarning("Refused", "no address")
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	defer func() { cancel(); <-ran }()
	go func() { defer close(ran); e.Run(ctx) }()
	w.until(t, "the event", func() bool { return len(w.Keys("/api/v1/events")) == 1 })
}

// Each Brake object has its own effect: without the strictest one the others stay in force.
func TestTheReasonsOfAllBrakesAreNamed(t *testing.T) {
	list := []trunkline.Brake{*brake("b", trunkline.FreezeAll), *brake("a", trunkline.FreezeRelease), *brake("c", trunkline.FreezeNone), *brake("d", trunkline.FreezeAll, "n2")}
	if f, why := kube.Strictest(slices.Clone(list), "n1"); f != trunkline.FreezeAll || why != "a: incident 7; b: incident 7" {
		t.Errorf("brake %q: %q", f, why)
	}
	if f, why := kube.Strictest(list[1:], "n1"); f != trunkline.FreezeRelease || !strings.HasPrefix(why, "a: incident 7") {
		t.Errorf("brake %q: %q", f, why)
	}
	if f, why := kube.Strictest(nil, "n1"); f != trunkline.FreezeNone || why != "" {
		t.Errorf("without a brake: %q: %q", f, why)
	}
}

// A node from a disk image can have the name of an earlier one: it is derived from its address.
func TestASnapshotOfAnotherInstanceIsNotUsed(t *testing.T) {
	for instance, used := range map[string]bool{"i-1": true, "i-2": false, "1": false} {
		path := filepath.Join(t.TempDir(), "cluster.json")
		was := kube.Snapshot{Node: kube.Node{Name: "n1", ProviderID: "aws:///us-west-2a/i-1"}, Pods: []kube.Pod{{PodRef: kube.PodRef{Namespace: "a", Name: "mine"}, UID: "u1"}}}
		if err := kube.SaveSnapshot(path, was); err != nil {
			t.Fatal(err)
		}
		server := kubetest.New(t)
		server.SetDown(true)
		client, err := kube.FromREST(server.REST())
		if err != nil {
			t.Fatal(err)
		}
		c := kube.NewCluster(kube.Options{Client: client, NodeName: "n1", SnapshotPath: path, Log: quiet(), Changed: func() {}})
		c.Confirm(instance)
		if c.PodsKnown() != used || len(c.Pods()) > 0 != used {
			t.Errorf("instance %s: pods known %v: %v, want the snapshot used: %v", instance, c.PodsKnown(), c.Pods(), used)
		}
	}
}
