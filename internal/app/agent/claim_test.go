package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// The API server lists what AWS's CNI gave to a pod, the kernel shows another's, and the
// ledger is new.
func TestAddressesOfPodsThatWereWiredBeforeAreGivenToNobody(t *testing.T) {
	b := filled(t, defaults(t))
	observe(t, b) // 10.0.0.7 and 10.0.0.8
	listed, routed := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")
	pods := []kube.Pod{
		{PodRef: kube.PodRef{Namespace: "default", Name: "web"}, UID: "u1", Addresses: []netip.Addr{listed}, Created: time.Now()},
		{PodRef: kube.PodRef{Namespace: "default", Name: "ended"}, UID: "u2", Addresses: []netip.Addr{routed}, Done: true},
	}
	give := func() (ipam.Lease, error) {
		lease, _, err := b.ledger.Assign(ipam.Owner{ContainerID: "c1", IfName: "eth0"}, time.Now())
		return lease, err
	}
	b.claim(claimsOf(pods, map[netip.Addr]string{routed: "eni1"}), true, time.Now())
	if lease, err := give(); err == nil {
		t.Fatalf("%s was given out", lease.Addr)
	}
	_, leases := b.view(time.Now())
	if len(leases) != 2 || leases[0].Owner.Pod() != "default/web" {
		t.Errorf("leases %+v, want that of default/web and one of a pod without a name", leases)
	}
	b.claim(claimsOf(pods[:1], nil), true, time.Now())
	view, _ := b.view(time.Now())
	if got := view.ENIs[0].Addresses; got[0].State != ipam.Assigned || got[1].State != ipam.Cooling {
		t.Errorf("once a link is gone: %v", got)
	}
}

// A pod whose address EC2 does not show yet is kept, and gets it when EC2 does.
func TestAPodTakenOverBeforeEC2ShowsItsAddressIsKept(t *testing.T) {
	cfg := defaults(t)
	b := filled(t, cfg)
	at := attachment{
		Owner: ipam.Owner{ContainerID: "c1", IfName: "eth0"}, Addr: netip.MustParseAddr("10.0.0.7"),
		Table: 254, MTU: 9001, Link: "eni1", Stage: wired, Since: time.Now().UTC().Round(0),
	}
	if err := b.adopt(t.Context(), at); err == nil {
		t.Fatal("an address that nobody showed was leased")
	}
	if _, kept := b.get(at.Owner.Key()); !kept {
		t.Fatal("the pod is not in the book: its link would be deleted")
	}
	b.claim(claimsOf(nil, nil), true, time.Now())
	observe(t, b)
	if got, ok := b.ledger.Lookup(at.Owner.Key()); !ok || got.Addr != at.Addr {
		t.Errorf("it has %v, %v", got.Addr, ok)
	}
}

// A link that waits for the reaper has its address until it is gone.
func TestAnAddressOnALinkThatIsGoingIsInQuarantineAfterALoss(t *testing.T) {
	b := filled(t, defaults(t))
	observe(t, b)
	at := attachment{
		Owner: ipam.Owner{ContainerID: "c1", IfName: "eth0"}, Addr: netip.MustParseAddr("10.0.0.7"),
		Link: "eni1", Stage: deleting, Since: time.Now(),
	}
	if err := b.adopt(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	state := func() ipam.State {
		view, _ := b.view(time.Now())
		return view.ENIs[0].Addresses[0].State
	}
	if got := state(); got != ipam.Quarantined {
		t.Errorf("%s while the link is there", got)
	}
	if b.gone(at.Owner.Key(), time.Now()); state() != ipam.Cooling {
		t.Errorf("%s once it is gone", state())
	}
}
