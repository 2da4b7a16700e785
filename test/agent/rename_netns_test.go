//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/node"
)

// udev renames a hot-plugged device some time after the kernel created it, possibly
// after the agent found it.
func TestRenamedInterfaceKeepsItsPods(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	var last *node.Pod
	for i := range 7 { // five on the primary interface of a t3.medium, two on the next
		last = n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(last); err != nil {
			t.Fatal(err)
		}
	}
	gateway := netip.MustParseAddr("10.0.0.1")
	if err := last.Ping(gateway); err != nil {
		t.Fatal(err)
	}
	second := linkOf(t, n, last)
	for _, args := range [][]string{ // as udev does; the flushed table must be restored under the new name
		{"link", "set", second, "down"},
		{"link", "set", second, "name", "ens6"},
		{"link", "set", "ens6", "up"},
		{"route", "flush", "table", "2"},
	} {
		damage(t, n, args...)
	}
	n.Until("the pod's interface works under its new name", func() error { return last.Ping(gateway) })
	if err := n.Add(n.NewPod("after")); err != nil {
		t.Error(err)
	}
}

// linkOf returns the device of the interface that has a pod's address.
func linkOf(t *testing.T, n *node.Node, p *node.Pod) string {
	t.Helper()
	for _, e := range n.Ledger().ENIs {
		for _, a := range e.Addresses {
			if a.Address != p.Addr {
				continue
			}
			out, err := exec.Command("ip", "-n", n.NS.Name, "-o", "link").Output()
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(out)) {
				if fields := strings.Fields(line); strings.Contains(line, e.MAC) {
					name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
					return name
				}
			}
		}
	}
	t.Fatal(errors.New("no link of an interface has the pod's address"))
	return ""
}
