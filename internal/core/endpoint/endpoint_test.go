package endpoint_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func waiting(id endpoint.ID) endpoint.Endpoint {
	return endpoint.New(id, endpoint.Key{ContainerID: "4f3a", IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: "web", UID: "u1"}, "trunkline", epoch, epoch)
}

func TestTransitionsFromAnotherStageAreRefused(t *testing.T) {
	e := waiting(1)
	for name, f := range map[string]func() (endpoint.Endpoint, error){
		"completing one that waits": func() (endpoint.Endpoint, error) { return e.Complete(epoch) },
		"removing one that waits":   func() (endpoint.Endpoint, error) { return e.Remove(epoch) },
		"attaching one twice, with another address": func() (endpoint.Endpoint, error) {
			first, err := e.Attach(wire(1), epoch)
			if err != nil {
				t.Fatal(err)
			}
			return first.Attach(wire(2), epoch)
		},
		"completing one that is removed": func() (endpoint.Endpoint, error) {
			first, _ := e.Attach(wire(1), epoch)
			gone, err := first.Remove(epoch)
			if err != nil {
				t.Fatal(err)
			}
			return gone.Complete(epoch)
		},
	} {
		if got, err := f(); !errors.Is(err, endpoint.ErrStage) {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
	if _, err := e.Attach(endpoint.Wire{Link: "eni1"}, epoch); err == nil {
		t.Error("an endpoint was attached without an address")
	}
}

func TestAnEndpointReadBackFromJSONIsEqual(t *testing.T) {
	e, err := waiting(7).Attach(endpoint.Wire{
		Addresses:  endpoint.AddressesOf(netip.MustParseAddr("fd00::7"), netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")),
		Attachment: endpoint.Attachment{Kind: endpoint.Secondary, Interface: "eni-1", Table: 2}, Link: "eni1", MTU: 9001,
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back endpoint.Endpoint
	if err := json.Unmarshal(raw, &back); err != nil || back != e {
		t.Errorf("read back %+v (%v), want %+v", back, err, e)
	}
	if e.Addresses.Primary() != netip.MustParseAddr("10.0.0.7") || len(e.Addresses.List()) != 2 {
		t.Errorf("addresses %v", e.Addresses)
	}
}

func TestIDsAreUsedInTurnAndThoseInUseAreSkipped(t *testing.T) {
	used := map[endpoint.ID]bool{1: true, endpoint.MaxID: true}
	in := func(id endpoint.ID) bool { return used[id] }
	if id, err := endpoint.NextID(endpoint.MaxID-1, in); err != nil || id != 2 {
		t.Errorf("after %d: %d, %v", endpoint.MaxID-1, id, err)
	}
	if id, err := endpoint.NextID(40, in); err != nil || id != 41 {
		t.Errorf("after 40: %d, %v", id, err)
	}
	if _, err := endpoint.NextID(40, func(endpoint.ID) bool { return true }); !errors.Is(err, endpoint.ErrNoID) {
		t.Errorf("all in use: %v", err)
	}
}

func TestALinkIsNamedAsAWSNamesIt(t *testing.T) {
	// sha1("kube-system.coredns-5d78c9869d-abcde") by sha1sum(1).
	if got := endpoint.LinkName(endpoint.DefaultLinkPrefix, "kube-system", "coredns-5d78c9869d-abcde"); got != "eni4d5f75c480c" {
		t.Errorf("got %s", got)
	}
	if got := endpoint.LinkName("vlan", "a", "b"); len(got) != 15 {
		t.Errorf("%s has %d characters, an interface name 15", got, len(got))
	}
}

func TestEachAttachmentHasALinkNameOfItsOwn(t *testing.T) {
	web := endpoint.Pod{Namespace: "default", Name: "web"}
	for what, c := range map[string]struct {
		key             endpoint.Key
		pod             endpoint.Pod
		namespace, name string // of LinkName
	}{
		"the first interface of a pod":                     {endpoint.Key{ContainerID: "c1", IfName: "eth0"}, web, "default", "web"},
		"a further interface of a pod":                     {endpoint.Key{ContainerID: "c1", IfName: "net1"}, web, "default", "web/net1"},
		"a container without a pod":                        {endpoint.Key{ContainerID: "c1", IfName: "eth0"}, endpoint.Pod{}, "container", "c1"},
		"a further interface of one without a pod":         {endpoint.Key{ContainerID: "c1", IfName: "net1"}, endpoint.Pod{}, "container", "c1/net1"},
		"a container of which only the namespace is known": {endpoint.Key{ContainerID: "c1", IfName: "eth0"}, endpoint.Pod{Namespace: "default"}, "container", "c1"},
	} {
		if got, want := endpoint.LinkNameOf("eni", c.key, c.pod), endpoint.LinkName("eni", c.namespace, c.name); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
}

func TestMACsFollowFromTheKey(t *testing.T) {
	h1, p1 := endpoint.MACs(endpoint.Key{ContainerID: "c1", IfName: "eth0"})
	h2, p2 := endpoint.MACs(endpoint.Key{ContainerID: "c1", IfName: "eth0"})
	h3, _ := endpoint.MACs(endpoint.Key{ContainerID: "c1", IfName: "eth1"})
	if h1 != h2 || p1 != p2 || h1 == p1 || h1 == h3 {
		t.Errorf("%s %s, again %s %s, other interface %s", h1, p1, h2, p2, h3)
	}
	for _, m := range [][6]byte{h1, p1} {
		if m[0]&3 != 2 {
			t.Errorf("%x is not a local unicast address", m)
		}
	}
}

// The values are stable: a restarted agent must expect the addresses that its predecessor
// set on the links.
func TestBothEndsOfALinkHaveDifferentStableMACs(t *testing.T) {
	const want = "62:37:3c:f9:02:4d f6:cc:f9:ea:ae:39"
	host, pod := endpoint.MACs(endpoint.Key{ContainerID: "0123456789abcdef", IfName: "eth0"})
	if got := host.String() + " " + pod.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if host, pod := waiting(1).HostMAC, waiting(1).PodMAC; host == pod || host == (vpc.MAC{}) || pod == (vpc.MAC{}) {
		t.Errorf("a new endpoint has %s and %s", host, pod)
	}
}

func TestAddressesAreSortedByFamilyAndTheFirstOfEachCounts(t *testing.T) {
	a4, b4, a6, b6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	if got := endpoint.AddressesOf(a6, a4, b6, b4, netip.Addr{}); got != (endpoint.Addresses{IPv4: a4, IPv6: a6}) {
		t.Errorf("%+v", got)
	}
	if got := endpoint.AddressesOf(netip.Addr{}); got != (endpoint.Addresses{}) {
		t.Errorf("of an invalid address: %+v", got)
	}
	for _, c := range []struct {
		of   endpoint.Addresses
		want netip.Addr
	}{
		{endpoint.Addresses{IPv4: a4, IPv6: a6}, a4},
		{endpoint.Addresses{IPv6: a6}, a6},
		{endpoint.Addresses{}, netip.Addr{}},
	} {
		if got := c.of.Primary(); got != c.want {
			t.Errorf("primary of %v: %s, want %s", c.of.List(), got, c.want)
		}
	}
}

func TestEndpointsOverlapInOneAddressOfEitherFamily(t *testing.T) {
	of := func(v4, v6 string) (a endpoint.Addresses) {
		if v4 != "" {
			a.IPv4 = netip.MustParseAddr(v4)
		}
		if v6 != "" {
			a.IPv6 = netip.MustParseAddr(v6)
		}
		return a
	}
	for _, c := range []struct {
		a, b endpoint.Addresses
		want bool
	}{
		{of("10.0.0.1", ""), of("10.0.0.1", ""), true},
		{of("10.0.0.1", "fd00::1"), of("10.0.0.2", "fd00::1"), true},
		{of("10.0.0.1", "fd00::1"), of("10.0.0.1", "fd00::2"), true},
		{of("10.0.0.1", "fd00::1"), of("10.0.0.2", "fd00::2"), false},
		{of("10.0.0.1", ""), of("10.0.0.2", ""), false}, // neither has an IPv6 address
		{of("", "fd00::1"), of("", "fd00::2"), false},
		{of("", ""), of("", ""), false},
	} {
		if got := c.a.Overlaps(c.b); got != c.want || c.b.Overlaps(c.a) != got {
			t.Errorf("%v and %v overlap: %v, want %v both ways", c.a.List(), c.b.List(), got, c.want)
		}
	}
}

func TestAnEndpointIsPrintedByTwelveDigitsOfItsContainer(t *testing.T) {
	for id, want := range map[string]string{
		"0123456789abcdef": "0123456789ab/eth0", "0123456789ab": "0123456789ab/eth0", "short": "short/eth0",
	} {
		if got := (endpoint.Key{ContainerID: id, IfName: "eth0"}).String(); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
}

func TestAnEndpointWithAnInvalidOrATakenIDIsRefused(t *testing.T) {
	taken := set{7: waiting(7)}
	other := waiting(7)
	other.Key.ContainerID = "other"
	for _, c := range []struct {
		why  string
		e    endpoint.Endpoint
		want string
	}{
		{"its own row", waiting(7), ""},
		{"a free ID", waiting(8), ""},
		{"no ID", waiting(0), "must be from 1"},
		{"the largest ID", waiting(endpoint.MaxID), ""},
		{"an ID too large", waiting(endpoint.MaxID + 1), "must be from 1"},
		{"the ID of another endpoint", other, "another endpoint has it"},
	} {
		err := endpoint.Check(c.e, taken)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want an error that contains %q", c.why, err, c.want)
		}
	}
}

func TestANewEndpointHasItsNetworkAndTheTimesOfItsRequest(t *testing.T) {
	local := time.FixedZone("elsewhere", 3600)
	e := endpoint.New(3, endpoint.Key{ContainerID: "4f3a", IfName: "eth0"}, endpoint.Pod{Name: "web"}, "trunkline", epoch.In(local), epoch.Add(time.Second).In(local))
	if e.Network != "trunkline" || e.Requested != epoch || e.Since != epoch.Add(time.Second) || e.Stage != endpoint.Waiting {
		t.Errorf("%+v", e)
	}
}

func TestIDsStartAgainAtOneAfterTheLargest(t *testing.T) {
	free := func(endpoint.ID) bool { return false }
	for last, want := range map[endpoint.ID]endpoint.ID{0: 1, endpoint.MaxID - 1: endpoint.MaxID, endpoint.MaxID: 1, 1<<16 - 1: 1} {
		if id, err := endpoint.NextID(last, free); err != nil || id != want {
			t.Errorf("after %d: %d, %v; want %d", last, id, err, want)
		}
	}
	// A single free ID is found from wherever the search starts.
	for _, last := range []endpoint.ID{0, 6, 7, 8, endpoint.MaxID} {
		if id, err := endpoint.NextID(last, func(id endpoint.ID) bool { return id != 7 }); err != nil || id != 7 {
			t.Errorf("after %d: %d, %v; want 7, the only free one", last, id, err)
		}
	}
}

func TestOnlyTheSameWireIsAttachedAgain(t *testing.T) {
	first := endpoint.Wire{
		Addresses:  endpoint.AddressesOf(netip.MustParseAddr("10.0.0.7")),
		Attachment: endpoint.Attachment{Kind: endpoint.Secondary, Interface: "eni-1", Table: 2}, Link: "eni1", MTU: 9001,
	}
	wired, err := waiting(1).Attach(first, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := wired.Attach(first, epoch.Add(time.Hour)); err != nil || again != wired {
		t.Errorf("the same: %+v, %v", again, err)
	}
	for what, change := range map[string]func(*endpoint.Wire){
		"address":    func(w *endpoint.Wire) { w.Addresses.IPv4 = w.Addresses.IPv4.Next() },
		"attachment": func(w *endpoint.Wire) { w.Attachment.Interface = "eni-2" },
		"link":       func(w *endpoint.Wire) { w.Link = "eni2" },
		"MTU":        func(w *endpoint.Wire) { w.MTU = 1500 },
	} {
		other := first
		change(&other)
		if got, err := wired.Attach(other, epoch); !errors.Is(err, endpoint.ErrStage) || got != wired {
			t.Errorf("another %s: %+v, %v; want ErrStage", what, got, err)
		}
	}
	ready, err := wired.Complete(epoch)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ready.Attach(first, epoch); !errors.Is(err, endpoint.ErrStage) || got != ready {
		t.Errorf("a ready endpoint: %+v, %v; want ErrStage", got, err)
	}
	without := first
	without.Link = ""
	if got, err := waiting(1).Attach(without, epoch); err == nil {
		t.Errorf("attached without a link: %+v", got)
	}
}

func TestALinkWithoutARowIsAdoptedAsReadyUnlessItWaitsToBeDeleted(t *testing.T) {
	for dying, want := range map[bool]endpoint.Stage{false: endpoint.Ready, true: endpoint.Removing} {
		e := endpoint.Adopt(5, endpoint.Key{ContainerID: "4f3a", IfName: "eth0"}, endpoint.Pod{}, wire(5), dying, epoch)
		if e.Stage != want || e.Addresses != wire(5).Addresses || e.Link != "eni5" || e.MTU != 9001 || e.Since != epoch {
			t.Errorf("dying %v: %+v, want it %s", dying, e, want)
		}
	}
}

func TestARebootEndsEveryLinkAndChangesNoEndpointThatIsBeingRemoved(t *testing.T) {
	later := epoch.Add(time.Minute)
	e := endpoint.Adopt(5, endpoint.Key{ContainerID: "4f3a", IfName: "eth0"}, endpoint.Pod{}, wire(5), false, epoch)
	removing := e.Rebooted(later)
	if removing.Stage != endpoint.Removing || removing.Since != later || removing.Generation != e.Generation+1 {
		t.Errorf("a ready one: %+v", removing)
	}
	if again := removing.Rebooted(later.Add(time.Minute)); again != removing {
		t.Errorf("one that is removed: %+v, was %+v", again, removing)
	}
}

func TestALinkOfAPodIsKnownByTheDigitsOfItsName(t *testing.T) {
	for name, want := range map[string]bool{
		endpoint.LinkName("eni", "default", "web"): true, "x0123456789a": true, "ens5": false, "": false,
		"0123456789a": false, "x0123456789g": false, "xg123456789a": false, "abcdefghijkl": false, "eniabcdef01234": true,
	} {
		if got := endpoint.IsLinkName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestASecondAddressOfAFamilyIsLeftOut(t *testing.T) {
	first, second, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
	if got := endpoint.AddressesOf(first, second); got.IPv4 != first || got.IPv6.IsValid() {
		t.Errorf("%+v", got)
	}
	if got := endpoint.AddressesOf(first, second, six); got.IPv4 != first || got.IPv6 != six {
		t.Errorf("%+v", got)
	}
}

func TestOnlyAnEndpointWithoutAPodIsGivenOne(t *testing.T) {
	pod, other := endpoint.Pod{Namespace: "default", Name: "web", UID: "1"}, endpoint.Pod{Namespace: "default", Name: "web", UID: "2"}
	adopted := endpoint.Endpoint{Generation: 4}
	if got := adopted.Identify(pod); got.Pod != pod || got.Generation != 5 {
		t.Errorf("an adopted one: %+v", got)
	}
	if got := adopted.Identify(endpoint.Pod{}); got != adopted {
		t.Errorf("by no pod: %+v", got)
	}
	named := endpoint.Endpoint{Generation: 4, Pod: pod}
	if got := named.Identify(other); got != named {
		t.Errorf("one that has a pod: %+v", got)
	}
}
