//go:build netns

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/test/node"
)

// cloudInit configures the interfaces of a node as cloud-init of Ubuntu 24.04 and
// systemd-networkd do whenever one is attached or detached: every address of an interface is on
// its link, and rules of other programs are deleted. Sources: lab/osimage (ubuntu.go);
// lab/node/hotplug renders the same for the real systemd-networkd. The rules by which
// cloud-init sends packets from each address of a second interface to a table are not made here:
// they precede the agent's, and the agent does not repair that. It returns the addresses on links.
func cloudInit(t *testing.T, n *node.Node) (configured []netip.Addr) {
	t.Helper()
	ip := func(format string, args ...any) (done bool) {
		t.Helper()
		command := fmt.Sprintf(format, args...)
		out, err := exec.Command("ip", append([]string{"-n", n.NS.Name}, strings.Fields(command)...)...).CombinedOutput()
		harmless := func(answer string) bool { return strings.Contains(string(out), answer) }
		if err != nil && !slices.ContainsFunc([]string{"File exists", "already assigned", "No such file"}, harmless) {
			t.Fatalf("ip %s: %v: %s", command, err, out)
		}
		return err == nil
	}
	for _, e := range n.Ledger().ENIs {
		if e.State != "ready" {
			continue
		}
		link := linkWith(t, n, e.MAC)
		metric := 100 * (e.Device + 1)
		for _, a := range e.Addresses {
			ip("addr add %s/19 dev %s metric %d", a.Address, link, metric)
			configured = append(configured, a.Address)
		}
		if e.Device == 0 {
			continue
		}
		ip("route add default via 10.0.0.1 dev %s onlink proto dhcp src %s metric %d", link, e.Primary, metric)
	}
	for _, priority := range []int{512, 1536} {
		for ip("rule del priority %d", priority) {
		}
	}
	return configured
}

// linkWith returns the device with a MAC.
func linkWith(t *testing.T, n *node.Node, mac string) string {
	t.Helper()
	for line := range strings.Lines(inside(t, n, "ip", "-o", "link")) {
		if strings.Contains(line, mac) {
			name, _, _ := strings.Cut(strings.TrimSuffix(strings.Fields(line)[1], ":"), "@")
			return name
		}
	}
	t.Fatalf("no link has the MAC %s", mac)
	return ""
}

// Pods are reached while cloud-init has their addresses on the links of their interfaces, each
// time again, and no new pod gets one that is on a link.
func TestPodsAreReachedWhileCloudInitHasTheirAddresses(t *testing.T) {
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	var pods []*node.Pod
	for i := range 7 { // five on the primary interface of a t3.medium, two on the next
		pods = append(pods, n.NewPod(fmt.Sprint("p", i)))
		if err := n.Add(pods[i]); err != nil {
			t.Fatal(err)
		}
	}
	gateway, itself := netip.MustParseAddr("10.0.0.1"), &node.Pod{NS: n.NS}
	reached := func() error {
		for i, p := range pods {
			other := pods[(i+1)%len(pods)]
			for from, to := range map[*node.Pod]netip.Addr{p: gateway, itself: p.Addr, other: p.Addr} {
				if err := from.Ping(to); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := reached(); err != nil {
		t.Fatal(err)
	}
	var configured []netip.Addr
	for round := range 4 {
		configured = cloudInit(t, n)
		began := time.Now()
		n.Until("all pods are reached", reached)
		t.Logf("round %d: all pods are reached after at most %s", round, time.Since(began).Round(10*time.Millisecond))
	}
	on := inside(t, n, "ip", "-4", "-o", "addr")
	local := inside(t, n, "ip", "route", "show", "table", "local", "type", "local")
	for _, p := range pods {
		if !strings.Contains(on, p.Addr.String()+"/") {
			t.Errorf("%s of a pod is on no link any more: the agent and cloud-init take turns:\n%s", p.Addr, on)
		}
		if strings.Contains(local, p.Addr.String()+" ") {
			t.Errorf("the node itself would answer for %s of a pod:\n%s", p.Addr, local)
		}
	}
	log, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "AddressOnNode"; !strings.Contains(string(log), want) {
		t.Errorf("no event says %s", want)
	}
	n.Until("no new pod gets an address that is on a link", func() error {
		for _, e := range n.Ledger().ENIs {
			for _, a := range e.Addresses {
				if a.State == "free" && slices.Contains(configured, a.Address) {
					return fmt.Errorf("%s is free", a.Address)
				}
			}
		}
		return nil
	})
}
