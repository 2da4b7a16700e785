package hostnet

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Another program configures the address of a pod on a link of the node.
func TestTheLocalRouteOfAPodsAddressIsDeleted(t *testing.T) {
	pod := Route{Table: TableMain, To: netip.MustParsePrefix("10.0.0.7/32"), Link: "eni1", Scope: ScopeLink, Protocol: RouteProtocol}
	gateway := Route{Table: 2, To: netip.MustParsePrefix("10.0.0.1/32"), Link: "eth1", Scope: ScopeLink, Protocol: RouteProtocol}
	local := func(to, link string) Route {
		return Route{Table: TableLocal, To: netip.MustParsePrefix(to), Link: link, Protocol: ProtocolKernel}
	}
	link := Link{Name: "eni1", MAC: vpc.MAC{2, 0, 0, 0, 0, 7}, Group: LinkGroupPod}
	for name, c := range map[string]struct {
		local Route
		want  bool
	}{
		"of the pod, on the primary link": {local("10.0.0.7/32", "eth0"), true},
		"of the pod, on an interface":     {local("10.0.0.7/32", "eth1"), true},
		"of the node":                     {local("10.0.0.4/32", "eth0"), false},
		"of a gateway":                    {local("10.0.0.1/32", "eth1"), false},
	} {
		want := State{Links: []Link{link}, Routes: []Route{pod, gateway}}
		have := State{Links: []Link{link}, Routes: []Route{pod, gateway}, Local: []Route{c.local}}
		parts := []Part{{Owner: "endpoint 1", State: want}}
		for how, ops := range map[string][]Op{"as a whole": Diff(want, have), "as a part": NewActual(have).Diff(want)} {
			if got := len(ops) == 1 && ops[0].Verb == Delete && ops[0].Object == Object(c.local); got != c.want || len(ops) > 1 {
				t.Errorf("%s, %s: %v", name, how, ops)
			}
		}
		if ops := NewActual(have).Extra(parts); len(ops) > 0 {
			t.Errorf("%s: as what no part has: %v", name, ops)
		}
		if ops := NewActual(have).Remove(State{Links: want.Links}, nil); len(ops) > 1 {
			t.Errorf("%s: with the pod's removal: %v", name, ops)
		}
	}
}
