package endpoint_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
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
