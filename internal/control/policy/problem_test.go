package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// cluster is the policies of a cluster, and records events of the node.
type cluster struct {
	known, any     bool
	synced, copied bool
	events         []string
}

func (c *cluster) Known() bool            { return c.known }
func (c *cluster) Synced() bool           { return c.synced }
func (c *cluster) Copied() bool           { return c.copied }
func (c *cluster) Any() bool              { return c.any }
func (*cluster) Take() kube.PolicyChanges { return kube.PolicyChanges{} }
func (*cluster) Again()                   {}
func (*cluster) Pods() []kube.Pod         { return nil }
func (c *cluster) NodeWarning(reason, message string) {
	c.events = append(c.events, reason+": "+message)
}

func (c *cluster) PodWarning(ref kube.PodRef, _, reason, message string) {
	c.events = append(c.events, ref.String()+": "+reason+": "+message)
}

func (c *cluster) PolicyWarning(ref policy.Ref, _, reason, message string) {
	c.events = append(c.events, ref.String()+": "+reason+": "+message)
}

// noLinks is a node without interfaces.
type noLinks struct{}

func (noLinks) Pods(context.Context) ([]link.Wired, error) { return nil, nil }
func (noLinks) AddClsact(context.Context, int) error       { return nil }
func (noLinks) Index(string) (int, error)                  { return 0, nil }

// ipvs is a node with kube-proxy in IPVS mode.
type ipvs struct{ noLinks }

func (ipvs) Index(name string) (int, error) { return map[string]int{"kube-ipvs0": 9}[name], nil }

// IPVS's packets to Services do not pass the hook that has the verdict.
func TestANodeWithIPVSEnforcesNothingAndSaysSo(t *testing.T) {
	of := &cluster{known: true, synced: true, any: true}
	c := New(Deps{
		Log: slog.New(slog.DiscardHandler), State: statetest.Open(t, t.TempDir()), Objects: of, Pods: of, Events: of, Links: ipvs{}, Registry: prometheus.NewRegistry(),
		Open:   func() (*bpf.Datapath, error) { t.Error("the programs are loaded"); return nil, errors.New("no") },
		Report: func() {},
	})
	if _, err := c.pass(t.Context(), true); err == nil || !strings.Contains(c.Problem(), "IPVS") || len(of.events) != 1 {
		t.Errorf("%v, problem %q, events %q", err, c.Problem(), of.events)
	}
}

// A kernel that lacks a feature is reported once, by its name, and a pod is not added as if its
// policies were in force.
func TestANodeThatCannotEnforceSaysWhyAndRefusesPods(t *testing.T) {
	fails, reports := error(nil), 0
	of := &cluster{known: true, synced: true}
	s := statetest.Open(t, t.TempDir())
	statetest.Observe(t, s)
	c := New(Deps{
		Log: slog.New(slog.DiscardHandler), State: s, Objects: of, Pods: of, Events: of, Links: noLinks{}, Registry: prometheus.NewRegistry(),
		Open:   func() (*bpf.Datapath, error) { return nil, fails },
		Report: func() { reports++ },
	})
	e := statetest.Wiring(t, s, "a", "container-a")
	pod := kube.Pod{PodRef: kube.PodRef{Namespace: e.Pod.Namespace, Name: "a"}}
	add := func() error { return errors.Join(c.Admit(t.Context(), pod), c.Ready(t.Context(), e, 7)) }
	if err := add(); err != nil || c.Problem() != "" {
		t.Fatalf("without policies: %v, problem %q", err, c.Problem())
	}

	of.any, fails = true, context.Canceled // the agent stops
	if _, err := c.pass(t.Context(), true); err == nil || len(of.events) > 0 || c.Problem() != "" {
		t.Errorf("%v, problem %q, events %q: want that a stop is no problem of the node", err, c.Problem(), of.events)
	}
	fails = fmt.Errorf("open policy datapath: %w BPF map type ringbuf (5.8)", bpf.ErrUnsupported)
	for range 3 {
		if _, err := c.pass(t.Context(), true); err == nil {
			t.Error("a pass succeeds")
		}
		if err := add(); err == nil || !strings.Contains(err.Error(), "ringbuf") {
			t.Errorf("ADD: %v", err)
		}
	}
	if len(of.events) != 1 || !strings.HasPrefix(of.events[0], "PoliciesNotEnforced: ") || !strings.Contains(of.events[0], "the kernel lacks BPF map type ringbuf (5.8)") {
		t.Errorf("events %q, want one that names the feature", of.events)
	}
	if !strings.Contains(c.Problem(), "ringbuf") || c.Enforcing() || reports != 1 {
		t.Errorf("problem %q, enforcing %v, %d reports", c.Problem(), c.Enforcing(), reports)
	}

	of.any = false
	if _, err := c.pass(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := add(); err != nil || c.Problem() != "" {
		t.Errorf("after the last policy: %v, problem %q", err, c.Problem())
	}
}

// A kernel that lacks a feature keeps no pod from starting that would not be judged, as one with a branch: but not
// while programs of an earlier agent are called, which drop packets of addresses that they do not have.
func TestANodeThatCannotEnforceStartsPodsThatAreSpared(t *testing.T) {
	of := &cluster{known: true, synced: true, any: true}
	s := statetest.Open(t, t.TempDir())
	statetest.Observe(t, s)
	spared, asked := true, ""
	c := New(Deps{
		Log: slog.New(slog.DiscardHandler), State: s, Objects: of, Pods: of, Events: of, Links: noLinks{}, Registry: prometheus.NewRegistry(),
		Open: func() (*bpf.Datapath, error) {
			return nil, fmt.Errorf("%w BPF map type ringbuf (5.8)", bpf.ErrUnsupported)
		},
		Judge:  func(context.Context, ruleset.Programs) error { return nil },
		Spared: func(p kube.Pod) bool { asked = p.Name; return spared },
		Report: func() {},
	})
	e := statetest.Wiring(t, s, "a", "container-a")
	pod := kube.Pod{PodRef: kube.PodRef{Namespace: e.Pod.Namespace, Name: "a"}}
	add := func() error { return errors.Join(c.Admit(t.Context(), pod), c.Ready(t.Context(), e, 7)) }
	for range 2 { // the first finds the problem, the second knows it
		if err := add(); err != nil || asked != "a" {
			t.Errorf("a pod that is spared: %v, asked for %q", err, asked)
		}
	}
	if err := c.Ready(t.Context(), e, 7); err == nil {
		t.Error("a pod that was not admitted is spared")
	}
	if !strings.Contains(c.Problem(), "ringbuf") || len(of.events) != 1 || !strings.Contains(of.events[0], "no SecurityGroupPolicy selects") {
		t.Errorf("problem %q, events %q", c.Problem(), of.events)
	}
	spared = false
	if err := add(); err == nil || !strings.Contains(err.Error(), "ringbuf") {
		t.Errorf("a pod that is not spared: %v", err)
	}
	spared = true
	if err := judge(t.Context(), c.Deps, ruleset.Programs{Forward: "/earlier"}); err != nil {
		t.Fatal(err)
	}
	if err := add(); err == nil {
		t.Error("a pod is spared while the programs of an earlier agent are called")
	}
	if err := judge(t.Context(), c.Deps, ruleset.Programs{}); err != nil {
		t.Fatal(err)
	}
	if err := add(); err != nil {
		t.Errorf("after the chain is removed: %v", err)
	}
}

// The programs at pods' links drop packets that no chain has judged.
func TestProgramsThatAreNotAdoptedAreRemovedWithoutPolicies(t *testing.T) {
	cleared, judged, fails := 0, 0, errors.New("busy")
	of := &cluster{known: true, synced: true}
	c := New(Deps{
		Log: slog.New(slog.DiscardHandler), State: statetest.Open(t, t.TempDir()), Objects: of, Pods: of, Events: of, Links: noLinks{}, Registry: prometheus.NewRegistry(),
		Open:  func() (*bpf.Datapath, error) { return nil, errors.New("no memory") },
		Clear: func() error { cleared++; return fails }, InForce: func() (string, error) { return "", nil },
		Judge:  func(context.Context, ruleset.Programs) error { judged++; return nil },
		Report: func() {},
	})
	if _, err := c.pass(t.Context(), true); err != nil || cleared != 0 {
		t.Errorf("without an earlier agent: %v, cleared %d times", err, cleared)
	}
	if err := c.Adopt(t.Context()); err == nil {
		t.Error("the programs are adopted although they cannot be opened")
	}
	if _, err := c.pass(t.Context(), false); !errors.Is(err, fails) || judged != 0 {
		t.Errorf("while they cannot be removed: %v, chains written %d times", err, judged)
	}
	fails = nil
	for range 2 {
		if _, err := c.pass(t.Context(), false); err != nil || cleared != 2 || judged != 1 {
			t.Errorf("once they can: %v, cleared %d times, chains written %d times", err, cleared, judged)
		}
	}
}

func TestNoPodIsAdmittedWhilePoliciesAreNotKnown(t *testing.T) {
	of := &cluster{}
	c := New(Deps{Objects: of, Registry: prometheus.NewRegistry(), Report: func() {}})
	if err := c.Admit(t.Context(), kube.Pod{}); !errors.Is(err, errUnknown) {
		t.Errorf("%v, want %v", err, errUnknown)
	}
}
