package handover

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// checkAllocations compares the allocations of a handover with those wanted.
func checkAllocations(t *testing.T, what string, got Plan, want ...Allocation) {
	t.Helper()
	if diff := cmp.Diff(want, got.Checkpoint.Allocations, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// nameless is the allocation of a container with a pod that is not known.
func nameless(i int, container string) Allocation {
	return Allocation{
		Network: "aws-cni", ContainerID: container, IfName: "eth0", IPv4: addr(i), Allocated: now().UnixNano(), Metadata: Metadata{Interfaces: 1},
	}
}

func TestAnAddressInNoRecordGetsAnAllocationWithEveryField(t *testing.T) {
	wired := newNode(1)
	wired.pod(0, "a")
	wired.in.Endpoints = nil // the journal is lost
	checkAllocations(t, "by the name of its link", New(wired.in), nameless(0, "sandbox-a"))

	routed := newNode(1)
	routed.in.Routed = map[netip.Addr]string{addr(0): "eni0123456789a"}
	checkAllocations(t, "by its route", New(routed.in), nameless(0, "not-known-10.0.0.10"))

	own := newNode(1)
	own.eni().Addresses[0].State, own.eni().Addresses[0].Holder = ipam.Assigned, ipam.NodeHolder("eth0")
	checkAllocations(t, "of the node", New(own.in), nameless(0, "not-known-10.0.0.10"))
}

// A pod of AWS's daemon had the address before, and another pod of its name runs.
func TestTheContainerOfALinkPrecedesThatOfAnOlderRecord(t *testing.T) {
	n := newNode(1)
	n.pod(0, "a")
	n.in.Endpoints = nil
	n.in.Previous.Allocations = []Allocation{allocation(0, "a")}
	checkAllocations(t, "of another container", New(n.in), nameless(0, "sandbox-a"))
}

// The checkpoint has IPv4 addresses: AWS's daemon on nodes of IPv6 clusters is not served.
func TestIPv6AddressesAreNotAllocated(t *testing.T) {
	six := netip.MustParseAddr("fd00::7")
	for name, change := range map[string]func(*node){
		"of a link": func(n *node) {
			n.in.Wired = []hostnet.Alias{{Key: endpoint.Key{ContainerID: "c", IfName: "eth0"}, Addresses: []netip.Addr{six}}}
		},
		"of a route": func(n *node) { n.in.Routed = map[netip.Addr]string{six: "eni0123456789a"} },
		"of the previous checkpoint": func(n *node) {
			previous := allocation(0, "a")
			previous.IPv4, previous.IPv6 = netip.Addr{}, six
			n.in.Links, n.in.Previous.Allocations = append(n.in.Links, endpoint.LinkName("eni", "default", "a")), []Allocation{previous}
		},
	} {
		n := newNode(1)
		change(n)
		plan := New(n.in)
		checkAllocations(t, name, plan)
		if len(plan.Unnamed)+len(plan.Doubtful) > 0 {
			t.Errorf("%s: unnamed %q, doubtful %q", name, plan.Unnamed, plan.Doubtful)
		}
	}
}

func TestAnAddressOfARecordIsNotOneOfAnUnknownPod(t *testing.T) {
	n := newNode(1)
	n.foreign(0, "a")
	n.in.Routed = map[netip.Addr]string{addr(0): endpoint.LinkName("eni", "default", "a")}
	n.in.Previous.Allocations = []Allocation{allocation(0, "a")}
	if plan := New(n.in); len(plan.Unnamed) > 0 {
		t.Errorf("unnamed: %q", plan.Unnamed)
	}
}

func TestOnlyAPodsOwnAddressMakesItDoubtful(t *testing.T) {
	n := newNode(2)
	n.eni().Addresses[0].Missing = now()
	n.pod(1, "a")
	if plan := New(n.in); len(plan.Doubtful) > 0 {
		t.Errorf("doubtful because of another address: %q", plan.Doubtful)
	}
}

func TestANodeWithInterfacesNeedsACheckpointWithoutPodsToo(t *testing.T) {
	if !newNode(1).in.OfEC2() {
		t.Error("addresses of EC2 are not expected on a node with an interface")
	}
}

func TestAddressesWithoutAPodAreInTheTextOfAHandover(t *testing.T) {
	n := newNode(2)
	n.in.Routed = map[netip.Addr]string{addr(0): "eni0123456789a"}
	n.eni().Addresses[1].State, n.eni().Addresses[1].Holder = ipam.Assigned, ipam.NodeHolder("eth0")
	lines := strings.Split(New(n.in).String(), "\n")
	for _, want := range []string{
		"Addresses that AWS's daemon does not free, because neither container nor pod of the link is known: eni0123456789a (10.0.0.10).",
		"Addresses that the node itself has, which AWS's daemon gives to no pod and does not free: 10.0.0.11 (eth0).",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q lacks %q", lines, want)
		}
	}
}
