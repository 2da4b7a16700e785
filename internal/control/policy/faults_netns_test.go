//go:build netns

package policy

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// qdisc replaces the qdisc of programs of a link by another: "ingress" takes none at egress.
func (r *rig) qdisc(link, remove, add string) {
	r.t.Helper()
	for _, args := range [][]string{{"del", remove}, {"add", add}} {
		if args[1] == "" {
			continue
		}
		if out, err := exec.Command("tc", "-n", r.node.Name, "qdisc", args[0], "dev", link, args[1]).CombinedOutput(); err != nil {
			r.t.Fatalf("tc qdisc %s dev %s %s: %v: %s", args[0], link, args[1], err, out)
		}
	}
}

func (r *rig) endpoint(name string) endpoint.Endpoint {
	r.t.Helper()
	for _, e := range r.store.Endpoints() {
		if e.Pod.Name == name {
			return e
		}
	}
	r.t.Fatalf("no endpoint of %s", name)
	return endpoint.Endpoint{}
}

// A link that takes no programs cuts its pod off, and hinders the enforcement at no other.
func TestALinkThatTakesNoProgramsIsCutOffAndAllOthersAreEnforced(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	for _, name := range []string{"a", "b", "c"} {
		r.add(name)
		r.echo(name, 80)
	}
	r.echo("b", 81)
	ofB := r.endpoint("b").Link
	r.qdisc(ofB, "clsact", "ingress")
	r.qdisc("eth0", "", "ingress")
	state.Set(r.store, r.store.NetworkTables().Devices, state.Device{MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, ENI: "eni-1", Link: "eth0"})

	r.server.Put(networkPolicies, allow("c", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	r.mustReach("a", "c", 80)
	r.mustNotReach("b", "c", 80)
	r.mustNotReach("a", "b", 80) // no policy selects it
	list := Faults(r.Controller)
	if len(list) != 2 || !strings.HasPrefix(list[0], "pod default/b is cut off: attach ") || !strings.HasPrefix(list[1], "interface eth0 ") {
		t.Errorf("faults %q", list)
	}
	for _, want := range []string{"default/b uid-b: CutOff: ", "node: NotGuarded: "} {
		if !slices.ContainsFunc(r.events.all(), func(e string) bool { return strings.HasPrefix(e, want) }) {
			t.Errorf("events %q, want one with %q", r.events.all(), want)
		}
	}
	before := r.events.count()
	for range 3 {
		r.Loop.MarkFull()
		r.mustReach("a", "c", 80)
	}
	if n := r.events.count(); n != before {
		t.Errorf("%d events of the same faults, want %d", n, before)
	}

	// What changes meanwhile is in force once the link takes programs.
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("the change", func() bool { return len(r.selecting("b")) == 1 })
	r.mustNotReach("a", "b", 80)
	r.qdisc(ofB, "ingress", "")
	r.qdisc("eth0", "ingress", "")
	r.waitUntil("no faults", func() bool { return len(Faults(r.Controller)) == 0 })
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// Another program takes the qdisc away with the programs, while the agent runs.
func TestProgramsThatAreRemovedAreAttachedAgainAndReportedAsDrift(t *testing.T) {
	r := newIsolating(t)
	audited := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.faults.attached) > 0
	}
	r.waitUntil("an audit", audited)
	if n := valueOf(t, r.Drift); n != 0 {
		t.Errorf("%v of drift before", n)
	}
	r.qdisc(r.endpoint("b").Link, "clsact", "")
	r.waitUntil("the drift is counted", func() bool { return valueOf(t, r.Drift) == 1 })
	r.waitUntil("its event", func() bool { // which follows
		return slices.ContainsFunc(r.events.all(), func(e string) bool {
			return strings.Contains(e, "NetworkDrift") && strings.Contains(e, "pod default/b")
		})
	})
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// An agent that starts does not delete the policies of a pod that is cut off.
func TestAPodThatIsCutOffAtAStartHasItsPoliciesLater(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	ofB := r.endpoint("b").Link
	r.qdisc(ofB, "clsact", "ingress")
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies enforced", r.Enforcing)
	r.mustNotReach("a", "b", 80)
	r.qdisc(ofB, "ingress", "")
	r.waitUntil("no faults", func() bool { return len(Faults(r.Controller)) == 0 })
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// unlisted is a node of which a list of links may miss those of pods.
type unlisted struct {
	*link.Host
	hide bool // the caller of Pods holds the controller's lock
}

func (u *unlisted) Pods(ctx context.Context) ([]link.Wired, error) {
	if u.hide {
		return nil, nil
	}
	return u.Host.Pods(ctx)
}

func TestAnEndpointOfWhichNoLinkIsListedForAMomentLeavesNoEntry(t *testing.T) {
	r := newRig(t)
	links := &unlisted{Host: r.host}
	r.stop()
	r.server.Put(networkPolicies, allow("a", "", 0))
	r.start()
	r.mu.Lock()
	r.Links = links
	r.mu.Unlock()
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.waitUntil("policies enforced", r.Enforcing)
	entries := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		all, err := r.datapath.Maps.Links.All()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := entries(); n != 1 {
		t.Fatalf("%d entries of links, want 1", n)
	}
	r.mu.Lock()
	links.hide = true
	err := r.place(t.Context())
	links.hide = false
	r.mu.Unlock()
	if n := entries(); err != nil || n != 1 {
		t.Errorf("%v; %d entries while no link is listed, want that it stays", err, n)
	}
	statetest.Remove(t, r.store, r.endpoint("a"))
	r.setPods()
	r.waitUntil("the end of the endpoint", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.wired) == 0 })
	if n := entries(); n != 0 {
		t.Errorf("%d entries of links are left", n)
	}
}

// selecting are the policies that select a pod, as they were committed last.
func (r *rig) selecting(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for id, p := range r.wired {
		if p.endpoint.Pod.Name == name {
			for _, ref := range r.engine.Selecting(id) {
				list = append(list, ref.String())
			}
		}
	}
	return list
}
