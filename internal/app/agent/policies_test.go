package agent

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/guard"
	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// noPolicies are the objects of a cluster without policies.
type noPolicies struct{ known bool }

func (noPolicies) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (n noPolicies) Known() bool                 { return n.known }
func (n noPolicies) Synced() bool                { return n.known }
func (noPolicies) Copied() bool                  { return false }
func (noPolicies) Any() bool                     { return false }
func (noPolicies) Take() kube.PolicyChanges      { return kube.PolicyChanges{} }
func (noPolicies) Again()                        {}
func (noPolicies) NeedPods(bool)                 {}

// assembled returns an agent with its controllers, of settings in the form of flags.
func assembled(t *testing.T, objects PolicyObjects, flags map[string]string) *agent {
	t.Helper()
	flags["state-dir"] = t.TempDir()
	cfg, err := config.Load(config.Sources{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	r, log := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	a := &agent{cfg: cfg, deps: Deps{Registry: r, Log: log}, log: log, metrics: newMetrics(r), events: quiet{}}
	if objects != nil {
		a.deps.Policies = func(func()) PolicyObjects { return objects }
	}
	a.cluster = guarded{quiet{}, guard.New(guard.Deps{Cluster: quiet{}, Events: quiet{}, Log: log}), modes{}}
	a.state = statetest.Open(t, t.TempDir())
	statetest.Observe(t, a.state)
	a.reporter = report.New(cfg, report.Deps{State: a.state, Cluster: quiet{}, Registry: r, Log: log})
	a.backend = a.podCIDRBackend()
	if err := a.assemble(); err != nil {
		t.Fatal(err)
	}
	return a
}

// A pod waits for its policies by a component of the ADD.
func TestPoliciesTakePartInEachADDUnlessTheyAreOff(t *testing.T) {
	for _, c := range []struct {
		what    string
		objects PolicyObjects
		setting string
		want    report.Enforcement
		on      bool
	}{
		{"by default", noPolicies{known: true}, "", report.Enforcement{Known: true}, true},
		{"on, and not known yet", noPolicies{}, "on", report.Enforcement{}, true},
		{"off", noPolicies{known: true}, "off", report.Enforcement{Off: true}, false},
		{"without a cluster", nil, "on", report.Enforcement{Off: true}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			flags := map[string]string{}
			if c.setting != "" {
				flags["network-policy"] = c.setting
			}
			a := assembled(t, c.objects, flags)
			takesPart := slices.ContainsFunc(a.cni.Components, func(one cni.Component) bool { return one == cni.Component(a.policies) })
			_, loops := a.loops()["network policy"]
			if takesPart != c.on || loops != c.on || (a.policies != nil) != c.on {
				t.Errorf("takes part %v, has a loop %v, exists %v; want %v", takesPart, loops, a.policies != nil, c.on)
			}
			if got := a.policies.enforcement(); got != c.want {
				t.Errorf("reported %+v, want %+v", got, c.want)
			}
			if err := a.policies.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// unlisted is a cluster of which only copies are known.
type unlisted struct{ quiet }

func (unlisted) Synced() bool { return false }

// copied are group objects of which only copies are known.
type copied struct{ GroupObjects }

func (copied) Synced() bool { return false }

// Calls are answered at once when all is listed, and soon if the API server is down.
func TestTheAgentWaitsForTheListsBeforeItAnswersCallsAndNotForLong(t *testing.T) {
	listed := &policies{objects: noPolicies{known: true}}
	for name, c := range map[string]struct {
		cluster  Cluster
		policies *policies
		groups   *groups
		want     time.Duration
	}{
		"no policies and groups": {quiet{}, nil, nil, 0},
		"listed":                 {quiet{}, listed, &groups{}, 0},
		"pods are a copy":        {unlisted{}, listed, nil, listedWithin},
		"policies are a copy":    {quiet{}, &policies{objects: noPolicies{}}, nil, listedWithin},
		"groups are a copy":      {quiet{}, nil, &groups{objects: copied{}}, listedWithin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &agent{cluster: guarded{c.cluster, nil, modes{}}, policies: c.policies, backend: &backend{groups: c.groups}}
				began := time.Now()
				awaitLists(t.Context(), a)
				if took := time.Since(began); took != c.want {
					t.Errorf("waited %s, want %s", took, c.want)
				}
			})
		})
	}
}

// A snapshot that nothing keeps up to date would be in force at a later start.
func TestASnapshotOfPoliciesIsNotKeptByAnAgentThatEnforcesNone(t *testing.T) {
	cfg := defaults(t)
	path := PolicySnapshot(cfg)
	for _, file := range []string{path, path + ".peers"} {
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := kube.RemovePolicySnapshot(path); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(cfg.StateDir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
