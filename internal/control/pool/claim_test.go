package pool

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
)

func claim(t *testing.T, s *state.Store, pods []kube.Pod, used link.Used) {
	t.Helper()
	statetest.Update(t, s, func(tx *state.Tx) error {
		claimAll(tx, claimsOf(pods, used), true, time.Now())
		return nil
	})
}

// The API server lists what AWS's CNI gave to a pod, the kernel shows another's, and the
// ledger is new.
func TestAddressesOfPodsThatWereWiredBeforeAreNotAssigned(t *testing.T) {
	s := journaled(t, t.TempDir())
	statetest.Observe(t, s) // 10.0.0.7 and 10.0.0.8
	listed, routed := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")
	pods := []kube.Pod{
		{PodRef: kube.PodRef{Namespace: "default", Name: "web"}, UID: "u1", Addresses: []netip.Addr{listed}, Created: time.Now()},
		{PodRef: kube.PodRef{Namespace: "default", Name: "ended"}, UID: "u2", Addresses: []netip.Addr{routed}, Done: true},
	}
	claim(t, s, pods, link.Used{Routed: map[netip.Addr]string{routed: "eni1"}})
	statetest.Update(t, s, func(tx *state.Tx) error {
		if lease, _, err := tx.Ledger().Assign(ipam.Holder{Endpoint: 1}, time.Now()); err == nil {
			t.Errorf("%s was assigned", lease.Addr)
		}
		return nil
	})
	_, leases := s.View(time.Now())
	if len(leases) != 2 || leases[0].Holder.String() != "default/web" {
		t.Errorf("leases %+v, want that of default/web and one of a pod without a name", leases)
	}
	claim(t, s, pods[:1], link.Used{})
	view, _ := s.View(time.Now())
	if got := view.ENIs[0].Addresses; got[0].State != ipam.Assigned || got[1].State != ipam.Cooling {
		t.Errorf("once a link is gone: %v", got)
	}
}

// A pod is kept while EC2 does not show its address, and holds it once EC2 does.
func TestAPodAdoptedBeforeEC2ShowsItsAddressGetsIt(t *testing.T) {
	s := journaled(t, t.TempDir())
	e := endpoint.Adopt(3, endpoint.Key{ContainerID: "c1", IfName: "eth0"}, endpoint.Pod{}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.MustParseAddr("10.0.0.7")), Link: "eni1",
	}, false, time.Now())
	statetest.Update(t, s, func(tx *state.Tx) error { return tx.Put(e) })
	claim(t, s, nil, link.Used{})
	statetest.Observe(t, s)
	statetest.Update(t, s, func(tx *state.Tx) error {
		if got, ok := tx.Ledger().Lookup(e.ID); !ok || got.Addr != e.Addresses.IPv4 {
			t.Errorf("it has %v, %v", got.Addr, ok)
		}
		return nil
	})
}

// A node is full, and the runtime makes a new sandbox for a pod that another CNI wired. The
// ADD waits for the pod's own earlier address, also across a restart of the agent.
func TestAnADDThatFindsNoAddressEndsTheEarlierSandboxOfItsPod(t *testing.T) {
	p := newTestPool(t, &lossy{})
	statetest.Ready(t, p.State, "one") // has 10.0.0.7
	addr := netip.MustParseAddr("10.0.0.8")
	web := kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "web"}, UID: "u1", Addresses: []netip.Addr{addr}, Created: time.Now()}
	claim(t, p.State, []kube.Pod{web}, link.Used{})
	add := func() error {
		p.Backend().Renewed(endpoint.Pod{Namespace: "default", Name: "web", UID: "u1"})
		e := endpoint.New(9, endpoint.Key{ContainerID: "c9", IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: "web", UID: "u1"}, "trunkline", time.Now(), time.Now())
		_, err := p.State.Update(func(tx *state.Tx) error {
			_, err := p.Backend().Assign(tx, e, time.Now())
			return err
		})
		return err
	}
	if err := add(); !errors.Is(err, ipam.ErrAllCooling) {
		t.Errorf("ADD: %v, want that its earlier address cools down", err)
	}
	var table strings.Builder
	if err := p.State.DB.Snapshot().Print(&table, "addresses"); err != nil || !strings.Contains(table.String(), string(ipam.Cooling)) {
		t.Errorf("%v, the table has\n%s", err, &table)
	}
	nextProcess(t, p, &lossy{})
	if view, _ := p.State.View(time.Now()); view.ENIs[0].Count(ipam.Cooling) != 1 {
		t.Errorf("after a restart: %v, want %s in its cool-down", view.ENIs[0].Addresses, addr)
	}
}

func TestAnAdoptedEndpointHasASecondaryAddressOfItsInterface(t *testing.T) {
	p := newTestPool(t, &lossy{})
	for addr, want := range map[string]endpoint.Attachment{
		"10.0.0.7": {Kind: endpoint.Secondary, Interface: "eni-1", Table: 3},
		"10.0.9.9": {Kind: endpoint.Secondary, Table: 3}, // EC2 has not shown it
	} {
		statetest.Update(t, p.State, func(tx *state.Tx) error {
			id, err := tx.NextID()
			if err != nil {
				return err
			}
			e := endpoint.Adopt(id, endpoint.Key{ContainerID: addr, IfName: "eth0"}, endpoint.Pod{}, endpoint.Wire{
				Addresses: endpoint.AddressesOf(netip.MustParseAddr(addr)), Link: "eni1", Attachment: endpoint.Attachment{Table: 3},
			}, false, time.Now())
			got, err := p.Backend().Adopt(tx, e, time.Now())
			if got != want || err != nil && !errors.Is(err, ipam.ErrUnknown) {
				t.Errorf("%s: %+v, %v, want %+v", addr, got, err, want)
			}
			return nil
		})
	}
}
