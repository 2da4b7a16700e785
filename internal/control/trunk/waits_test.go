package trunk_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/sim/cloud"
)

// large has 9 branches.
func large(s *cloud.Spec) { s.Instances[0].Type = "m5.large" }

// saying are the messages of the events of an object that contain a text.
func saying(w *world, object, text string) (out []string) {
	for _, e := range w.allEvents() {
		if e.InvolvedObject.Name == object && strings.Contains(e.Message, text) {
			out = append(out, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
		}
	}
	return out
}

// gauges are those of branches that are not 0, by name and state.
func gauges(t *testing.T, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			if v := m.GetGauge().GetValue(); v != 0 {
				out[name] = v
			}
		}
	}
	return out
}

func TestAPodThatWaitsForABranchHasOneEventThatSaysWhy(t *testing.T) {
	registry := prometheus.NewRegistry()
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.registry = registry
		w.boot()
		w.policy("web", "web", "web")
		for n := range 10 {
			w.start(fmt.Sprint("pod", n), "web")
		}
		w.elapse(9 * time.Second)
		waiting := ""
		for n := range 10 {
			if name := fmt.Sprint("pod", n); w.branch(name) == nil {
				waiting = name
			}
		}
		const why = "all of the 9 branches"
		if got := saying(w, waiting, why); len(got) > 0 {
			w.t.Errorf("after 9 s: %q", got)
		}
		w.elapse(10 * time.Minute)
		if got := saying(w, waiting, why); len(got) != 1 || !strings.HasPrefix(got[0], "Warning BranchAllocationFailed: ") {
			w.t.Errorf("after 10 minutes: %q", got)
		}
		want := map[string]float64{"trunkline_trunk_branches bound": 9, "trunkline_trunk_pods_waiting": 1}
		if got := gauges(t, registry); !maps.Equal(got, want) {
			w.t.Errorf("gauges that are not 0: %v, want %v", got, want)
		}
	}, large)
}

// The record of the node was lost, and none of its pods is shown with its branch.
func TestALostRecordIsReportedOnTheNode(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		for n := range 7 {
			w.start(fmt.Sprint("pod", n), "web")
		}
		w.elapse(20 * time.Second)
		before := len(w.branches())
		w.stop()
		object := w.cniNode()
		object.Status.Trunkline = nil
		w.Put(cniAt, &object)
		for n := range 7 {
			w.Delete(podsAt, fmt.Sprint("shop/pod", n))
		}
		w.boot()
		w.elapse(2 * time.Hour)
		if got := saying(w, "n1", "none is deleted"); len(got) != 1 || !strings.HasPrefix(got[0], "Warning TrunkENIWaiting: ") {
			w.t.Errorf("events of the node: %q", got)
		}
		if n := len(w.branches()); n != before {
			w.t.Errorf("%d branches, before %d", n, before)
		}
	})
}

// Another program deletes the branch of a running pod, and EC2 gives its address to the next one: the
// record can still be read by a process that starts.
func TestTheRecordIsReadAfterAnAddressWasGivenAgain(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		for { // until no address is free
			if _, err := w.cloud.CreateInterface(cloud.NewInterface{Subnet: w.cloud.State().Interfaces[w.branch("one").ENI].Subnet}); err != nil {
				break
			}
		}
		old := w.branch("one")
		i := w.cloud.State().Interfaces[old.ENI]
		if err := errors.Join(w.cloud.Interface(i.ID).Disassociate(i.Trunk.ID), w.cloud.Interface(i.ID).Delete()); err != nil {
			w.t.Fatal(err)
		}
		w.start("two", "web")
		w.elapse(5 * time.Minute)
		if got := w.branch("two"); got == nil || got.IPv4 != old.IPv4 {
			w.t.Fatalf("the branch of two is %+v, want one with %s\n%s", got, old.IPv4, w.ledger())
		}
		w.stop()
		w.boot()
		w.end("two")
		w.elapse(30 * time.Minute)
		if n := len(w.branches()); n > 0 {
			w.t.Errorf("%d branches are left\n%s", n, w.ledger())
		}
	}, large, func(s *cloud.Spec) { s.Subnets[0].CIDR = netip.MustParsePrefix("10.0.0.0/28") })
}
