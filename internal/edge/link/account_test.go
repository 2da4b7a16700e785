package link

import (
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// A pass looks while a pod is being wired, and asks what is wanted when the pod may be
// let out: its route would need the link up, which is for the ADD to do.
func TestWhatStandsOnALinkThatIsBeingWiredIsLeftToThatWork(t *testing.T) {
	a := newAccount()
	p := endpoint.Adopt(1, endpoint.Key{ContainerID: "c", IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: "web"}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.MustParseAddr("10.0.1.7")), Attachment: endpoint.Attachment{Table: hostnet.TableMain}, Link: "eniweb",
	}, false, time.Time{})
	p.Stage = endpoint.Wiring
	since := a.look()
	have := hostnet.ForEndpoint(p)
	a.putting(have)(nil)
	have.Links[0].Admin = hostnet.AdminDown
	p.Stage = endpoint.Ready
	target := hostnet.ForEndpoint(p)
	ops := hostnet.Diff(target, have)
	verdicts, _ := a.judge(since, target, have, ops)
	if len(ops) != 3 {
		t.Fatalf("%v: want the link up, a neighbour and a route", ops)
	}
	for i, op := range ops {
		if verdicts[i] != inWork {
			t.Errorf("%s is taken for ours to do", op)
		}
	}
	for _, o := range []hostnet.Object{target.Routes[0], target.Neighbours[0]} {
		if a.wanted(o.Key()) != nil {
			t.Errorf("%s counts as left there, and nobody has set it", o)
		}
	}
}
