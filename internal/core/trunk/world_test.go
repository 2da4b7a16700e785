package trunk_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const instance = vpc.InstanceID("i-1")

// reporter is the part of testing.T and rapid.T that a world needs.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

// pod is a pod of the world and all groups that it has wanted.
type pod struct {
	trunk.Pod
	wanted []trunk.Groups
	hidden bool // the watch does not show it
	asked  bool // a live GET was made since it ended
}

// world is a node that the plan drives against a simulation of EC2. It checks guarantees after
// every step.
type world struct {
	t       reporter
	shared  bool // another controller makes branches too
	now     time.Time
	c       trunk.Config
	state   trunk.State
	ec2     *simulation
	pods    []*pod
	custom  *trunk.Placement
	devices []int
	brake   cloud.Brake
	flights []trunk.Action
	serial  int
	decided trunk.Decision
	news    bool // a live GET has shown that a pod has ended
	// outcome of a call: "" as EC2 answers it, else the call or its reply is lost, or throttled
	fault func(trunk.Action) string
}

func newWorld(t reporter, c trunk.Config, branches int, subnets ...trunk.Subnet) *world {
	if len(subnets) == 0 {
		subnets = []trunk.Subnet{{ID: "subnet-a", Total: 1000, Free: 1000}}
	}
	limits := trunk.Limits{ENIs: 3, Branches: branches}
	w := &world{t: t, now: epoch, c: c, state: trunk.New(instance), ec2: newSimulation(t, c, limits, subnets...), devices: []int{0}, fault: func(trunk.Action) string { return "" }}
	w.observe(0)
	return w
}

func (w *world) start(n int, groups ...vpc.SecurityGroupID) *pod {
	g := trunk.NewGroups(groups...)
	p := &pod{Pod: trunk.Pod{UID: trunk.PodUID(fmt.Sprintf("pod-%d", n)), Name: fmt.Sprintf("shop/web-%d", n), Groups: g}, wanted: []trunk.Groups{g}}
	w.pods = append(w.pods, p)
	return p
}

func (w *world) change(p *pod, groups ...vpc.SecurityGroupID) {
	p.Groups = trunk.NewGroups(groups...)
	p.wanted = append(p.wanted, p.Groups)
}

func (w *world) end(p *pod) {
	p.Ended = true
	w.ec2.gone[p.UID] = w.now
}

func (w *world) snapshot() trunk.Snapshot {
	s := trunk.Snapshot{
		State: w.state, Limits: w.ec2.limits, Devices: w.devices, Terminated: w.ec2.ended, Brake: w.brake, Shared: w.shared,
		Node: trunk.Placement{Subnets: slices.Clone(w.ec2.subnets), Groups: trunk.NewGroups("sg-node")}, Custom: w.custom, CustomNetworking: w.custom != nil,
	}
	for _, p := range w.pods {
		if !p.hidden && (!p.Ended || p.asked) {
			shown := p.Pod
			if e := w.of(p); e != nil {
				shown.ENI = e.ENI
			}
			s.Pods = append(s.Pods, shown)
		}
	}
	return s
}

// plan plans once. It fails the test if a second plan of the same differs, or the state does
// after them.
func (w *world) plan() trunk.Decision {
	w.t.Helper()
	before := w.state.String()
	w.decided = trunk.Plan(w.snapshot(), w.c, w.now)
	if again := trunk.Plan(w.snapshot(), w.c, w.now); !reflect.DeepEqual(again, w.decided) || w.state.String() != before {
		w.t.Fatalf("planned again:\n%s\nfirst:\n%s\nstate:\n%s\nbefore:\n%s", again, w.decided, w.state, before)
	}
	for _, uid := range w.decided.Confirm {
		for _, p := range w.pods {
			if p.UID == uid && p.Ended && !p.asked {
				p.asked, w.news = true, true
			}
		}
	}
	return w.decided
}

// begin plans once and begins every action. It returns their number.
func (w *world) begin() int {
	w.t.Helper()
	busy := make(map[trunk.BranchID]bool)
	for _, a := range w.plan().Actions {
		if a.Why == "" || a.Instance != instance {
			w.t.Fatalf("%s of %q has why %q", a, a.Instance, a.Why)
		}
		if busy[a.Branch] && a.Branch != "" {
			w.t.Fatalf("two actions for %s:\n%s", a.Branch, w.decided)
		}
		busy[a.Branch] = busy[a.Branch] || a.Kind != trunk.Release // which is no call
		if a.ID == "" {
			w.checkWarm(a)
			w.serial++
			a.ID = cloud.ActionID(fmt.Sprintf("act-%03d", w.serial))
		}
		w.beginOne(a)
	}
	w.state = w.written(w.state)
	w.check()
	return len(w.decided.Actions)
}

// checkWarm fails the test if a branch for pods to come takes of the last third.
func (w *world) checkWarm(a trunk.Action) {
	w.t.Helper()
	if a.Kind != trunk.CreateBranch || a.Pod != "" {
		return
	}
	n := 1
	for _, b := range w.state.Branches {
		if b.Stage != trunk.Deleting {
			n++
		}
	}
	subnet := w.ec2.subnet(a.Subnet)
	if 3*n > 2*w.ec2.limits.Branches || 3*(subnet.Free-1) < subnet.Total || w.ec2.limits.Branches < w.c.WarmFrom {
		w.t.Fatalf("%s is the branch %d of %d, in a subnet with %d of %d free addresses\n%s\n%s", a, n, w.ec2.limits.Branches, subnet.Free, subnet.Total, w.state, w.decided)
	}
}

func (w *world) beginOne(a trunk.Action) {
	w.t.Helper()
	next, err := trunk.Begin(w.state, a, w.c, w.now)
	if err != nil {
		w.t.Fatalf("%v\n%s\n%s", err, w.state, w.decided)
	}
	w.state = next
	if a.Kind != trunk.Release && a.Kind != trunk.Adopt {
		w.flights = append(w.flights, a)
	}
}

// written is a state as a new process reads it.
func (w *world) written(s trunk.State) (read trunk.State) {
	raw, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(raw, &read)
	}
	if err != nil || read.String() != s.String() {
		w.t.Fatalf("read back: %v\n%s\nwritten:\n%s", err, read, s)
	}
	return read
}

// finish ends the call of a flight.
func (w *world) finish(i int) {
	w.t.Helper()
	a := w.flights[i]
	w.flights = slices.Delete(w.flights, i, i+1)
	var o trunk.Outcome
	var f *trunk.Failure
	switch fault := w.fault(a); fault {
	case "":
		o, f = w.ec2.call(a, w.now)
	case "reply lost":
		w.ec2.call(a, w.now)
		f = &trunk.Failure{Reason: trunk.FailOther, Message: fault}
	case "call lost":
		f = &trunk.Failure{Reason: trunk.FailOther, Message: fault}
	default:
		f = &trunk.Failure{Reason: trunk.Reason(fault), Definite: true, Message: fault}
	}
	complete := func(s trunk.State) trunk.State {
		if f != nil {
			return trunk.Fail(s, a.ID, *f, w.c, w.now)
		}
		return trunk.Settle(s, a.ID, o, w.c, w.now)
	}
	before, text := w.state, w.state.String()
	w.state = complete(before)
	if before.String() != text {
		w.t.Fatalf("the completion of %s has changed the state that it was given", a)
	}
	if twice := complete(w.state); !reflect.DeepEqual(twice, w.state) {
		w.t.Fatalf("a duplicate completion of %s changes the state:\n%s\nto\n%s", a, w.state, twice)
	}
	w.check()
}

func (w *world) finishAll() {
	for len(w.flights) > 0 {
		w.finish(0)
	}
}

// restart ends the process. Calls in flight arrive at EC2 or do not.
func (w *world) restart(arrives func(trunk.Action) bool) {
	for _, a := range w.flights {
		if arrives(a) {
			w.ec2.call(a, w.now)
		}
	}
	w.flights = nil
	w.state = trunk.Restart(w.written(w.state), w.now)
}

func (w *world) observe(stale time.Duration) {
	o := trunk.Observation{At: w.now, Complete: true, Interfaces: w.ec2.describe()}
	if stale > 0 {
		o.Interfaces = w.ec2.stale(w.now.Add(-stale))
	}
	w.state = trunk.Observe(w.state, o, w.c, w.now)
	w.check()
}

// settle plans, begins and finishes until no action is planned.
func (w *world) settle() {
	w.t.Helper()
	for range 60 {
		w.news = false
		n := w.begin()
		if w.decided.Observe != "" {
			w.observe(0)
		} else if n == 0 && len(w.flights) == 0 && !w.news {
			return
		}
		w.finishAll()
	}
	w.t.Fatalf("no fixpoint:\n%s\n%s", w.state, w.decided)
}

// pass settles again and again while time passes.
func (w *world) pass(d, step time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(step) {
		w.settle()
		w.observe(0)
	}
	w.settle()
}

// check fails the test if the state, or the branch of a pod, breaks a guarantee.
func (w *world) check() {
	w.t.Helper()
	vlans, pods := make(map[int]trunk.BranchID), make(map[trunk.PodUID]trunk.BranchID)
	for _, b := range w.state.Branches {
		if other, taken := vlans[b.VLAN]; taken && b.VLAN != 0 {
			w.t.Fatalf("%s and %s hold VLAN %d\n%s", b.ID, other, b.VLAN, w.state)
		}
		vlans[b.VLAN] = b.ID
		if other, taken := pods[b.Pod]; taken && b.Pod != "" {
			w.t.Fatalf("%s has %s and %s\n%s", b.Pod, b.ID, other, w.state)
		}
		pods[b.Pod] = b.ID
	}
	for _, p := range w.pods {
		e := w.of(p)
		if e == nil || p.Ended || e.tampered {
			continue
		}
		if e.Association == "" || !slices.ContainsFunc(p.wanted, e.Groups.Equal) {
			w.t.Fatalf("%s uses %s %q with %s, it wants %s\n%s", p.UID, e.ENI, e.Association, e.Groups, p.Groups, w.state)
		}
	}
}

// of is the branch that a pod uses at EC2: the simulation refuses a second one.
func (w *world) of(p *pod) *eni {
	for _, e := range w.ec2.enis {
		if e.user == p.UID {
			return e
		}
	}
	return nil
}
