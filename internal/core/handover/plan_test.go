package handover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/handover/handovertest"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// node is a node with one interface.
type node struct {
	in        Input
	addresses []netip.Addr // of the interface
}

func now() time.Time { return time.Unix(1_700_000_000, 5).UTC() }

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}) }

// newNode has n addresses, all free.
func newNode(n int) *node {
	v := &node{in: Input{Now: now(), Links: []string{"eth0"}, View: ipam.View{ENIs: []ipam.ENIView{{ENI: ipam.ENI{ID: "eni-1", Phase: ipam.Ready}}}}}}
	for i := range n {
		v.addresses = append(v.addresses, addr(i))
		v.eni().Addresses = append(v.eni().Addresses, ipam.Address{Addr: addr(i), ENI: "eni-1", State: ipam.Free})
	}
	return v
}

func (n *node) eni() *ipam.ENIView { return &n.in.View.ENIs[0] }

// pod wires a pod of ours to address i.
func (n *node) pod(i int, name string) endpoint.Key {
	key := endpoint.Key{ContainerID: "sandbox-" + name, IfName: "eth0"}
	e := endpoint.Adopt(endpoint.ID(i+1), key, endpoint.Pod{Namespace: "default", Name: name}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(addr(i)), Link: endpoint.LinkName("eni", "default", name),
	}, false, now())
	n.in.Endpoints = append(n.in.Endpoints, e)
	n.in.Links, n.in.Wired = append(n.in.Links, e.Link), append(n.in.Wired, key)
	n.eni().Addresses[i].State, n.eni().Addresses[i].Holder = ipam.Assigned, ipam.HolderOf(e)
	return key
}

// foreign is a pod that AWS's plugin wired to address i.
func (n *node) foreign(i int, name string) {
	n.eni().Addresses[i].State = ipam.Assigned
	n.eni().Addresses[i].Holder = ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: name, UID: "u"})
	n.in.Links = append(n.in.Links, endpoint.LinkName("eni", "default", name))
}

// inPrefix is such a pod on an address of a prefix that the interface has.
func (n *node) inPrefix(a netip.Addr, name string) {
	e := n.eni()
	e.Prefixes = []ipam.Prefix{{CIDR: netip.PrefixFrom(a, 28).Masked()}}
	e.Claimed = append(e.Claimed, ipam.Claimed{Addr: a, Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: name, UID: "u"})})
	n.addresses = append(n.addresses, a)
	n.in.Links = append(n.in.Links, endpoint.LinkName("eni", "default", name))
}

func allocation(i int, name string) Allocation {
	return Allocation{
		Network: Network, ContainerID: "aws-" + name, IfName: "eth0", IPv4: addr(i), Allocated: 1,
		Metadata: Metadata{Namespace: "default", Pod: name, Interfaces: 1},
	}
}

func (n *node) start(t *testing.T, c *Checkpoint) *handovertest.Daemon {
	t.Helper()
	var raw []byte
	if c != nil {
		raw = c.Encode()
	}
	d, err := handovertest.Start(raw, n.addresses, n.in.Links)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// twice lists the addresses in use that the daemon gives to new pods.
func twice(d *handovertest.Daemon, inUse []netip.Addr) (list []netip.Addr) {
	for i := 0; ; i++ {
		a, ok := d.Add(handovertest.Key{Container: fmt.Sprint("new-", i)})
		if !ok {
			return list
		}
		if slices.Contains(inUse, a) {
			list = append(list, a)
		}
	}
}

func TestEveryAddressInUseIsAdoptedAndNoneIsGivenTwice(t *testing.T) {
	n := newNode(29)
	var inUse []netip.Addr
	keys := map[netip.Addr]handovertest.Key{}
	for i := range 20 {
		name := fmt.Sprint("p", i)
		key := n.pod(i, name)
		inUse = append(inUse, addr(i))
		keys[addr(i)] = handovertest.Key{Network: "aws-cni", Container: key.ContainerID, Interface: "eth0"}
	}
	plan := New(n.in)
	d := n.start(t, &plan.Checkpoint)
	for _, a := range inUse {
		if d.Assigned[a] != keys[a] {
			t.Errorf("%s is adopted for %v, want %v", a, d.Assigned[a], keys[a])
		}
	}
	if len(d.Assigned) != 20 || len(d.Stale)+len(d.Unknown) > 0 {
		t.Errorf("adopted %d, stale %v, unknown %v", len(d.Assigned), d.Stale, d.Unknown)
	}
	if got := twice(d, inUse); len(got) > 0 {
		t.Errorf("given twice: %v", got)
	}
	if !d.Del(keys[addr(3)]) {
		t.Error("a DEL with AWS's configuration does not free the address")
	}
	// Without the checkpoint, and with one that lacks an allocation, the check fails.
	if got := twice(n.start(t, nil), inUse); len(got) != 20 {
		t.Errorf("a daemon without a checkpoint gives %d of 20 addresses twice: the check detects nothing", len(got))
	}
	short := Checkpoint{Version: Version, Allocations: plan.Checkpoint.Allocations[1:]}
	if got := twice(n.start(t, &short), inUse); len(got) != 1 {
		t.Errorf("with one allocation missing, %d are given twice", len(got))
	}
}

func TestPodsThatAWSsPluginWiredKeepTheirAllocations(t *testing.T) {
	n := newNode(5)
	n.pod(0, "ours")
	n.foreign(1, "theirs")
	n.foreign(2, "without-entry")
	n.in.Previous.Allocations = []Allocation{allocation(1, "theirs"), allocation(0, "ended"), allocation(3, "ended-too")}
	plan := New(n.in)
	d := n.start(t, &plan.Checkpoint)
	want := map[netip.Addr]string{addr(0): "sandbox-ours", addr(1): "aws-theirs", addr(2): "not-known-10.0.0.12"}
	if len(d.Assigned) != len(want) {
		t.Errorf("adopted %v", d.Assigned)
	}
	for a, container := range want {
		if d.Assigned[a].Container != container {
			t.Errorf("%s: %v, want container %s", a, d.Assigned[a], container)
		}
	}
	if len(plan.Unkeyed) != 1 || !strings.Contains(plan.Unkeyed[0], "default/without-entry (10.0.0.12)") {
		t.Errorf("unkeyed: %q", plan.Unkeyed)
	}
	// Once the pod has ended, the daemon's next start frees the address.
	n.in.Links = slices.DeleteFunc(n.in.Links, func(l string) bool { return l == endpoint.LinkName("eni", "default", "without-entry") })
	if d := n.start(t, &plan.Checkpoint); len(d.Stale) != 1 || d.Stale[0] != addr(2) {
		t.Errorf("stale: %v", d.Stale)
	}
}

// The ledger has no rows for the addresses of a prefix: AWS's daemon gave such an address to a
// new pod when its previous checkpoint had no entry for the pod that has it.
func TestPodsOfAPrefixAreAdopted(t *testing.T) {
	n := newNode(1)
	in := netip.MustParseAddr("10.0.1.3")
	n.inPrefix(in, "theirs")
	plan := New(n.in)
	if got := twice(n.start(t, &plan.Checkpoint), []netip.Addr{in}); len(got) > 0 {
		t.Errorf("given twice: %v; checkpoint %+v", got, plan.Checkpoint)
	}
	if len(plan.Unkeyed) != 1 || !strings.Contains(plan.Unkeyed[0], "default/theirs (10.0.1.3)") {
		t.Errorf("unkeyed: %q", plan.Unkeyed)
	}
	known := allocation(0, "theirs")
	known.IPv4 = in
	n.in.Previous.Allocations = []Allocation{known}
	if plan = New(n.in); !slices.Equal(plan.Checkpoint.Allocations, n.in.Previous.Allocations) || len(plan.Unkeyed) > 0 {
		t.Errorf("with a previous allocation: %+v, unkeyed %q", plan.Checkpoint.Allocations, plan.Unkeyed)
	}
}

// A removal that was killed is repeated after AWS's daemon has taken over: it has ended a pod
// of ours and given its address to a new pod, with the name of another one of ours.
func TestARepeatedHandoverKeepsWhatAWSsDaemonHasDoneSince(t *testing.T) {
	n := newNode(5)
	n.pod(0, "ended")
	n.pod(1, "recreated")
	n.pod(2, "runs")
	before := New(n.in)
	n.in.Wired = n.in.Wired[2:] // links of ours
	n.in.Links = []string{"eth0", endpoint.LinkName("eni", "default", "runs"), endpoint.LinkName("eni", "default", "recreated"), endpoint.LinkName("eni", "default", "new")}
	runs := before.Checkpoint.Allocations[2]
	n.in.Previous.Allocations = []Allocation{allocation(0, "recreated"), allocation(1, "new"), runs}
	want := slices.Clone(n.in.Previous.Allocations)
	for range 2 {
		plan := New(n.in)
		if !slices.Equal(plan.Checkpoint.Allocations, want) {
			t.Errorf("allocations %+v, want those of the daemon: %+v", plan.Checkpoint.Allocations, want)
		}
		n.in.Previous = plan.Checkpoint
	}
}

func TestAnInterfaceThatIsNamedOtherwiseIsAdoptedWithoutThePodsNames(t *testing.T) {
	n := newNode(2)
	n.pod(0, "a")
	n.in.Endpoints[0].Link = "net1a"
	n.in.Links = []string{"net1a"}
	plan := New(n.in)
	if d := n.start(t, &plan.Checkpoint); len(d.Assigned) != 1 {
		t.Errorf("adopted %v, stale %v", d.Assigned, d.Stale)
	}
}

func TestEndpointsThatAreNotInUseAreLeftOut(t *testing.T) {
	for name, change := range map[string]func(*node){
		"its ADD was interrupted":   func(n *node) { n.in.Endpoints[0].Stage = endpoint.Wiring },
		"its DEL was accepted":      func(n *node) { n.in.Endpoints[0].Stage = endpoint.Removing },
		"its link no longer exists": func(n *node) { n.in.Wired = nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(1)
			n.pod(0, "a")
			change(n)
			if plan := New(n.in); len(plan.Checkpoint.Allocations) != 0 {
				t.Errorf("%+v", plan.Checkpoint.Allocations)
			}
		})
	}
}

func TestAddressesThatAWSsDaemonDoesNotManageAreNamed(t *testing.T) {
	for want, change := range map[string]func(*node){
		"interface eni-1 is not managed":             func(n *node) { n.eni().Unmanaged = true },
		"EC2 does not show it on interface eni-1":    func(n *node) { n.eni().Addresses[0].Missing = now() },
		"it is on no interface of the node":          func(n *node) { n.eni().Addresses = nil },
		"EC2 does not show it on interface eni-1\t2": func(n *node) { n.eni().Missing = now() },
	} {
		n := newNode(1)
		n.pod(0, "a")
		change(n)
		want, _, _ = strings.Cut(want, "\t")
		plan := New(n.in)
		if !slices.Equal(plan.Unmanaged, []string{"default/a (10.0.0.10): " + want}) || !strings.Contains(plan.String(), want) {
			t.Errorf("%q, want %q", plan.Unmanaged, want)
		}
	}
}

func TestACheckpointOfAnotherFormatIsRefused(t *testing.T) {
	for _, raw := range []string{`{"version":"vpc-cni-ipam/2"}`, `{"version":`, ``} {
		if _, err := Parse([]byte(raw)); err == nil {
			t.Errorf("%q is accepted", raw)
		}
	}
	got, err := Parse(Checkpoint{Allocations: []Allocation{allocation(1, "a")}}.Encode())
	if err != nil || len(got.Allocations) != 1 || got.Allocations[0] != allocation(1, "a") {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Checkpoint{Allocations: []Allocation{allocation(1, "a")}}.Encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Parse(raw)
		if err != nil {
			return
		}
		again, err := Parse(c.Encode())
		if err != nil || len(again.Allocations) != len(c.Allocations) {
			t.Errorf("%+v is read back as %+v: %v", c, again, err)
		}
	})
}
