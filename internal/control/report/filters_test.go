package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// withFilters is a cluster with two pods of another CNI, of which one has filters.
type withFilters struct {
	unbraked
	pods   []kube.Pod
	found  map[netip.Addr]string
	err    error
	beside bool // AWS's daemon
	events []string
	legacy []string // chains
	why    error    // they are left
}

func (c *withFilters) Pods() []kube.Pod { return c.pods }

func (c *withFilters) NodeWarning(reason, message string) {
	c.events = append(c.events, reason+": "+message)
}

func foreignPod(name, addr string) kube.Pod {
	return kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: name}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
}

func newWithFilters(t *testing.T) (*withFilters, *Reporter) {
	c := &withFilters{
		pods:  []kube.Pod{foreignPod("web", "10.0.0.7"), foreignPod("db", "10.0.0.8")},
		found: map[netip.Addr]string{netip.MustParseAddr("10.0.0.7"): "eni1: handle_ingress", netip.MustParseAddr("10.0.0.1"): "eth0: other"},
	}
	return c, New(config.Config{}, Deps{
		Log: slog.New(slog.DiscardHandler), State: statetest.Open(t, t.TempDir()), Cluster: c, Events: c, Backend: config.BackendPodCIDR, Problems: noProblems, Enforcement: off,
		Left: Left{
			Filtered: func(context.Context) (map[netip.Addr]string, error) { return c.found, c.err },
			Legacy:   func() (chains []string, why, err error) { return c.legacy, c.why, nil },
		},
		OtherAgent: func() bool { return c.beside },
	})
}

func TestPodsThatKeepTheProgramsOfAnotherAgentAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := newWithFilters(t)
		observe := func() []string {
			t.Helper()
			if err := r.findFilters(t.Context()); err != nil {
				t.Fatal(err)
			}
			return r.status().Warnings
		}
		warnings := observe()
		if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "on the links of default/web (eni1: handle_ingress) another agent") || !strings.HasSuffix(warnings[0], "Restart these pods") {
			t.Errorf("warnings %q", warnings)
		}
		if len(c.events) != 1 || !strings.HasPrefix(c.events[0], "ProgramsNotUpdated: On the links of default/web (eni1: handle_ingress)") {
			t.Errorf("events %q", c.events)
		}
		if observe(); len(c.events) != 1 {
			t.Errorf("events repeated at once: %q", c.events)
		}
		time.Sleep(policiesEvery)
		if observe(); len(c.events) != 2 {
			t.Errorf("events after an hour: %q", c.events)
		}
		c.found[netip.MustParseAddr("10.0.0.8")] = "eni2: handle_ingress"
		if observe(); len(c.events) != 3 || !strings.Contains(c.events[2], "default/db (eni2: handle_ingress), default/web") {
			t.Errorf("events after another pod was found: %q", c.events)
		}
		c.found = nil // the pods were restarted
		if warnings := observe(); len(warnings) > 0 || len(c.events) != 3 {
			t.Errorf("after the restart: %q, %q", warnings, c.events)
		}
	})
}

// AWS's policy agent updates its programs while it runs.
func TestProgramsAreNoWarningWhileAWSsDaemonMayRun(t *testing.T) {
	c, r := newWithFilters(t)
	c.beside = true
	if err := r.findFilters(t.Context()); err != nil || len(c.events) > 0 || len(r.status().Warnings) > 0 {
		t.Errorf("%v, events %q, warnings %q", err, c.events, r.status().Warnings)
	}
	c.beside, c.err = false, errors.New("no buffer space")
	if err := r.findFilters(t.Context()); !errors.Is(err, c.err) {
		t.Errorf("%v, want %v: the loop tries again", err, c.err)
	}
}

func TestOfManyPodsTheFirstAreNamed(t *testing.T) {
	var pods []string
	for n := range 12 {
		pods = append(pods, fmt.Sprintf("p%02d", n))
	}
	if got := named(pods); !strings.HasPrefix(got, "p00, p01") || !strings.HasSuffix(got, "p09 and 2 others") || !slices.IsSorted(pods) {
		t.Errorf("%s", got)
	}
}
