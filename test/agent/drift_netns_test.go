//go:build netns

package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/node"
)

// reports returns the agent's log lines and events about external changes.
func reports(t *testing.T, n *node.Node) (lines []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "node=NetworkDrift") || strings.Contains(line, "the node's network was changed externally") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// Pods and interfaces are added and deleted, with their links, routes, rules and
// nftables elements, while passes over the kernel observe incomplete work: none of it
// is drift. An external change in the middle of it is.
func TestOwnChangesAreNotReportedAsDrift(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes more than a minute: younger interfaces are not released")
	}
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=1", "headroom=0", "idle-after=2s", "release-every=1s", "cool-down=1s")
	n.UntilReady()
	stay := n.NewPod("stay")
	if err := n.Add(stay); err != nil {
		t.Fatal(err)
	}
	pods := make([]*node.Pod, 11) // all addresses of the primary interface and most of two more
	for i := range pods {
		pods[i] = n.NewPod(fmt.Sprint("p", i))
	}
	enis := map[string]bool{}
	most := func() (least int) {
		for _, e := range n.Ledger().ENIs {
			enis[e.ID] = true
		}
		return len(n.Ledger().ENIs)
	}
	began := time.Now()
	for round := 0; round < 3 || time.Since(began) < 65*time.Second; round++ {
		together(t, pods, n.Add)
		most()
		together(t, pods, n.Del)
	}
	if len(enis) < 3 {
		t.Errorf("only interfaces %v were used, want three", enis)
	}
	until(t, time.Minute, "an interface is released", func() error {
		if left := most(); left > 2 {
			return fmt.Errorf("%d interfaces", left)
		}
		return nil
	})
	together(t, pods, n.Add)
	if got := reports(t, n); len(got) > 0 {
		t.Errorf("%d reports about the agent's own changes:\n%s", len(got), strings.Join(got, "\n"))
	}
	// The same again with an external change.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5 {
			together(t, pods, n.Del)
			together(t, pods, n.Add)
		}
	}()
	damage(t, n, "rule", "del", "prio", fmt.Sprint(hostnet.RuleToPod), "to", stay.Addr.String())
	n.Until("the deleted rule is reported", func() error { return reported(t, n, "rule 512: from all to "+stay.Addr.String()) })
	<-done
	for _, line := range reports(t, n) {
		if !strings.Contains(line, stay.Addr.String()) {
			t.Errorf("a report about the agent's own change: %s", line)
		}
	}
}

// together calls do for all pods, four at a time.
func together(t *testing.T, pods []*node.Pod, do func(*node.Pod) error) {
	t.Helper()
	for batch := range slices.Chunk(pods, 4) {
		errs := make(chan error, len(batch))
		for _, p := range batch {
			go func() { errs <- do(p) }()
		}
		for range batch {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	}
}

func damage(t *testing.T, n *node.Node, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", n.NS.Name}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func reported(t *testing.T, n *node.Node, what string) error {
	logged, event := false, false
	for _, line := range reports(t, n) {
		logged = logged || strings.Contains(line, what) && strings.Contains(line, "(repaired)")
		event = event || strings.Contains(line, "node=NetworkDrift")
	}
	if logged && event {
		return nil
	}
	return fmt.Errorf("no report of %q among %q", what, reports(t, n))
}

// Each kind of damage to the kernel's state is repaired and reported.
func TestEveryExternalChangeIsRepairedAndReported(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	var pods []*node.Pod
	for i := range 7 { // five on the primary interface, two on the next
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	first, last := pods[0], pods[6]
	cni, list := n.CNI()
	for _, c := range []struct {
		name, reports string
		do            func()
	}{
		{"rules flushed", "rule 1536: from " + last.Addr.String(), func() { damage(t, n, "rule", "flush") }},
		{"a pod's route", "route " + first.Addr.String(), func() { damage(t, n, "route", "del", first.Addr.String()) }},
		{"an interface's table", "table 2", func() { damage(t, n, "route", "flush", "table", "2") }},
		{"a pod's neighbour", "neighbour " + first.Addr.String(), func() { deleteNeighbour(t, n, first) }},
		{"the nftables table", "table inet trunkline: is missing", func() { deleteTable(t, n) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.do()
			n.Until("it is reported", func() error { return reported(t, n, c.reports) })
			n.Until("CHECK succeeds", func() error {
				return errors.Join(cni.CheckNetworkList(t.Context(), list, first.RT), cni.CheckNetworkList(t.Context(), list, last.RT))
			})
			if err := last.Ping(first.Addr); err != nil {
				t.Error(err)
			}
		})
	}
}

// External changes while no agent runs are reported by the next agent.
func TestExternalChangesWhileNoAgentRunsAreReported(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	settings := []string{"warm-ips=1", "headroom=0"}
	n.StartAgent(settings...)
	n.UntilReady()
	var pods []*node.Pod
	for i := range 7 { // five on the primary interface, two on the next
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	first, last, wired := pods[0], pods[6], time.Now()
	n.Until("the pods are older than two seconds", func() error {
		if time.Since(wired) < 2*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	// restart kills the agent, damages the node and starts an agent again.
	restart := func(damage func(), settings ...string) {
		n.Kill()
		damage()
		n.StartAgent(settings...)
		n.UntilReady()
	}
	restart(func() {}, settings...)
	if got := reports(t, n); len(got) > 0 {
		t.Errorf("reports without an external change:\n%s", strings.Join(got, "\n"))
	}
	restart(func() {
		damage(t, n, "rule", "del", "prio", fmt.Sprint(hostnet.RuleToPod), "to", first.Addr.String())
		damage(t, n, "route", "del", last.Addr.String())
		damage(t, n, "route", "flush", "table", "2")
	}, settings...)
	for _, what := range []string{"rule 512: from all to " + first.Addr.String(), "route " + last.Addr.String(), "route default via 10.0.0.1"} {
		n.Until(what+" is reported", func() error { return reported(t, n, what) })
	}
	known := len(reports(t, n))
	restart(func() {
		damage(t, n, "rule", "del", "prio", fmt.Sprint(hostnet.RuleToPod), "to", first.Addr.String())
		deleteTable(t, n)
	}, "warm-ips=2", "headroom=0")
	n.Until("changes before an agent with other settings are reported", func() error {
		if err := reported(t, n, "table inet trunkline: is missing"); err != nil {
			return err
		}
		all := strings.Join(reports(t, n)[known:], "\n")
		if !strings.Contains(all, "rule 512: from all to "+first.Addr.String()) {
			return fmt.Errorf("the deleted rule is not among\n%s", all)
		}
		return nil
	})
	if err := last.Ping(first.Addr); err != nil {
		t.Errorf("not repaired: %v", err)
	}
}

// A pass over the kernel cannot restore a deleted pod link; it must be reported.
func TestDeletedPodLinkIsReported(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	p := n.NewPod("a")
	if err := n.Add(p); err != nil {
		t.Fatal(err)
	}
	link := endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", "a")
	damage(t, n, "link", "del", link)
	n.Until("it is reported", func() error {
		for _, line := range reports(t, n) {
			if strings.Contains(line, "node=NetworkDrift") && strings.Contains(line, link) && strings.Contains(line, "cannot repair it") {
				return nil
			}
		}
		return fmt.Errorf("the reports are %q", reports(t, n))
	})
}

func deleteNeighbour(t *testing.T, n *node.Node, p *node.Pod) {
	n.NS.Do(t, func() {
		all, err := netlink.NeighList(0, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range all {
			if entry.IP.String() == p.Addr.String() {
				err = errors.Join(err, netlink.NeighDel(&entry))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

func deleteTable(t *testing.T, n *node.Node) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(n.NS.Open(t).Fd())))
	if err != nil {
		t.Fatal(err)
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: hostnet.Table})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}
