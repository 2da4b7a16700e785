//go:build netns

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/handover/handovertest"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/node"
)

// inside runs a program in the node's namespace.
func inside(t *testing.T, n *node.Node, argv ...string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", n.NS.Name}, argv...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// uninstall runs `trunkline uninstall`, without an agent, and kills it after a time unless
// that is 0.
func uninstall(t *testing.T, n *node.Node, killAfter time.Duration) (completed bool) {
	t.Helper()
	cmd := n.Command("uninstall")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := n.NS.Run(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if killAfter > 0 {
		defer time.AfterFunc(killAfter, func() { _ = cmd.Process.Kill() }).Stop()
	}
	err := cmd.Wait()
	if err != nil && killAfter == 0 {
		t.Fatalf("uninstall: %v\n%s", err, output.String())
	}
	return err == nil
}

// awsDaemon starts AWS's daemon on a node, as far as addresses are concerned, with the links
// and interfaces that the node has.
func awsDaemon(t *testing.T, n *node.Node, checkpoint []byte) *handovertest.Daemon {
	t.Helper()
	var links []string
	n.NS.Do(t, func() {
		list, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			links = append(links, l.Attrs().Name)
		}
	})
	var secondary []netip.Addr
	for _, i := range n.State().Interfaces {
		secondary = append(secondary, i.IPv4.Addresses[1:]...)
	}
	d, err := handovertest.Start(checkpoint, secondary, links)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wired(t *testing.T, n *node.Node, count int) (pods []*node.Pod, addresses []netip.Addr) {
	t.Helper()
	for i := range count {
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods, addresses = append(pods, p), append(addresses, p.Addr)
	}
	return pods, addresses
}

func givenTwice(d *handovertest.Daemon, inUse []netip.Addr) (twice []netip.Addr) {
	for i := 0; ; i++ {
		a, ok := d.Add(handovertest.Key{Container: fmt.Sprint("new-", i)})
		if !ok {
			return twice
		}
		if slices.Contains(inUse, a) {
			twice = append(twice, a)
		}
	}
}

func left(t *testing.T, n *node.Node) (tables, nodeRules string) {
	t.Helper()
	rules := inside(t, n, "ip", "rule", "show", "pref", "1024")
	return inside(t, n, "nft", "list", "ruleset"), strings.TrimSpace(rules)
}

func TestAWSsDaemonTakesOverTheAddressesOfANodeThatTheAgentLeaves(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{Type: "m5.xlarge"})
	n.StartAgent("removed")
	n.UntilReady()
	pods, inUse := wired(t, n, 20)
	outside := netip.MustParseAddr(world.OutsideAddress)
	if err := pods[19].Ping(outside); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	checkpoint, err := os.ReadFile(n.Checkpoint())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(n.Checkpoint()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want mode 0600", info, err)
	}
	d := awsDaemon(t, n, checkpoint)
	if len(d.Assigned) != len(inUse) || len(d.Stale)+len(d.Unknown) > 0 {
		t.Errorf("of %d addresses in use %d are adopted, stale %v, unknown %v", len(inUse), len(d.Assigned), d.Stale, d.Unknown)
	}
	for _, p := range pods {
		if d.Assigned[p.Addr].Container != p.RT.ContainerID {
			t.Errorf("%s is adopted for %v, it is of %s", p.Addr, d.Assigned[p.Addr], p.RT.ContainerID)
		}
	}
	if twice := givenTwice(d, inUse); len(twice) > 0 {
		t.Errorf("given twice: %v", twice)
	}
	if twice := givenTwice(awsDaemon(t, n, nil), inUse); len(twice) != len(inUse) {
		t.Errorf("without the checkpoint %d are given twice: the check detects nothing", len(twice))
	}

	// Pods that run keep SNAT, on the primary interface and on another one. What would
	// restrict the pods of AWS's plugin is gone.
	for _, p := range []*node.Pod{pods[0], pods[19]} {
		if err := p.Ping(outside); err != nil {
			t.Errorf("after the agent left: %v", err)
		}
	}
	tables, rule := left(t, n)
	if !strings.Contains(tables, "chain translate") || strings.Contains(tables, "chain antispoof") || strings.Contains(tables, "169.254.169.254") || strings.Contains(tables, "table arp") || rule == "" {
		t.Errorf("left with pods that run:\n%s\n%s", tables, rule)
	}

	// Without pods, nothing of it is needed.
	for _, p := range pods {
		p.Do(t, func() {
			l, err := netlink.LinkByName("eth0")
			if err == nil {
				err = netlink.LinkDel(l)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	uninstall(t, n, 0)
	if tables, rule := left(t, n); strings.Contains(tables, "trunkline") || rule != "" {
		t.Errorf("left without pods:\n%s\n%s", tables, rule)
	}
}

// An agent that is killed leaves a node as it is. Its removal is killed as well, at one moment
// after another, until one completes.
func TestARemovalThatIsKilledAtAnyMomentIsCompletedByTheNext(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("removed")
	n.UntilReady()
	pods, inUse := wired(t, n, 7)
	n.Kill()
	killed := 0
	// Each later by 2 ms, or by a sixteenth where a removal takes long, as under the race detector.
	for after := time.Millisecond; !uninstall(t, n, after); after += max(2*time.Millisecond, after/16) {
		killed++
		raw, err := os.ReadFile(n.Checkpoint())
		if errors.Is(err, os.ErrNotExist) {
			if _, err := os.Stat(filepath.Join(n.Dir, "net.d", "10-trunkline.conflist")); err != nil {
				t.Fatalf("the network configuration is gone before there is a checkpoint: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if twice := givenTwice(awsDaemon(t, n, raw), inUse); len(twice) > 0 {
			t.Fatalf("killed after %s, and given twice: %v", after, twice)
		}
	}
	if killed == 0 {
		t.Error("the first removal completed within a millisecond: none was killed")
	}
	t.Logf("%d removals were killed", killed)
	uninstall(t, n, 0)
	raw, err := os.ReadFile(n.Checkpoint())
	if err != nil {
		t.Fatal(err)
	}
	if d := awsDaemon(t, n, raw); len(d.Assigned) != len(inUse) {
		t.Errorf("%d of %d addresses in use are adopted", len(d.Assigned), len(inUse))
	}

	// Back again: the pods that run are adopted from the kernel.
	n.StartAgent()
	n.UntilReady()
	ledger := n.Ledger()
	if got := node.Count(ledger, "assigned"); got != len(inUse) {
		t.Errorf("%d addresses are assigned after the agent came back, want %d", got, len(inUse))
	}
	fresh := n.NewPod("fresh")
	if err := n.Add(fresh); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(inUse, fresh.Addr) {
		t.Errorf("a new pod got %s, which is in use", fresh.Addr)
	}
	for _, p := range append(pods, fresh) {
		if err := n.Del(p); err != nil {
			t.Error(err)
		}
	}
}

func TestANodeWithACheckpointOfAnotherFormatIsNotLeft(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	wired(t, n, 1)
	n.Kill()
	if err := os.MkdirAll(filepath.Dir(n.Checkpoint()), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.Checkpoint(), []byte(`{"version":"vpc-cni-ipam/2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := n.Command("uninstall")
	var output bytes.Buffer
	cmd.Stderr = &output
	if err := n.NS.Run(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(output.String(), "the agent does not leave the node") || !strings.Contains(output.String(), "drain the node and delete the file") {
		t.Errorf("%v: %s", err, output.String())
	}
	if tables, _ := left(t, n); !strings.Contains(tables, "chain antispoof") {
		t.Error("the packet filter was changed")
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "net.d", "10-trunkline.conflist")); err != nil {
		t.Error(err)
	}
}
