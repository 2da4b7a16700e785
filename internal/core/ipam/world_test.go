package ipam_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

var _ = flag.Bool("update", false, "rewrite transcripts")

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// reporter is the part of testing.T and rapid.T that a world needs.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a node driven by ipam against a simulation of EC2. It checks invariants after
// every step.
type world struct {
	t      reporter
	now    time.Time
	ledger *ipam.Ledger
	shadow *ipam.Ledger // rebuilt from records only
	quick  bool         // without the shadow
	config ipam.Config
	brake  cloud.Brake
	ec2    *simulation

	owners  map[netip.Addr]endpoint.ID // the endpoint that Assign returned each address for
	pending []ipam.Pending
	decided ipam.Decision
	flights []cloud.Action
}

func newWorld(t reporter, limits ipam.Limits, config ipam.Config, sizes ...int) *world {
	w := &world{
		t: t, now: epoch, config: config, ec2: newSimulation(t, limits, sizes...),
		ledger: ipam.New(config.Settings()), shadow: ipam.New(config.Settings()), owners: make(map[netip.Addr]endpoint.ID),
	}
	w.ec2.makeENI(w.ec2.subnets[0], 0, w.now).attached = true
	w.observe()
	return w
}

func (w *world) observe() []ipam.Drift {
	records, drift := w.ledger.Observe(w.ec2.describe(), w.now)
	w.journal(records)
	return drift
}

// journal replays records into the shadow and compares it with the ledger.
func (w *world) journal(records []ipam.Record) {
	w.t.Helper()
	if len(records) == 0 || w.quick {
		return
	}
	if err := w.shadow.Replay(records); err != nil {
		w.t.Fatalf("%v", err)
	}
	w.shadow.View(w.now) // ends cool-downs that are over
	w.ledger.View(w.now)
	want, got := w.ledger.Records(), w.shadow.Records()
	if !reflect.DeepEqual(want, got) {
		w.t.Fatalf("the replayed ledger differs (-ledger +replayed):\n%s",
			cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})))
	}
}

func (w *world) snapshot() ipam.Snapshot {
	s := ipam.Snapshot{
		Node: cloud.Node{Instance: "i-1", Cluster: "lab"}, View: w.ledger.View(w.now), Pending: slices.Clone(w.pending), Limits: w.ec2.limits,
		Groups: []vpc.SecurityGroupID{"sg-1"}, Brake: w.brake,
	}
	for _, n := range w.ec2.subnets {
		s.Subnets = append(s.Subnets, ipam.Subnet{ID: n.id, CIDR: n.cidr, Free: n.free(), SameRoutes: true})
	}
	return s
}

// begin plans once and begins every action.
func (w *world) begin() int {
	w.t.Helper()
	w.decided = ipam.Plan(w.snapshot(), w.config, w.now)
	for _, a := range w.decided.Actions {
		if a.Why == "" {
			w.t.Fatalf("%s has no why", a)
		}
		if a.Instance != "i-1" {
			w.t.Fatalf("%s has instance %q, want i-1", a, a.Instance)
		}
		a.ID = cloud.ActionID(fmt.Sprintf("act-%03d", w.ec2.number()+1))
		records, err := w.ledger.Begin(a, w.now)
		if err != nil {
			w.t.Fatalf("begin an action of the plan: %v", err)
		}
		w.journal(records)
		w.flights = append(w.flights, w.inFlight(a.ID))
	}
	w.check()
	return len(w.decided.Actions)
}

func (w *world) inFlight(id cloud.ActionID) cloud.Action {
	for _, a := range w.ledger.View(w.now).InFlight {
		if a.ID == id {
			return a
		}
	}
	w.t.Fatalf("action %s is not in flight", id)
	return cloud.Action{}
}

// finish carries out the i-th action in flight.
func (w *world) finish(i int) {
	w.t.Helper()
	a := w.flights[i]
	w.flights = slices.Delete(w.flights, i, i+1)
	w.checkRelease(a)
	result, failure := w.ec2.execute(a, w.now)
	var records []ipam.Record
	var err error
	if failure != nil {
		records, err = w.ledger.Fail(a.ID, *failure, w.now)
	} else {
		records, err = w.ledger.Settle(a.ID, result, w.now)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", a, err)
	}
	w.journal(records)
	w.check()
}

func (w *world) finishAll() {
	w.t.Helper()
	for len(w.flights) > 0 {
		w.finish(0)
	}
}

// settle plans and executes until there is nothing to do; it returns the rounds.
func (w *world) settle() int {
	w.t.Helper()
	for round := range 200 {
		if w.begin() == 0 && len(w.flights) == 0 {
			return round
		}
		w.finishAll()
	}
	w.t.Fatalf("no fixpoint after 200 rounds:\n%s\n%s", w.snapshot(), w.decided)
	return 0
}

// pass advances the clock by d in steps, and settles after each.
func (w *world) pass(d, step time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(step)
		w.settle()
	}
}

// checkRelease asserts that an action takes no address from a pod, and no interface too
// early.
func (w *world) checkRelease(a cloud.Action) {
	w.t.Helper()
	e, released := w.ec2.enis[a.ENI], a.Addresses
	if e == nil {
		return // EC2 rejects it
	}
	switch a.Kind {
	case cloud.Detach:
		if len(e.prefixes) > 0 {
			w.t.Fatalf("%s: pods of another CNI have addresses of %v", a, e.prefixes)
		}
		if e.device == 0 {
			w.t.Fatalf("%s: the primary interface", a)
		}
		if age := w.now.Sub(e.born); age < w.config.MinENIAge {
			w.t.Fatalf("%s: only %s old", a, age)
		}
		return
	case cloud.DeleteENI:
		released = addrs(e.addrs)
	case cloud.UnassignAddresses:
	default:
		return
	}
	for _, addr := range released {
		if k, used := w.owners[addr]; used {
			w.t.Fatalf("%s is released while endpoint %d uses it", addr, k)
		}
	}
}

// check asserts the invariants.
func (w *world) check() {
	w.t.Helper()
	if err := ipam.CheckIndexes(w.ledger); err != nil {
		w.t.Fatalf("%v", err)
	}
	v := w.ledger.View(w.now)
	attached := 0
	for _, e := range v.ENIs {
		if e.Device >= 0 && e.Card == 0 {
			attached++
		}
		if len(e.Addresses) > w.ec2.limits.AddressesPerENI-1 {
			w.t.Fatalf("%s holds %d addresses", e.ID, len(e.Addresses))
		}
		for _, a := range e.Addresses {
			if _, used := w.owners[a.Addr]; used && a.State != ipam.Assigned && a.State != ipam.Quarantined {
				w.t.Fatalf("%s is in use, the ledger has it as %s", a.Addr, a.State)
			}
			if a.State == ipam.Assigned && !w.ec2.enis[e.ID].addrs[a.Addr] {
				w.t.Fatalf("%s is assigned and EC2 does not have it on %s", a.Addr, e.ID)
			}
		}
	}
	if attached > w.ec2.limits.ENIs {
		w.t.Fatalf("%d interfaces on the instance", attached)
	}
	if n := w.decided.Numbers; n.Have > n.Capacity {
		w.t.Fatalf("holds or requests %d addresses of %d", n.Have, n.Capacity)
	}
}

func holder(n int) ipam.Holder {
	return ipam.Holder{
		Endpoint: endpoint.ID(n%int(endpoint.MaxID) + 1), Key: endpoint.Key{ContainerID: fmt.Sprintf("container-%04d", n), IfName: "eth0"},
		Pod: endpoint.Pod{UID: fmt.Sprintf("uid-%04d", n), Namespace: "default", Name: fmt.Sprintf("pod-%d", n)},
	}
}

// bind makes a pod pending, as the scheduler does when it binds it.
func (w *world) bind(n int) {
	o := holder(n)
	w.pending = append(w.pending, ipam.Pending{UID: o.Pod.UID, Namespace: o.Pod.Namespace, Name: o.Pod.Name, Bound: w.now})
}

// add is a CNI ADD that does not wait.
func (w *world) add(n int) (ipam.Lease, error) {
	w.t.Helper()
	o := holder(n)
	lease, records, err := w.ledger.Assign(o, w.now)
	w.journal(records)
	if err != nil {
		if !errors.Is(err, ipam.ErrNoAddress) {
			w.t.Fatalf("assign: %v", err)
		}
		return lease, err
	}
	if k, used := w.owners[lease.Addr]; used && k != o.Endpoint {
		w.t.Fatalf("%s is assigned to endpoint %d while endpoint %d uses it", lease.Addr, o.Endpoint, k)
	}
	w.owners[lease.Addr] = o.Endpoint
	w.pending = slices.DeleteFunc(w.pending, func(p ipam.Pending) bool { return p.UID == o.Pod.UID })
	w.check()
	return lease, nil
}

// del is a CNI DEL that deletes the link at once.
func (w *world) del(n int) {
	w.t.Helper()
	o := holder(n)
	for addr, k := range w.owners {
		if k == o.Endpoint {
			delete(w.owners, addr)
		}
	}
	w.journal(w.ledger.Release(o.Endpoint, w.now))
	w.check()
}

func testWorld(t *testing.T, limits ipam.Limits, change func(*ipam.Config), sizes ...int) *world {
	t.Helper()
	c := ipam.DefaultConfig()
	if change != nil {
		change(&c)
	}
	return newWorld(t, limits, c, sizes...)
}
