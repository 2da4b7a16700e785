package handover

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

func TestAnAllocationHasEveryFieldThatAWSsDaemonReads(t *testing.T) {
	n := newNode(3)
	n.pod(0, "ours")
	n.foreign(1, "theirs")
	n.eni().Addresses[2].State = ipam.Assigned // of a pod that is not known
	plan := New(n.in)
	allocation := func(i int, container, namespace, pod string) Allocation {
		return Allocation{
			Network: "aws-cni", ContainerID: container, IfName: "eth0", IPv4: addr(i), Allocated: 1_700_000_000_000_000_005,
			Metadata: Metadata{Namespace: namespace, Pod: pod, Interfaces: 1},
		}
	}
	want := Checkpoint{Version: "vpc-cni-ipam/1", Allocations: []Allocation{
		allocation(0, "sandbox-ours", "default", "ours"),
		allocation(1, "not-known-10.0.0.11", "default", "theirs"),
		allocation(2, "not-known-10.0.0.12", "", ""),
	}}
	if diff := cmp.Diff(want, plan.Checkpoint, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(plan.Unmanaged) != 0 {
		t.Errorf("unmanaged: %q", plan.Unmanaged)
	}
}

func TestAHandoverIsDescribedBySentences(t *testing.T) {
	n := newNode(2)
	n.pod(0, "a")
	const adopted = "1 addresses in use are in the checkpoint of AWS's daemon.\n"
	if got := New(n.in).String(); got != adopted {
		t.Errorf("%q, want %q", got, adopted)
	}
	n.pod(1, "b")
	n.eni().Unmanaged = true
	n.foreign(1, "c")
	n.in.Endpoints, n.in.Wired = n.in.Endpoints[:1], n.in.Wired[:1]
	const want = "2 addresses in use are in the checkpoint of AWS's daemon.\n" +
		"Addresses that AWS's daemon does not manage; delete these pods: default/a (10.0.0.10): interface eni-1 is not managed.\n" +
		"Addresses that AWS's daemon frees only at a start after their pod has ended, because their container is not known: default/c (10.0.0.11).\n"
	if got := New(n.in).String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// AWS's daemon takes an allocation without both names for one in use, so the kernel decides.
func TestAnAllocationThatLacksANameIsKeptWhileItsAddressHasALink(t *testing.T) {
	for what, m := range map[string]Metadata{
		"neither name": {}, "the namespace": {Namespace: "default"}, "the pod": {Pod: "a"},
	} {
		n := newNode(1)
		previous := allocation(0, "a")
		previous.Metadata = m
		n.in.Previous.Allocations = []Allocation{previous}
		if got := New(n.in).Checkpoint.Allocations; len(got) != 0 {
			t.Errorf("with %s and without a link: %+v", what, got)
		}
		n.in.Routed = map[netip.Addr]string{addr(0): "net1"}
		if got := New(n.in).Checkpoint.Allocations; !slices.Equal(got, n.in.Previous.Allocations) {
			t.Errorf("with %s and a link: %+v", what, got)
		}
	}
}

// A pod without an IPv4 address has none that AWS's daemon could give to another pod.
func TestWhatHasNoIPv4AddressIsLeftOut(t *testing.T) {
	n := newNode(1)
	n.pod(0, "a")
	n.in.Endpoints[0].Addresses = endpoint.Addresses{IPv6: netip.MustParseAddr("fd00::7")}
	previous := allocation(0, "")
	previous.IPv4, previous.IPv6, previous.Metadata = netip.Addr{}, netip.MustParseAddr("fd00::8"), Metadata{}
	n.in.Previous.Allocations = []Allocation{previous}
	if plan := New(n.in); len(plan.Checkpoint.Allocations)+len(plan.Unmanaged) != 0 {
		t.Errorf("%+v", plan)
	}
}

// Only the API server names it: its address is not in use on this node.
func TestAForeignPodWithoutALinkIsLeftOut(t *testing.T) {
	n := newNode(1)
	n.foreign(0, "a")
	n.in.Links = []string{"eth0"}
	if plan := New(n.in); len(plan.Checkpoint.Allocations)+len(plan.Unkeyed) != 0 {
		t.Errorf("%+v", plan)
	}
}

func TestThePodsOwnAddressDecidesWhetherItIsManaged(t *testing.T) {
	n := newNode(2)
	n.eni().Addresses[0].Missing = now()
	n.pod(1, "a")
	if got := New(n.in).Unmanaged; len(got) != 0 {
		t.Errorf("unmanaged because of another address: %q", got)
	}
}

func TestACheckpointWithoutAllocationsHasAnEmptyList(t *testing.T) {
	const want = `{"version":"vpc-cni-ipam/1","allocations":[]}` + "\n"
	if got := string(Checkpoint{}.Encode()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if c, err := Parse([]byte(`{"version":"vpc-cni-ipam/1","allocations":7}`)); err == nil {
		t.Errorf("allocations that are no list are read as %+v", c)
	}
}
