package ipam_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// simulation is EC2 as one instance uses it. It fails the test when a call is wrong.
type simulation struct {
	t       reporter
	limits  ipam.Limits
	subnets []*realSubnet
	enis    map[vpc.ENIID]*realENI
	calls   map[cloud.Kind]int
	refuse  func(cloud.Action) *cloud.Failure // injected
	last    int                               // of number
}

func newSimulation(t reporter, limits ipam.Limits, sizes ...int) *simulation {
	s := &simulation{t: t, limits: limits, enis: make(map[vpc.ENIID]*realENI), calls: make(map[cloud.Kind]int)}
	if len(sizes) == 0 {
		sizes = []int{4000}
	}
	for i, size := range sizes {
		s.subnets = append(s.subnets, &realSubnet{
			id:   vpc.SubnetID(fmt.Sprintf("subnet-%d", i)),
			cidr: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/19", i*32)), used: make(map[netip.Addr]bool), size: size,
		})
	}
	return s
}

// number counts interfaces and actions, from 0.
func (s *simulation) number() int {
	s.last++
	return s.last - 1
}

type realENI struct {
	id       vpc.ENIID
	subnet   *realSubnet
	attached bool
	card     int
	device   int // on its card
	addrs    map[netip.Addr]bool
	prefixes []netip.Prefix // delegated by another program
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

// makeENI creates an interface; the first one is the primary.
func (s *simulation) makeENI(n *realSubnet, count int, now time.Time) *realENI {
	e := &realENI{id: vpc.ENIID(fmt.Sprintf("eni-%02d", s.number())), subnet: n, device: -1, addrs: make(map[netip.Addr]bool), born: now}
	if _, ok := n.take(); !ok {
		s.t.Fatalf("subnet %s has no address for %s", n.id, e.id)
	}
	if len(s.enis) == 0 {
		e.device = 0
	}
	s.enis[e.id] = e
	for range count {
		a, ok := n.take()
		if !ok {
			s.t.Fatalf("subnet %s has no address", n.id)
		}
		e.addrs[a] = true
	}
	return e
}

// describe shows all interfaces.
func (s *simulation) describe() (seen []ipam.Observed) {
	for _, id := range slices.Sorted(maps.Keys(s.enis)) {
		e := s.enis[id]
		row := e.row()
		row.WhyUnmanaged = ipam.WhyUnmanaged(row, map[string]string{vpc.TagInstanceID: "i-1"}, "i-1")
		row.Unmanaged = row.WhyUnmanaged != ""
		seen = append(seen, ipam.Observed{ENI: row, Attached: e.attached, Addresses: addrs(e.addrs)})
	}
	return seen
}

func addrs(m map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	for a := range m {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (e *realENI) row() ipam.ENI {
	return ipam.ENI{
		ID: e.id, Type: vpc.TypeInterface, Primary: e.device == 0 && e.card == 0, Card: e.card, Device: e.device, Subnet: e.subnet.id,
		SubnetCIDR: e.subnet.cidr, PrimaryIP: e.subnet.cidr.Addr().Next(), Prefixes: ipam.PrefixesOf(e.prefixes), Created: e.born,
	}
}

func failed(why cloud.FailReason, text string) *cloud.Failure {
	return &cloud.Failure{Reason: why, Definite: true, Message: text}
}

// execute carries out an action, unless refuse rejects it.
func (s *simulation) execute(a cloud.Action, now time.Time) (cloud.Outcome, *cloud.Failure) {
	s.t.Helper()
	s.calls[a.Kind]++
	if s.refuse != nil {
		if f := s.refuse(a); f != nil {
			return cloud.Outcome{}, f
		}
	}
	e := s.enis[a.ENI]
	if a.Kind != cloud.CreateENI && e == nil {
		s.t.Fatalf("%s: EC2 does not know it", a)
	}
	switch a.Kind {
	case cloud.CreateENI:
		n := s.subnet(a.Subnet)
		if n.free() < a.Count+1 {
			return cloud.Outcome{}, failed(cloud.FailSubnetExhausted, "InsufficientFreeAddressesInSubnet")
		}
		if a.Count > s.limits.AddressesPerENI-1 {
			s.t.Fatalf("%s: more than an interface holds", a)
		}
		e := s.makeENI(n, a.Count, now)
		return cloud.Outcome{ENI: e.id, Addresses: addrs(e.addrs)}, nil
	case cloud.Attach:
		return s.attach(a, e)
	case cloud.SetUp:
		if !e.attached {
			s.t.Fatalf("%s: not attached", a)
		}
	case cloud.AssignAddresses:
		if len(e.addrs)+len(e.prefixes)+a.Count > s.limits.AddressesPerENI-1 {
			s.t.Fatalf("%s: more than the interface holds", a)
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
			s.release(e, addr)
		}
	case cloud.Detach:
		e.attached, e.device = false, -1
	case cloud.DeleteENI:
		if e.attached {
			s.t.Fatalf("%s: attached", a)
		}
		for addr := range e.addrs {
			s.release(e, addr)
		}
		for own := range e.subnet.used {
			if !s.held(own) {
				delete(e.subnet.used, own) // its own address: any that no interface has
				break
			}
		}
		delete(s.enis, e.id)
	}
	return cloud.Outcome{}, nil
}

func (s *simulation) held(a netip.Addr) bool {
	for _, e := range s.enis {
		if e.addrs[a] {
			return true
		}
	}
	return false
}

func (s *simulation) attach(a cloud.Action, e *realENI) (cloud.Outcome, *cloud.Failure) {
	n := 0
	for _, other := range s.enis {
		if other.attached && other.card == 0 {
			n++
			if other.device == a.Device {
				s.t.Fatalf("%s: device is taken by %s", a, other.id)
			}
		}
	}
	if n >= s.limits.ENIs {
		return cloud.Outcome{}, failed(cloud.FailENILimit, "AttachmentLimitExceeded")
	}
	e.attached, e.device = true, a.Device
	return cloud.Outcome{Attachment: vpc.AttachmentID("attach-" + string(e.id)), Device: a.Device}, nil
}

func (s *simulation) subnet(id vpc.SubnetID) *realSubnet {
	for _, n := range s.subnets {
		if n.id == id {
			return n
		}
	}
	s.t.Fatalf("no subnet %s", id)
	return nil
}

func (s *simulation) release(e *realENI, addr netip.Addr) {
	s.t.Helper()
	if !e.addrs[addr] {
		s.t.Fatalf("%s is not on %s", addr, e.id)
	}
	delete(e.addrs, addr)
	delete(e.subnet.used, addr)
}
