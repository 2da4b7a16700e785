//go:build netns

package agent

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/lab/awsnode"
	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

// wireAsAWS connects a pod as AWS's plugin does, with the route table of an interface which the
// address is not on any more.
func wireAsAWS(t *testing.T, n *node.Node, name string, address netip.Addr, table int) (link string) {
	t.Helper()
	pod := awsnode.Pod{
		Namespace: "default", Name: name, NetNS: testns.New(t, "awspod").Name, IfName: "eth0",
		Address: address, Table: strconv.Itoa(table),
	}
	if err := (awsnode.Host{NetNS: n.NS.Name}).Wire(pod); err != nil {
		t.Fatal(err)
	}
	return pod.Link()
}

// A pod that AWS's plugin wired ends. Its rules go, before a pod of ours gets the address, and
// with the last such pod AWS's SNAT and marks.
func TestWhatAWSsDaemonLeftGoesWithItsPods(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=3", "headroom=0", "max-enis=1")
	n.UntilReady()
	var free netip.Addr
	for _, a := range n.Ledger().ENIs[0].Addresses {
		if a.State == "free" {
			free = a.Address
		}
	}
	link := wireAsAWS(t, n, "theirs", free, 7)
	theirs := awsnode.Filter{Link: "eth0", Address: n.Ledger().ENIs[0].Primary, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
	if err := (awsnode.Host{NetNS: n.NS.Name}).SetFilter(theirs); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	n.StartAgent("warm-ips=3", "headroom=0", "max-enis=1")
	n.UntilReady()
	rules := func() string { return inside(t, n, "ip", "-d", "rule") }
	foreign := func() (left []string) {
		for line := range strings.Lines(rules()) {
			if strings.Contains(line, free.String()+" ") && strings.Contains(line, "proto unspec") {
				left = append(left, strings.TrimSpace(line))
			}
		}
		return left
	}
	if got := foreign(); len(got) != 2 {
		t.Errorf("while the pod runs, its rules are %q", got)
	}
	if nat := inside(t, n, "iptables-nft", "-t", "nat", "-S"); !strings.Contains(nat, "AWS-SNAT-CHAIN-0") {
		t.Errorf("while the pod runs, AWS's chain is gone:\n%s", nat)
	}

	inside(t, n, "ip", "link", "del", link)
	n.Until("the rules of the pod that ended are gone", func() error {
		if got := foreign(); len(got) > 0 {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	n.Until("AWS's chain is gone", func() error {
		if nat := inside(t, n, "iptables-nft", "-t", "nat", "-S"); strings.Contains(nat, "AWS") {
			return fmt.Errorf("%s", nat)
		}
		return nil
	})
	// The node has five addresses in all, so one pod gets that of the pod that ended.
	reused := false
	for i := range 5 {
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		if err := p.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
			t.Error(err)
		}
		reused = reused || p.Addr == free
	}
	if !reused {
		t.Errorf("no pod got %s", free)
	}
	if got := foreign(); len(got) > 0 {
		t.Errorf("after the address was used again: %q", got)
	}
}
