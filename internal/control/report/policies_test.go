package report

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// withPolicies is a cluster with policies, and records the events of the node.
type withPolicies struct {
	Cluster
	found  []string
	err    error
	events []string
}

func (c *withPolicies) Policies(context.Context) ([]string, error) { return c.found, c.err }

func (c *withPolicies) NodeWarning(reason, message string) {
	c.events = append(c.events, reason+": "+message)
}

// The programs of AWS's policy agent outlive it. An event that all traffic is allowed had an
// operator search for the cause of timeouts elsewhere.
func TestTheEventSaysThatPodsOfAWSsCNIKeepTheLastPolicies(t *testing.T) {
	cluster := &withPolicies{found: []string{"1 of NetworkPolicy"}}
	r := &Reporter{Deps: Deps{Log: slog.New(slog.DiscardHandler), Cluster: cluster, Events: cluster, Enforcement: off}}
	if _, err := r.findPolicies(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"what they deny is allowed on pods that Trunkline wired", "as they were when it ended", "restart those pods"} {
		if !strings.Contains(cluster.events[0], part) {
			t.Errorf("%q is not in %q", part, cluster.events[0])
		}
	}
}

// off is of a node that enforces no policies by its settings.
func off() Enforcement { return Enforcement{Off: true} }

func on() Enforcement { return Enforcement{Known: true, Any: true, On: true} }

func TestAnEventOfTheNodeNamesPoliciesThatAreNotEnforced(t *testing.T) {
	unreadable := errors.New("forbidden")
	for name, c := range map[string]struct {
		found []string
		err   error
		on    bool
		event string
	}{
		"none":                        {},
		"some, which are enforced":    {found: []string{"3 of NetworkPolicy", "1 of PolicyEndpoint"}, on: true},
		"one of another kind":         {found: []string{"3 of NetworkPolicy", "2 of ClusterNetworkPolicy"}, on: true, event: "PoliciesNotEnforced: The cluster has network policies (2 of ClusterNetworkPolicy), and Trunkline does not read"},
		"some":                        {found: []string{"3 of NetworkPolicy", "1 of PolicyEndpoint"}, event: "PoliciesNotEnforced: The cluster has network policies (3 of NetworkPolicy, 1 of PolicyEndpoint), and Trunkline enforces none on this node, because network-policy is off"},
		"some, and one is unreadable": {found: []string{"1 of NetworkPolicy"}, err: unreadable, event: "(1 of NetworkPolicy)"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &withPolicies{found: c.found, err: c.err}
			r := &Reporter{Deps: Deps{Log: slog.New(slog.DiscardHandler), Cluster: cluster, Events: cluster, Enforcement: off}}
			if c.on {
				r.Enforcement = on
			}
			if _, err := r.findPolicies(t.Context(), true); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v: the loop tries again", err, c.err)
			}
			if got := strings.Join(cluster.events, "; "); !strings.Contains(got, c.event) || (got == "") != (c.event == "") {
				t.Errorf("events %q, want %q", got, c.event)
			}
		})
	}
}
