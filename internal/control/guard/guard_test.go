package guard

import (
	"log/slog"
	"strings"
	"testing"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// shared is a cluster, with the events that the agent writes.
type shared struct {
	pods          []kube.Pod
	synced, known bool
	freeze        trunkline.Freeze
	events        []string
}

func (s *shared) Pods() []kube.Pod                   { return s.pods }
func (s *shared) Synced() bool                       { return s.synced }
func (s *shared) PodsKnown() bool                    { return s.synced || s.known }
func (s *shared) Freeze() (trunkline.Freeze, string) { return s.freeze, "" }
func (s *shared) NodeWarning(reason, message string) {
	s.events = append(s.events, reason+": "+message)
}

func awsNodePod(name string, change func(*kube.Pod)) kube.Pod {
	p := kube.Pod{PodRef: kube.PodRef{Namespace: "kube-system", Name: name}, Labels: map[string]string{"k8s-app": "aws-node"}, HostNetwork: true}
	if change != nil {
		change(&p)
	}
	return p
}

// Both daemons would assign the same addresses.
func TestBesideAWSsDaemonNothingIsChangedAtEC2AndNoPodIsWired(t *testing.T) {
	for name, c := range map[string]struct {
		cluster shared
		frozen  bool
		refused bool
	}{
		"no pod of AWS's daemon":            {shared{synced: true}, false, false},
		"one":                               {shared{synced: true, pods: []kube.Pod{awsNodePod("aws-node-1", nil)}}, true, true},
		"one that is being deleted":         {shared{synced: true, pods: []kube.Pod{awsNodePod("aws-node-1", func(p *kube.Pod) { p.Deleting = true })}}, true, true},
		"one that has ended":                {shared{synced: true, pods: []kube.Pod{awsNodePod("aws-node-1", func(p *kube.Pod) { p.Done = true })}}, false, false},
		"one of the snapshot, in an outage": {shared{known: true, pods: []kube.Pod{awsNodePod("aws-node-1", nil)}}, true, true},
		"none in the snapshot":              {shared{known: true}, false, false},
		"neither server nor snapshot":       {shared{}, true, false},
		"an operator's brake":               {shared{synced: true, freeze: trunkline.FreezeAll}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(Deps{&c.cluster, &c.cluster, func() {}, slog.New(slog.DiscardHandler)})
			if freeze, _ := g.Freeze(); (freeze == trunkline.FreezeAll) != c.frozen {
				t.Errorf("before the first check: brake %q, want frozen %v", freeze, c.frozen)
			}
			if got := g.MayBeBeside(); got != (c.refused || !c.cluster.synced) {
				t.Errorf("before the first check: AWS's daemon may be there: %v", got)
			}
			if got := g.Yields(); got != (c.refused || !c.cluster.synced && !c.cluster.known) {
				t.Errorf("before the first check: the node is left to AWS's daemon: %v", got)
			}
			g.Check()
			if freeze, why := g.Freeze(); (freeze == trunkline.FreezeAll) != c.frozen {
				t.Errorf("brake %q (%s), want frozen %v", freeze, why, c.frozen)
			}
			if err := g.Admit(t.Context(), kube.Pod{}); (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "kube-system/aws-node-1") {
				t.Errorf("ADD: %v, want refused %v, with the pod's name", err, c.refused)
			}
		})
	}
}

func TestAPodOfAWSsDaemonIsReportedOnce(t *testing.T) {
	cluster := &shared{synced: true}
	changes := 0
	g := New(Deps{cluster, cluster, func() { changes++ }, slog.New(slog.DiscardHandler)})
	for _, step := range []struct {
		pods   []kube.Pod
		events int
	}{
		{nil, 0},
		{[]kube.Pod{awsNodePod("a", nil)}, 1},
		{[]kube.Pod{awsNodePod("a", nil)}, 1},
		{[]kube.Pod{awsNodePod("b", nil)}, 2}, // a roll-out of aws-node
		{nil, 2},
		{[]kube.Pod{awsNodePod("b", nil)}, 3},
	} {
		cluster.pods = step.pods
		g.Check()
		if len(cluster.events) != step.events {
			t.Fatalf("with the pods %v: events %q, want %d", step.pods, cluster.events, step.events)
		}
	}
	if changes != 4 {
		t.Errorf("%d changes were passed on, want 4: a, b, none, b", changes)
	}
	if !strings.HasPrefix(cluster.events[0], "AWSDaemonOnNode: pod kube-system/a ") || !strings.Contains(cluster.events[0], "trunkline.dev/cni") {
		t.Errorf("event %q", cluster.events[0])
	}
}

// The conflist waits for it, and with it the node.
func TestThatThePodsBecameKnownIsPassedOnAtOnce(t *testing.T) {
	cluster := &shared{}
	changes := 0
	g := New(Deps{cluster, cluster, func() { changes++ }, slog.New(slog.DiscardHandler)})
	for _, synced := range []bool{false, true, true} {
		cluster.synced = synced
		g.Check()
	}
	if changes != 1 || len(cluster.events) > 0 {
		t.Errorf("%d changes were passed on, want 1; events %q", changes, cluster.events)
	}
}

// AWS's chart can be installed in any namespace.
func TestAWSsDaemonStopsTheAgentInAnyNamespace(t *testing.T) {
	cluster := &shared{synced: true, pods: []kube.Pod{awsNodePod("aws-node-1", func(p *kube.Pod) { p.Namespace = "aws" })}}
	g := New(Deps{cluster, cluster, func() {}, slog.New(slog.DiscardHandler)})
	g.Check()
	if freeze, _ := g.Freeze(); freeze != trunkline.FreezeAll || !g.Yields() || g.Admit(t.Context(), kube.Pod{}) == nil {
		t.Errorf("freeze %q", freeze)
	}
}

// The label alone is any user's, who must not stop a node.
func TestAUsersPodWithTheLabelOfAWSsDaemonStopsNothing(t *testing.T) {
	for what, change := range map[string]func(*kube.Pod){
		"with an address of its own":             func(p *kube.Pod) { p.HostNetwork = false },
		"in another namespace, with its address": func(p *kube.Pod) { p.Namespace, p.HostNetwork = "team", false },
		"of another component":                   func(p *kube.Pod) { p.Labels = map[string]string{"k8s-app": "kube-proxy"} },
	} {
		cluster := &shared{synced: true, pods: []kube.Pod{awsNodePod("aws-node-1", change)}}
		g := New(Deps{cluster, cluster, func() {}, slog.New(slog.DiscardHandler)})
		g.Check()
		if freeze, why := g.Freeze(); freeze == trunkline.FreezeAll || g.Yields() || g.MayBeBeside() || g.Admit(t.Context(), kube.Pod{}) != nil || len(g.Problems())+len(cluster.events) > 0 {
			t.Errorf("%s: frozen (%s)", what, why)
		}
	}
}
