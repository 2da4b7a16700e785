//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// damageJournal flips a byte in the middle.
func damageJournal(t *testing.T, n *node.Node) {
	t.Helper()
	path := filepath.Join(n.Dir, "state", "journal", "log")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 0xff
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// row returns the ledger's entry of an address; the zero value if there is none.
func row(n *node.Node, addr netip.Addr) introspection.Address {
	for _, e := range n.Ledger().ENIs {
		for _, a := range e.Addresses {
			if a.Address == addr {
				return a
			}
		}
	}
	return introspection.Address{}
}

// The journal is lost, and a stale describe does not show the pod's address: only the
// kernel has it. The pod keeps its network, no other pod gets its address, and the
// ledger records it once EC2 shows the address.
func TestPodSurvivesALostJournalAndAStaleDescribe(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	if err := n.Faults().Set(faults.Plan{DescribeLag: faults.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	a, gateway := n.NewPod("a"), netip.MustParseAddr("10.0.0.1")
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	damageJournal(t, n)
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	for i := range 4 {
		other := n.NewPod(fmt.Sprint("other", i))
		if err := n.Add(other); err != nil {
			t.Fatal(err)
		}
		if other.Addr == a.Addr {
			t.Fatalf("%s is assigned twice", a.Addr)
		}
	}
	if err := a.Ping(gateway); err != nil {
		t.Errorf("the pod with an address that describes do not show: %v", err)
	}
	if err := n.Faults().Set(faults.Plan{}); err != nil {
		t.Fatal(err)
	}
	n.Until("the ledger has the pod", func() error {
		if got := row(n, a.Addr); got.State != "assigned" || got.Container != a.RT.ContainerID {
			return fmt.Errorf("%s is %q of %q", a.Addr, got.State, got.Container)
		}
		return nil
	})
	if err := a.Ping(gateway); err != nil {
		t.Error(err)
	}
	if err := n.Del(a); err != nil {
		t.Error(err)
	}
	n.Until("its address is free again", func() error {
		if got := row(n, a.Addr); got.State != "free" {
			return fmt.Errorf("%s is %s", a.Addr, got.State)
		}
		return nil
	})
}

// foreign wires a pod as AWS's CNI does: a veth without our alias, a route to the
// address through it, and the rule to the pod.
func foreign(t *testing.T, n *node.Node, p *node.Pod, addr netip.Addr, link string) {
	t.Helper()
	other, err := os.Open(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	to := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
	n.NS.Do(t, func() {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(other.Fd()))})
		if err != nil {
			t.Fatal(err)
		}
		host, err := netlink.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		rule := netlink.NewRule()
		rule.Priority, rule.Dst, rule.Table = hostnet.RuleToPod, to, hostnet.TableMain
		if err := errors.Join(netlink.LinkSetUp(host),
			netlink.RouteAdd(&netlink.Route{LinkIndex: host.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}), netlink.RuleAdd(rule)); err != nil {
			t.Fatal(err)
		}
	})
	p.Do(t, func() {
		eth0, err := netlink.LinkByName("eth0")
		if err == nil {
			err = errors.Join(netlink.AddrAdd(eth0, &netlink.Addr{IPNet: to}), netlink.LinkSetUp(eth0))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A node with running pods is migrated from AWS's CNI.
func TestForeignWiredPodsKeepTheirAddressesAndLinks(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	primary := n.State().Primary(n.State().InstanceNamed("node1").ID)
	had, err := n.Cloud().Interface(primary.ID).AssignIPv4(cloud.Want{Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	theirs, addr := n.NewPod("theirs"), had.Addresses[0]
	foreign(t, n, theirs, addr, "eni0123456789a")
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	for i := range 6 { // more than one interface has addresses
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		if p.Addr == addr {
			t.Fatalf("%s is assigned twice", addr)
		}
	}
	n.NS.Do(t, func() {
		if _, err := netlink.LinkByName("eni0123456789a"); err != nil {
			t.Errorf("the other CNI's link: %v", err)
		}
		rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Priority: hostnet.RuleToPod, Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_DST)
		if err != nil || len(rules) != 1 {
			t.Errorf("the other CNI's rule: %v, %v", rules, err)
		}
	})
	if got := row(n, addr); got.State != "assigned" {
		t.Errorf("%s is %s", addr, got.State)
	}
	n.NS.Do(t, func() {
		l, err := netlink.LinkByName("eni0123456789a")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	n.Until("the address is free once the pod is deleted", func() error {
		if got := row(n, addr); got.State != "free" {
			return fmt.Errorf("%s is %s", addr, got.State)
		}
		return nil
	})
}

// A spooled DEL and an ADD of the same attachment are ordered by cause: the clock may step
// between them.
func TestASpooledDELIsExecutedBeforeALaterADDAndAfterAnEarlierOne(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	a := n.NewPod("a")
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(n.Dir, "state", "spool")
	del := func(at time.Time) {
		t.Helper()
		if err := cnirpc.Spool(spool, cnirpc.Request{Command: "DEL", ContainerID: a.RT.ContainerID, IfName: "eth0", Config: []byte("{}")}, at); err != nil {
			t.Fatal(err)
		}
	}
	drained := func() {
		t.Helper()
		n.Until("the spool is drained", func() error {
			left, err := cnirpc.ReadSpool(spool)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%d left", len(left))
			}
			return err
		})
	}
	del(time.Now().Add(time.Hour)) // the clock steps back after it
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	drained()
	if got := row(n, a.Addr); got.Container != a.RT.ContainerID {
		t.Errorf("%s is %s: the older DEL released it", a.Addr, got.State)
	}
	if err := a.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Error(err)
	}
	del(time.Now().Add(-time.Hour)) // the clock has stepped back since the ADD
	drained()
	if got := row(n, a.Addr); got.State == "assigned" {
		t.Errorf("%s is %s after a later DEL", a.Addr, got.State)
	}
}
