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

// world is a node driven by ipam against a simulated EC2. It checks invariants after
// every step.
type world struct {
	t      reporter
	now    time.Time
	ledger *ipam.Ledger
	shadow *ipam.Ledger // rebuilt from records only
	quick  bool         // without the shadow
	config ipam.Config
	limits ipam.Limits
	brake  cloud.Brake

	enis    map[vpc.ENIID]*realENI // what EC2 has
	subnets []*realSubnet
	owners  map[netip.Addr]endpoint.ID // the endpoint that Assign returned each address for
	pending []ipam.Pending
	calls   map[cloud.Kind]int
	next    int
	nextPod int
	live    []int
	decided ipam.Decision
	flights []cloud.Action
	refuse  func(cloud.Action) *cloud.Failure // injected
}

type realENI struct {
	id       vpc.ENIID
	subnet   *realSubnet
	attached bool
	device   int
	addrs    map[netip.Addr]bool
	born     time.Time
}

type realSubnet struct {
	id   vpc.SubnetID
	cidr netip.Prefix
	used map[netip.Addr]bool
	size int // addresses in total
}

func (n *realSubnet) free() int { return n.size - len(n.used) }

func (n *realSubnet) take() (netip.Addr, bool) {
	if n.free() <= 0 {
		return netip.Addr{}, false
	}
	a := n.cidr.Addr()
	for range 4 {
		a = a.Next()
	}
	for n.used[a] {
		a = a.Next()
	}
	n.used[a] = true
	return a, true
}

// m5xlarge holds 4 interfaces with 15 addresses; t3medium 3 with 6.
func m5xlarge() ipam.Limits { return ipam.Limits{ENIs: 4, AddressesPerENI: 15, MaxPods: 58} }
func t3medium() ipam.Limits { return ipam.Limits{ENIs: 3, AddressesPerENI: 6, MaxPods: 17} }

func newWorld(t reporter, limits ipam.Limits, config ipam.Config, sizes ...int) *world {
	w := &world{
		t: t, now: epoch, config: config, limits: limits,
		ledger: ipam.New(config.Settings()), shadow: ipam.New(config.Settings()),
		enis: make(map[vpc.ENIID]*realENI), owners: make(map[netip.Addr]endpoint.ID), calls: make(map[cloud.Kind]int),
	}
	if len(sizes) == 0 {
		sizes = []int{4000}
	}
	for i, size := range sizes {
		w.subnets = append(w.subnets, &realSubnet{
			id:   vpc.SubnetID(fmt.Sprintf("subnet-%d", i)),
			cidr: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/19", i*32)), used: make(map[netip.Addr]bool), size: size,
		})
	}
	primary := w.makeENI(w.subnets[0], 0)
	primary.attached = true
	w.observe()
	return w
}

func (w *world) makeENI(n *realSubnet, count int) *realENI {
	e := &realENI{id: vpc.ENIID(fmt.Sprintf("eni-%02d", w.next)), subnet: n, device: -1, addrs: make(map[netip.Addr]bool), born: w.now}
	w.next++
	if _, ok := n.take(); !ok {
		w.t.Fatalf("subnet %s has no address for %s", n.id, e.id)
	}
	if len(w.enis) == 0 {
		e.device = 0
	}
	w.enis[e.id] = e
	for range count {
		a, ok := n.take()
		if !ok {
			w.t.Fatalf("subnet %s has no address", n.id)
		}
		e.addrs[a] = true
	}
	return e
}

func (w *world) observe() []ipam.Drift {
	var seen []ipam.Observed
	for _, id := range w.ids() {
		e := w.enis[id]
		seen = append(seen, ipam.Observed{ENI: w.row(e), Attached: e.attached, Addresses: addrs(e.addrs)})
	}
	records, drift := w.ledger.Observe(seen, w.now)
	w.journal(records)
	return drift
}

func (w *world) ids() []vpc.ENIID {
	var out []vpc.ENIID
	for id := range w.enis {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

func addrs(m map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	for a := range m {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (w *world) row(e *realENI) ipam.ENI {
	return ipam.ENI{
		ID: e.id, Type: vpc.TypeInterface, Primary: e.device == 0, Device: e.device, Subnet: e.subnet.id,
		SubnetCIDR: e.subnet.cidr, PrimaryIP: e.subnet.cidr.Addr().Next(), Created: e.born,
	}
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
		Node: cloud.Node{Instance: "i-1", Cluster: "lab"}, View: w.ledger.View(w.now), Pending: slices.Clone(w.pending), Limits: w.limits,
		Groups: []vpc.SecurityGroupID{"sg-1"}, Brake: w.brake,
	}
	for _, n := range w.subnets {
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
		w.next++
		a.ID = cloud.ActionID(fmt.Sprintf("act-%03d", w.next))
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
	w.calls[a.Kind]++
	result, failure := w.execute(a)
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

func failed(why cloud.FailReason, text string) *cloud.Failure {
	return &cloud.Failure{Reason: why, Definite: true, Message: text}
}

// execute is the simulated EC2.
func (w *world) execute(a cloud.Action) (cloud.Outcome, *cloud.Failure) {
	w.t.Helper()
	if w.refuse != nil {
		if f := w.refuse(a); f != nil {
			return cloud.Outcome{}, f
		}
	}
	e := w.enis[a.ENI]
	if a.Kind != cloud.CreateENI && e == nil {
		w.t.Fatalf("%s: EC2 does not know it", a)
	}
	switch a.Kind {
	case cloud.CreateENI:
		n := w.subnet(a.Subnet)
		if n.free() < a.Count+1 {
			return cloud.Outcome{}, failed(cloud.FailSubnetExhausted, "InsufficientFreeAddressesInSubnet")
		}
		if a.Count > w.limits.AddressesPerENI-1 {
			w.t.Fatalf("%s: more than an interface holds", a)
		}
		e := w.makeENI(n, a.Count)
		return cloud.Outcome{ENI: e.id, Addresses: addrs(e.addrs)}, nil
	case cloud.Attach:
		return w.attach(a, e)
	case cloud.SetUp:
		if !e.attached {
			w.t.Fatalf("%s: not attached", a)
		}
	case cloud.AssignAddresses:
		if len(e.addrs)+a.Count > w.limits.AddressesPerENI-1 {
			w.t.Fatalf("%s: more than the interface holds", a)
		}
		if e.subnet.free() < a.Count {
			return cloud.Outcome{}, failed(cloud.FailSubnetExhausted, "InsufficientFreeAddressesInSubnet")
		}
		var got []netip.Addr
		for range a.Count {
			addr, _ := e.subnet.take()
			e.addrs[addr] = true
			got = append(got, addr)
		}
		return cloud.Outcome{Addresses: got}, nil
	case cloud.RestoreAddresses:
		for _, addr := range a.Addresses {
			if e.subnet.used[addr] && !e.addrs[addr] {
				return cloud.Outcome{}, failed(cloud.FailOther, "InvalidParameterValue") // another interface has it by now
			}
			e.addrs[addr], e.subnet.used[addr] = true, true
		}
	case cloud.UnassignAddresses:
		for _, addr := range a.Addresses {
			w.release(e, addr)
		}
	case cloud.Detach:
		if e.device == 0 {
			w.t.Fatalf("%s: the primary interface", a)
		}
		if w.now.Sub(e.born) < w.config.MinENIAge {
			w.t.Fatalf("%s: only %s old", a, w.now.Sub(e.born))
		}
		e.attached, e.device = false, -1
	case cloud.DeleteENI:
		if e.attached {
			w.t.Fatalf("%s: attached", a)
		}
		for addr := range e.addrs {
			w.release(e, addr)
		}
		for own := range e.subnet.used {
			if !w.held(own) {
				delete(e.subnet.used, own) // its own address: any that no interface has
				break
			}
		}
		delete(w.enis, e.id)
	}
	return cloud.Outcome{}, nil
}

func (w *world) held(a netip.Addr) bool {
	for _, e := range w.enis {
		if e.addrs[a] {
			return true
		}
	}
	return false
}

func (w *world) attach(a cloud.Action, e *realENI) (cloud.Outcome, *cloud.Failure) {
	n := 0
	for _, other := range w.enis {
		if other.attached {
			n++
			if other.device == a.Device {
				w.t.Fatalf("%s: device is taken by %s", a, other.id)
			}
		}
	}
	if n >= w.limits.ENIs {
		return cloud.Outcome{}, failed(cloud.FailENILimit, "AttachmentLimitExceeded")
	}
	e.attached, e.device = true, a.Device
	return cloud.Outcome{Attachment: vpc.AttachmentID("attach-" + string(e.id)), Device: a.Device}, nil
}

func (w *world) subnet(id vpc.SubnetID) *realSubnet {
	for _, n := range w.subnets {
		if n.id == id {
			return n
		}
	}
	w.t.Fatalf("no subnet %s", id)
	return nil
}

func (w *world) release(e *realENI, addr netip.Addr) {
	w.t.Helper()
	if !e.addrs[addr] {
		w.t.Fatalf("%s is not on %s", addr, e.id)
	}
	if k, used := w.owners[addr]; used {
		w.t.Fatalf("%s is released while endpoint %d uses it", addr, k)
	}
	delete(e.addrs, addr)
	delete(e.subnet.used, addr)
}

// check asserts the invariants.
func (w *world) check() {
	w.t.Helper()
	v := w.ledger.View(w.now)
	attached := 0
	for _, e := range v.ENIs {
		if e.Device >= 0 {
			attached++
		}
		if len(e.Addresses) > w.limits.AddressesPerENI-1 {
			w.t.Fatalf("%s holds %d addresses", e.ID, len(e.Addresses))
		}
		for _, a := range e.Addresses {
			if _, used := w.owners[a.Addr]; used && a.State != ipam.Assigned && a.State != ipam.Quarantined {
				w.t.Fatalf("%s is in use, the ledger has it as %s", a.Addr, a.State)
			}
			if a.State == ipam.Assigned && !w.enis[e.ID].addrs[a.Addr] {
				w.t.Fatalf("%s is assigned and EC2 does not have it on %s", a.Addr, e.ID)
			}
		}
	}
	if attached > w.limits.ENIs {
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
