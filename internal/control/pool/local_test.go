package pool

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// heard are the events that were created.
type heard struct{ node, pods []string }

func (h *heard) PodWarning(ref kube.PodRef, _, reason, message string) {
	h.pods = append(h.pods, ref.Name+" "+reason+": "+message)
}
func (h *heard) NodeWarning(reason, message string) { h.node = append(h.node, reason+": "+message) }

// withUsed is a pool with 10.0.0.7 and 10.0.0.8, on a node that has the given addresses.
func withUsed(t *testing.T, local map[netip.Addr]string) (*testPool, *heard) {
	t.Helper()
	p, events := newTestPool(t, &lossy{}), &heard{}
	p.Events = events
	p.Used = func(context.Context, []vpc.MAC) (link.Used, error) { return link.Used{Local: local}, nil }
	return p, events
}

// Before, a pod got the address, and the kernel delivered its packets to the node.
func TestAnAddressThatTheNodeItselfHasIsNotGivenOut(t *testing.T) {
	theirs := netip.MustParseAddr("10.0.0.7")
	local := map[netip.Addr]string{theirs: "eth1", netip.MustParseAddr("127.0.0.1"): "lo"}
	p, events := withUsed(t, local)
	for range 3 {
		if err := p.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var got []netip.Addr
	statetest.Update(t, p.State, func(tx *state.Tx) error {
		for id := range endpoint.ID(3) {
			if lease, rows, err := tx.Ledger().Assign(ipam.Holder{Endpoint: id + 100}, time.Now()); err == nil {
				tx.Record(rows...)
				got = append(got, lease.Addr)
			}
		}
		return nil
	})
	if len(got) != 1 || got[0] == theirs {
		t.Errorf("assigned %v, want the other address", got)
	}
	if len(events.node) != 1 || !strings.Contains(events.node[0], "10.0.0.7 is configured on eth1") || !strings.Contains(events.node[0], "nm-cloud-setup") {
		t.Errorf("events %q, want one with the address, the link and what to do", events.node)
	}
	if got := p.State.Pool().Local; len(got) != 1 || !strings.Contains(got[0], "10.0.0.7") {
		t.Errorf("the pool's row has %q", got)
	}
	view, _ := p.State.View(time.Now())
	if a := view.ENIs[0].Addresses[0]; a.State != ipam.Assigned || a.Holder.String() != "the node itself, on eth1" {
		t.Errorf("%s is %s by %s", a.Addr, a.State, a.Holder)
	}
	delete(local, theirs)
	if err := p.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	view, _ = p.State.View(time.Now())
	if a := view.ENIs[0].Addresses[0]; a.State != ipam.Cooling || len(p.State.Pool().Local) != 0 {
		t.Errorf("once it is gone, %s is %s and reported %q", a.Addr, a.State, p.State.Pool().Local)
	}
}

func TestAPodWithAnAddressThatTheNodeTookIsReported(t *testing.T) {
	theirs := netip.MustParseAddr("10.0.0.7")
	p, events := withUsed(t, map[netip.Addr]string{theirs: "eth0"})
	e := statetest.Ready(t, p.State, "one") // has 10.0.0.7
	for range 2 {
		if err := p.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(events.pods) != 1 || !strings.Contains(events.pods[0], "one AddressOnNode: 10.0.0.7 of default/one is configured on eth0 of the node, and the pod is reached only because") {
		t.Errorf("events %q", events.pods)
	}
	statetest.Update(t, p.State, func(tx *state.Tx) error {
		if lease, ok := tx.Ledger().Lookup(e.ID); !ok || lease.Addr != theirs {
			t.Errorf("the pod has %v", lease.Addr)
		}
		return nil
	})
}

func TestWhatIsNotUsedAtEC2IsReportedOnce(t *testing.T) {
	p, _ := withUsed(t, nil)
	reports := 0
	p.Report = func() { reports++ }
	odd := []ec2.Skipped{{Object: "subnet subnet-6", Why: "it has no IPv4 range: it is IPv6-only"}}
	for range 3 {
		p.Observer.notUsed.objects(odd)
		p.publish()
	}
	if got := p.State.Pool().Skipped; len(got) != 1 || got[0] != "subnet subnet-6: it has no IPv4 range: it is IPv6-only" || reports != 1 {
		t.Errorf("the pool's row has %q after %d reports", got, reports)
	}
	p.Observer.notUsed.objects(nil)
	if p.publish(); len(p.State.Pool().Skipped) != 0 || reports != 2 {
		t.Errorf("once it is gone: %q, %d reports", p.State.Pool().Skipped, reports)
	}
}

func TestWhyAnInterfaceWithAddressesIsNotUsedIsLoggedOnce(t *testing.T) {
	p, _ := withUsed(t, nil)
	var log strings.Builder
	p.Log = slog.New(slog.NewTextHandler(&log, nil))
	at := func(id vpc.ENIID, why string) ipam.Observed {
		return ipam.Observed{Attached: true, ENI: ipam.ENI{ID: id, PrimaryIP: netip.MustParseAddr("10.0.0.9"), Unmanaged: why != "", WhyUnmanaged: why}}
	}
	ours, theirs, without := at("eni-1", ""), at("eni-2", "its tag node.k8s.amazonaws.com/no_manage is true"), at("eni-3", "its type is \"efa-only\"")
	without.ENI.PrimaryIP = netip.Addr{}
	for range 3 {
		p.Observer.notUsed.interfaces([]ipam.Observed{ours, theirs, without})
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "eni=eni-2") || !strings.Contains(got, "no_manage is true") {
		t.Errorf("log %q, want one line of eni-2", got)
	}
	theirs.ENI.WhyUnmanaged = "its type is \"branch\""
	p.Observer.notUsed.interfaces([]ipam.Observed{theirs})
	if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "branch") {
		t.Errorf("log %q, want a line of the other reason", got)
	}
}
