//go:build netns

package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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

// freeAddress is an address of the primary interface that no pod has.
func freeAddress(n *node.Node) (free netip.Addr) {
	for _, a := range n.Ledger().ENIs[0].Addresses {
		if a.State == "free" {
			free = a.Address
		}
	}
	return free
}

// portmapAsAWS has portmap serve the hostPort 8080 of a pod, as the last plugin of AWS's chain.
func portmapAsAWS(t *testing.T, n *node.Node, portmap string, p *node.Pod, link string, address netip.Addr) {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"cniVersion": "0.4.0", "name": "aws-cni", "type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true},
		"runtimeConfig": p.RT.CapabilityArgs,
		"prevResult": map[string]any{
			"cniVersion": "0.4.0", "interfaces": []map[string]string{{"name": link}, {"name": "eth0", "sandbox": p.RT.NetNS}},
			"ips": []map[string]any{{"version": "4", "address": address.String() + "/32", "interface": 1}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", n.NS.Name, portmap)
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+p.RT.ContainerID, "CNI_NETNS="+p.RT.NetNS, "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(portmap))
	cmd.Stdin = bytes.NewReader(config)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("portmap: %v: %s", err, out)
	}
}

// dhcpRoutes makes the routes that systemd-networkd makes on the primary link: to the subnet's
// router, and to the VPC's resolver, which is in the subnet. Source: `ip route` of EKS nodes
// with Amazon Linux 2023: "192.168.0.1 dev ens5 proto dhcp scope link src ... metric 512", and
// the same for 192.168.0.2.
func dhcpRoutes(t *testing.T, n *node.Node) {
	t.Helper()
	for _, to := range []string{"10.0.0.1", "10.0.0.2"} {
		inside(t, n, "ip", "route", "add", to+"/32", "dev", "eth0", "proto", "dhcp", "scope", "link", "metric", "512")
	}
}

// A pod that AWS's plugin wired ends. Its rules go, before a pod of ours gets the address, and
// with the last such pod AWS's SNAT and marks.
func TestWhatAWSsDaemonLeftGoesWithItsPods(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=3", "headroom=0", "max-enis=1")
	n.UntilReady()
	free := freeAddress(n)
	link := wireAsAWS(t, n, "theirs", free, 7)
	dhcpRoutes(t, n)
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

// The DEL of a pod that AWS's chain wired has the name of our network, so portmap leaves its
// hostPort, which precedes that of the next pod.
func TestAHostPortOfAPodThatAWSsChainWiredGoesWithThePod(t *testing.T) {
	n := node.New(t, node.Config{})
	portmap := buildPortmap(n)
	n.StartAgent("warm-ips=3", "headroom=0", "max-enis=1")
	n.UntilReady()
	free := freeAddress(n)
	link := wireAsAWS(t, n, "theirs", free, 7)
	theirs := webPod(n)
	theirs.RT.ContainerID = "theirs"
	portmapAsAWS(t, n, portmap, theirs, link, free)
	n.Stop()
	n.StartAgent("warm-ips=3", "headroom=0", "max-enis=1")
	n.UntilReady()
	hostPort := func() bool {
		return strings.Contains(inside(t, n, "iptables-nft", "-t", "nat", "-S"), free.String()+":80")
	}
	if !hostPort() {
		t.Error("the hostPort is gone while its pod runs")
	}
	cni, list := n.CNI()
	if err := n.NS.Run(func() error { return cni.DelNetworkList(t.Context(), list, theirs.RT) }); err != nil {
		t.Fatal(err)
	}
	if !hostPort() {
		t.Error("portmap has deleted the hostPort by itself: the test detects nothing")
	}
	inside(t, n, "ip", "link", "del", link)
	n.Until("the hostPort of the pod that ended is gone", func() error {
		if hostPort() {
			return fmt.Errorf("%s is still the destination", free)
		}
		return nil
	})
	servesHostPort(t, n)
}
