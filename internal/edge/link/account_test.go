package link

import (
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// A pass reads the kernel while a pod is being wired, and the desired state when the pod is
// ready: the route needs the link up, which is a step of the ADD.
func TestObjectsOnALinkThatIsBeingWiredAreLeftToItsADD(t *testing.T) {
	a := newAccount()
	p := endpoint.Adopt(1, endpoint.Key{ContainerID: "c", IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: "web"}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.MustParseAddr("10.0.1.7")), Attachment: endpoint.Attachment{Table: hostnet.TableMain}, Link: "eniweb",
	}, false, time.Time{})
	p.Stage = endpoint.Wiring
	since := a.observe()
	have := hostnet.ForEndpoint(p)
	a.putting(have)(nil)
	have.Links[0].Admin = hostnet.AdminDown
	p.Stage = endpoint.Ready
	target := hostnet.ForEndpoint(p)
	ops := hostnet.Diff(target, have)
	verdicts, _ := a.attribute(since, target, have, ops)
	if len(ops) != 3 {
		t.Fatalf("%v: want the link up, a neighbour and a route", ops)
	}
	for i, op := range ops {
		if verdicts[i] != inFlight {
			t.Errorf("%s is attributed to the pass", op)
		}
	}
	for _, o := range []hostnet.Object{target.Routes[0], target.Neighbours[0]} {
		if a.expected(o.Key()) != nil {
			t.Errorf("%s counts as left there, but was never set", o)
		}
	}
}
