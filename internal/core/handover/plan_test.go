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
	"github.com/trunkline/trunkline/internal/core/hostnet"
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
	v := &node{in: Input{Now: now(), Kernel: Kernel{Links: []string{"eth0"}}, View: ipam.View{ENIs: []ipam.ENIView{{ENI: ipam.ENI{ID: "eni-1", Phase: ipam.Ready}}}}}}
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
	n.in.Links, n.in.Wired = append(n.in.Links, e.Link), append(n.in.Wired, hostnet.AliasOf(e))
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

// A pod of AWS's plugin with an address that the node itself has could not be reached.
func TestAddressesThatTheNodeItselfHasAreGivenToNoPod(t *testing.T) {
	n := newNode(3)
	n.eni().Addresses[1].State, n.eni().Addresses[1].Holder = ipam.Assigned, ipam.NodeHolder("eth0")
	plan := New(n.in)
	if got := twice(n.start(t, &plan.Checkpoint), []netip.Addr{addr(1)}); len(got) > 0 {
		t.Errorf("given to a pod: %v; checkpoint %+v", got, plan.Checkpoint)
	}
	if !slices.Equal(plan.OnNode, []string{"10.0.0.11 (eth0)"}) || len(plan.Unkeyed) > 0 {
		t.Errorf("on the node %q, unkeyed %q", plan.OnNode, plan.Unkeyed)
	}
	// AWS's daemon takes an allocation for that of an ended pod if it names a pod without a link.
	named := plan.Checkpoint
	named.Allocations = slices.Clone(named.Allocations)
	named.Allocations[0].Metadata.Namespace, named.Allocations[0].Metadata.Pod = "default", "node"
	if got := twice(n.start(t, &named), []netip.Addr{addr(1)}); len(got) != 1 {
		t.Errorf("with the names of a pod without a link it is given to %d pods: the check detects nothing", len(got))
	}

	// AWS's daemon has given the address to a pod since.
	n.foreign(1, "theirs")
	n.eni().Addresses[1].Holder = ipam.NodeHolder("eth0")
	n.in.Previous.Allocations = []Allocation{allocation(1, "theirs")}
	if plan = New(n.in); !slices.Equal(plan.Checkpoint.Allocations, n.in.Previous.Allocations) || len(plan.OnNode) > 0 {
		t.Errorf("with the allocation of a pod: %+v, on the node %q", plan.Checkpoint.Allocations, plan.OnNode)
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

// A record of EC2 may be old: what EC2 did not show then, AWS's daemon may find.
func TestAddressesThatAWSsDaemonWillNotOrMayNotAdoptAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change              func(*node)
		unmanaged, doubtful string
	}{
		"the interface is not managed": {func(n *node) { n.eni().Unmanaged = true }, "interface eni-1 is not managed", ""},
		"the address is missing":       {func(n *node) { n.eni().Addresses[0].Missing = now() }, "", "EC2 did not show it on interface eni-1"},
		"the interface is missing":     {func(n *node) { n.eni().Missing = now() }, "", "EC2 did not show it on interface eni-1"},
		"the address is on none":       {func(n *node) { n.eni().Addresses = nil }, "", "EC2 showed it on no interface of the node"},
		"EC2 was not read":             {func(n *node) { n.in.View.ENIs = nil }, "", "EC2 has not been read"},
	} {
		n := newNode(1)
		n.pod(0, "a")
		c.change(n)
		plan := New(n.in)
		want := func(why string) (list []string) {
			if why != "" {
				list = []string{"default/a (10.0.0.10): " + why}
			}
			return list
		}
		if !slices.Equal(plan.Unmanaged, want(c.unmanaged)) || !slices.Equal(plan.Doubtful, want(c.doubtful)) {
			t.Errorf("%s: unmanaged %q, doubtful %q", name, plan.Unmanaged, plan.Doubtful)
		}
		if text := plan.String(); !strings.Contains(text, c.unmanaged+c.doubtful) || strings.Contains(text, "delete these pods:") != (c.unmanaged != "") {
			t.Errorf("%s: %s", name, text)
		}
		if len(plan.Checkpoint.Allocations) != 1 {
			t.Errorf("%s: allocations %v", name, plan.Checkpoint.Allocations)
		}
	}
}

// The journal is lost: the kernel alone has the pods.
func TestPodsThatOnlyTheKernelHasAreAdopted(t *testing.T) {
	n := newNode(6)
	var inUse []netip.Addr
	for i := range 3 {
		n.pod(i, fmt.Sprint("p", i))
		inUse = append(inUse, addr(i))
	}
	n.in.Routed = map[netip.Addr]string{
		addr(3): "eni0123456789a", // wired by AWS's plugin, and in no record
		addr(4): "ens5",           // a route by DHCP
	}
	inUse = append(inUse, addr(3))
	n.in.Endpoints, n.in.View = nil, ipam.View{}
	known := allocation(1, "p1")
	known.ContainerID = "sandbox-p1" // by an earlier handover, with the pod's names
	n.in.Previous.Allocations = []Allocation{known}
	plan := New(n.in)
	d := n.start(t, &plan.Checkpoint)
	for i := range 3 {
		if want := (handovertest.Key{Network: "aws-cni", Container: fmt.Sprint("sandbox-p", i), Interface: "eth0"}); d.Assigned[addr(i)] != want {
			t.Errorf("%s is adopted for %v, want %v", addr(i), d.Assigned[addr(i)], want)
		}
	}
	if got := twice(d, inUse); len(got) > 0 || len(plan.Checkpoint.Allocations) != len(inUse) {
		t.Errorf("given twice: %v; allocations %+v", got, plan.Checkpoint.Allocations)
	}
	if !slices.Equal(plan.Unnamed, []string{"eni0123456789a (10.0.0.13)"}) || len(plan.Doubtful) != 3 {
		t.Errorf("unnamed %q, doubtful %q", plan.Unnamed, plan.Doubtful)
	}
	if !slices.Contains(plan.Checkpoint.Allocations, known) {
		t.Errorf("the pod's names of an earlier handover are lost: %+v", plan.Checkpoint.Allocations)
	}
}

// AWS's daemon never drops an allocation without the pod's names.
func TestAnAllocationWithoutNamesEndsWithItsPod(t *testing.T) {
	nameless := allocation(0, "a")
	nameless.Metadata = Metadata{Interfaces: 1}
	for name, c := range map[string]struct {
		kernel Kernel
		want   int
	}{
		"the pod has ended":           {Kernel{}, 0},
		"its address has a route":     {Kernel{Routed: map[netip.Addr]string{addr(0): "net1"}}, 1},
		"a link of ours has its name": {Kernel{Wired: []hostnet.Alias{{Key: endpoint.Key{ContainerID: "aws-a", IfName: "eth0"}, Addresses: []netip.Addr{addr(0)}}}}, 1},
	} {
		n := newNode(1)
		n.in.Kernel, n.in.Previous.Allocations = c.kernel, []Allocation{nameless}
		if plan := New(n.in); len(plan.Checkpoint.Allocations) != c.want || c.want == 1 && plan.Checkpoint.Allocations[0] != nameless {
			t.Errorf("%s: %+v", name, plan.Checkpoint.Allocations)
		}
	}
}

func TestANodeWithoutACloudNeedsNoCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node)
		want   bool
	}{
		"it has interfaces":           {func(*node) {}, true},
		"its pods have routed ranges": {func(n *node) { n.in.View, n.in.Endpoints[0].Attachment.Kind = ipam.View{}, endpoint.Routed }, false},
		"it has no pods":              {func(n *node) { n.in.View, n.in.Wired = ipam.View{}, nil }, false},
		"its journal is lost":         {func(n *node) { n.in.View, n.in.Endpoints = ipam.View{}, nil }, true},
		"EC2 has not been read":       {func(n *node) { n.in.View = ipam.View{} }, true},
	} {
		n := newNode(1)
		n.pod(0, "a")
		c.change(n)
		if got := n.in.OfEC2(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWhatTheKernelSaysOfPods(t *testing.T) {
	ours := hostnet.Alias{Key: endpoint.Key{ContainerID: "c1", IfName: "eth0"}, Addresses: []netip.Addr{addr(0)}}
	ended := hostnet.Alias{Key: endpoint.Key{ContainerID: "c2", IfName: "eth0"}, Addresses: []netip.Addr{addr(1)}}
	got := KernelOf(hostnet.State{
		Links: []hostnet.Link{
			{Name: "eth0"},
			{Name: "eniours", Alias: ours.String(), Group: hostnet.LinkGroupPod},
			{Name: "eniended", Alias: ended.String(), Group: hostnet.LinkGroupDying},
			{Name: "enitheirs"},
		},
		Routes: []hostnet.Route{
			{To: netip.PrefixFrom(addr(0), 32), Link: "eniours"},
			{To: netip.PrefixFrom(addr(2), 32), Link: "enitheirs"},
			{To: netip.MustParsePrefix("10.0.0.0/24"), Link: "eth0"},
			{To: netip.PrefixFrom(addr(3), 32), Via: addr(9), Link: "eth0"},
		},
	})
	if len(got.Links) != 4 || len(got.Wired) != 1 || got.Wired[0].Key != ours.Key || len(got.Routed) != 1 || got.Routed[addr(2)] != "enitheirs" {
		t.Errorf("%+v", got)
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
