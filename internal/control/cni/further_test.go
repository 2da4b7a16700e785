package cni

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
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
