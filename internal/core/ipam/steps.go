package ipam

import (
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// steps are the actions of a plan, beside those in flight. An interface gets one action at
// a time, and a device index one interface.
type steps struct {
	node     cloud.Node // completes the actions
	now      time.Time
	inFlight []cloud.Action
	planned  []cloud.Action
	busy     map[vpc.ENIID]bool
	devices  map[int]bool // in use on the default network card
}

func newSteps(s Snapshot, now time.Time) *steps {
	t := &steps{node: s.Node, now: now, inFlight: s.InFlight, busy: make(map[vpc.ENIID]bool), devices: make(map[int]bool)}
	for _, e := range s.ENIs {
		if e.Device >= 0 && e.Card == vpc.DefaultCard {
			t.devices[e.Device] = true
		}
	}
	for _, a := range s.InFlight {
		t.reserve(a)
	}
	return t
}

// reserve keeps the interface and the device index of an action for it.
func (t *steps) reserve(a cloud.Action) {
	if a.ENI != "" {
		t.busy[a.ENI] = true
	}
	if a.Kind == cloud.Attach {
		t.devices[a.Device] = true
	}
}

// do plans an action, completed for the node.
func (t *steps) do(a cloud.Action) {
	t.planned = append(t.planned, t.node.Complete(a, t.now))
	t.reserve(a)
}

// free reports whether e exists at EC2 and has no action in flight or planned.
func (t *steps) free(e ENIView) bool {
	return !t.busy[e.ID] && e.managed() && e.Missing.IsZero()
}

// device is the first free device index of the default network card.
func (t *steps) device(limit int) (int, bool) {
	for device := range limit {
		if !t.devices[device] {
			return device, true
		}
	}
	return 0, false
}

// growing reports whether an action is planned that requests addresses.
func (t *steps) growing() bool {
	return slices.ContainsFunc(t.planned, func(a cloud.Action) bool {
		return a.Kind == cloud.AssignAddresses || a.Kind == cloud.CreateENI
	})
}

// releasing reports whether a release is in flight or planned.
func (t *steps) releasing() bool {
	frees := func(a cloud.Action) bool { return a.Kind.Frees() }
	return slices.ContainsFunc(t.inFlight, frees) || slices.ContainsFunc(t.planned, frees)
}

// adding names the actions, in flight or planned, that add addresses; empty without any.
func (t *steps) adding() string {
	var out []string
	for _, a := range slices.Concat(t.inFlight, t.planned) {
		if !a.Kind.Frees() {
			out = append(out, a.String())
		}
	}
	return strings.Join(out, ", ")
}
