package cni

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Multus has the plugin make a second interface of a pod.
func TestAFurtherInterfaceOfAContainerIsAnEndpointOfItsOwn(t *testing.T) {
	h := newHarness(t)
	first, further := request("ADD", "known"), request("ADD", "known")
	further.IfName = "net1"
	for range 2 { // the second time they are repeated
		for _, add := range []*cnirpc.Request{first, further} {
			if _, failure := h.call(t, add); failure != nil {
				t.Fatal(failure)
			}
		}
		if n := len(h.State.Endpoints()); n != 2 {
			t.Fatalf("%d endpoints after steps %v, want two", n, h.wires.done)
		}
	}
	one, isOne := h.ofCall()
	two, isTwo := h.State.Endpoint(endpoint.Key{ContainerID: "c1", IfName: "net1"})
	if !isOne || !isTwo || one.Link == two.Link || one.Addresses.Overlaps(two.Addresses) || one.ID == two.ID {
		t.Fatalf("the endpoints are %+v and %+v, want two with their own link and address", one, two)
	}
	if one.Link != endpoint.LinkName("eni", "default", "known") {
		t.Errorf("the first link is %s, not that by which AWS's tools find it", one.Link)
	}
	further.Command = "DEL"
	if _, failure := h.call(t, further); failure != nil {
		t.Fatal(failure)
	}
	if left := h.State.Endpoints(); len(left) != 1 || left[0] != one {
		t.Errorf("left %+v, want %+v alone", left, one)
	}
}

// Another CNI made the pod's first interface, and has Multus call our plugin for a second one:
// the pod's sandbox is not a new one, and keeps its address.
func TestAFurtherInterfaceDoesNotEndTheClaimOfItsPod(t *testing.T) {
	h := newHarness(t)
	first := ipam.Claim{Holder: ipam.ForeignHolder(endpoint.Pod{Namespace: "default", Name: "known", UID: "u1"}), Made: time.Now()}
	statetest.Update(t, h.State, func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Claim(map[netip.Addr]ipam.Claim{netip.MustParseAddr("10.0.0.7"): first, netip.MustParseAddr("10.0.0.8"): first}, true, time.Now())...)
		return nil
	})
	a := addOf("known", "u1").on(h)
	a.request.IfName = "net1"
	if err := a.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := a.attach(ctx); !errors.Is(err, ipam.ErrNoAddress) {
		t.Errorf("ADD: %v, want %v", err, ipam.ErrNoAddress)
	}
	if h.count(ipam.Cooling) != 0 || h.count(ipam.Assigned) != 2 {
		t.Errorf("%d addresses are assigned, %d in their cool-down; want both assigned", h.count(ipam.Assigned), h.count(ipam.Cooling))
	}
}

// oneBranch gives every pod the same branch.
type oneBranch struct{ Branches }

func (oneBranch) Grant(context.Context, kube.Pod, endpoint.Key) (Grant, error) {
	return Grant{
		Addresses:  endpoint.Addresses{IPv4: netip.MustParseAddr("10.0.1.7")},
		Attachment: endpoint.Attachment{Kind: endpoint.Branch, Interface: "eni-0123456789abcdef0", Table: 103, Branch: endpoint.BranchLink{VLAN: 3, Mode: endpoint.Strict}},
	}, nil
}

// A pod has one branch: a further interface is refused, and the first one keeps it.
func TestAFurtherInterfaceOfAPodOnABranchIsRefused(t *testing.T) {
	h := newHarness(t)
	h.Branches = oneBranch{}
	add := func(ifName string) error {
		a := addOf("known", "u1").on(h)
		a.request.IfName = ifName
		if err := a.identify(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.pod.BranchInterface = true
		return a.attach(t.Context())
	}
	if err := add("eth0"); err != nil {
		t.Fatal(err)
	}
	var refusal *cnirpc.Error
	if err := add("net1"); !errors.As(err, &refusal) || refusal.Code != cnirpc.CodeRefused {
		t.Errorf("a further interface: %v", err)
	}
	if left := h.State.Endpoints(); len(left) != 1 || left[0].Key.IfName != "eth0" || left[0].Stage == endpoint.Removing {
		t.Errorf("endpoints %+v", left)
	}
}
