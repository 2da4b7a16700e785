//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/node"
)

func TestMain(m *testing.M) {
	node.ServeAgent()
	os.Exit(m.Run())
}

func TestPodLifecycle(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	a, b := n.NewPod("a"), n.NewPod("b")
	for _, p := range []*node.Pod{a, b} {
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		if !n.InVPC(p.Addr) {
			t.Errorf("%s is not an address of the node at EC2", p.Addr)
		}
	}
	for _, to := range []netip.Addr{netip.MustParseAddr("10.0.0.1"), b.Addr} {
		if err := a.Ping(to); err != nil {
			t.Error(err)
		}
	}
	cni, list := n.CNI()
	if err := cni.CheckNetworkList(t.Context(), list, a.RT); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := cni.GetStatusNetworkList(t.Context(), list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := n.Del(a); err != nil {
		t.Fatal(err)
	}
	if err := n.Del(a); err != nil {
		t.Errorf("DEL twice: %v", err)
	}
	n.Until("the address cools down and is free", func() error {
		if got := n.Ledger(); node.Count(got, "assigned") != 1 || node.Count(got, "cooling")+node.Count(got, "quarantined") != 0 {
			return fmt.Errorf("%d assigned, %d cooling, %d quarantined", node.Count(got, "assigned"), node.Count(got, "cooling"), node.Count(got, "quarantined"))
		}
		return nil
	})
	if err := cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	n.Until("GC deletes the other pod", func() error {
		if got := node.Count(n.Ledger(), "assigned"); got != 0 {
			return fmt.Errorf("%d assigned", got)
		}
		return nil
	})
}

// Killing a test process also ends its agents.
func TestAgentEndsWithItsParentProcess(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	starter := exec.Command("sleep", "3600")
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	n.StartAgent(fmt.Sprint("parent=", starter.Process.Pid))
	n.UntilReady()
	_ = starter.Process.Kill()
	_ = starter.Wait() // it was killed
	ended := make(chan error, 1)
	go func() { ended <- n.Agent.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the agent is still running")
	}
}

func TestCHECKNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	p := n.NewPod("a")
	if err := n.Add(p); err != nil {
		t.Fatal(err)
	}
	p.Do(t, func() {
		eth0, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.AddrDel(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	cni, list := n.CNI()
	err := cni.CheckNetworkList(t.Context(), list, p.RT)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != 102 || !strings.Contains(e.Details, p.Addr.String()) {
		t.Errorf("CHECK of a pod that lost its address: %v", err)
	}
}

func TestFlushedRulesAndRoutesAreRestored(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	a, b := n.NewPod("a"), n.NewPod("b")
	for _, p := range []*node.Pod{a, b} {
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	n.NS.Do(t, func() {
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if r.Priority == hostnet.RuleToPod || r.Priority == hostnet.RuleFromPod {
				if err := netlink.RuleDel(&r); err != nil {
					t.Error(err)
				}
			}
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if r.Dst != nil && r.Dst.IP.String() == a.Addr.String() {
				if err := netlink.RouteDel(&r); err != nil {
					t.Error(err)
				}
			}
		}
	})
	n.Until("the pods are reachable again", func() error { return a.Ping(b.Addr) })
	n.Until("the drift is reported", func() error {
		raw, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
		if err != nil {
			return err
		}
		if !strings.Contains(string(raw), "reason=NetworkDrift") && !strings.Contains(string(raw), "node=NetworkDrift") {
			return errors.New("no drift event")
		}
		return nil
	})
	cni, list := n.CNI()
	n.Until("CHECK succeeds again", func() error { return cni.CheckNetworkList(t.Context(), list, a.RT) })
}

// The agent is killed between calls, and during them: results that were returned stay
// valid, and no address is assigned twice.
func TestKilledAgentsConverge(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	a, b := n.NewPod("a"), n.NewPod("b")
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	if err := a.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	// An ADD waits for the next agent.
	added := make(chan error, 1)
	go func() { added <- n.Add(b) }()
	n.StartAgent()
	if err := <-added; err != nil {
		t.Fatalf("ADD across a restart: %v", err)
	}
	if a.Addr == b.Addr {
		t.Fatalf("%s is assigned twice", a.Addr)
	}
	if err := a.Ping(b.Addr); err != nil {
		t.Error(err)
	}
	// A DEL succeeds without an agent.
	n.Kill()
	if err := n.Del(a); err != nil {
		t.Fatalf("DEL without an agent: %v", err)
	}
	n.StartAgent()
	n.UntilReady()
	n.Until("the spooled DEL is executed", func() error {
		if got := n.Ledger(); node.Count(got, "assigned") != 1 {
			return fmt.Errorf("%d assigned", node.Count(got, "assigned"))
		}
		return nil
	})
	// A repeated ADD returns the same address.
	was := b.Addr
	if err := n.Add(b); err != nil || b.Addr != was {
		t.Errorf("repeated ADD: %s, was %s, %v", b.Addr, was, err)
	}
}

// A pod on a full node gets an event, and an address as soon as another pod is
// deleted.
func TestFullNodeReportsItAndRecovers(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	var pods []*node.Pod
	for i := range 15 { // t3.medium: 3 interfaces, 5 pod addresses each
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	late := n.NewPod("late")
	added := make(chan error, 1)
	go func() { added <- n.Add(late) }()
	n.Until("an event on the pod", func() error {
		raw, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
		if err == nil && !strings.Contains(string(raw), "pod=default/late reason=NetworkNotReady") {
			err = errors.New("no event")
		}
		return err
	})
	if err := n.Del(pods[7]); err != nil {
		t.Fatal(err)
	}
	if err := <-added; err != nil {
		t.Fatalf("ADD of the pending pod: %v", err)
	}
	if late.Addr != pods[7].Addr {
		t.Errorf("it has %s, the only free address was %s", late.Addr, pods[7].Addr)
	}
	if err := pods[0].Ping(late.Addr); err != nil {
		t.Error(err)
	}
}

func TestConflistIsKeptForASuccessorAndRemovedOnUninstall(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	conflist := filepath.Join(n.Dir, "net.d", "10-trunkline.conflist")
	n.StartAgent()
	n.UntilReady()
	n.Stop()
	if _, err := os.Stat(conflist); err != nil {
		t.Errorf("after the stop of a rollout: %v", err)
	}
	p := n.NewPod("a")
	added := make(chan error, 1)
	go func() { added <- n.Add(p) }()
	n.StartAgent("removed")
	if err := <-added; err != nil {
		t.Errorf("ADD during a rollout: %v", err)
	}
	n.Stop()
	if _, err := os.Stat(conflist); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the uninstall: %v, want no conflist", err)
	}
}

// Agents are killed at random moments while pods are added and deleted. No result
// that was returned is lost and no address is assigned twice.
func TestChurnSurvivesKilledAgents(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=3", "headroom=0")
	n.UntilReady()
	stay := n.NewPod("stay")
	if err := n.Add(stay); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 4)
	held := make(chan netip.Addr, 100)
	for w := range 4 {
		pods := []*node.Pod{n.NewPod(fmt.Sprint("w", w, "-0")), n.NewPod(fmt.Sprint("w", w, "-1")), n.NewPod(fmt.Sprint("w", w, "-2"))}
		go func() {
			var problems error
			for i, p := range pods {
				if err := n.Add(p); err != nil {
					problems = errors.Join(problems, err)
					continue
				}
				if i == len(pods)-1 {
					held <- p.Addr // the last one stays
				} else {
					problems = errors.Join(problems, n.Del(p))
				}
			}
			done <- problems
		}()
	}
	for range 3 {
		var b introspection.Ledger
		n.Until("progress before a kill", func() error { return n.Get(introspection.LedgerPath, &b) })
		n.Kill()
		n.StartAgent("warm-ips=3", "headroom=0")
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(held)
	n.UntilReady()
	seen := map[netip.Addr]bool{stay.Addr: true}
	for a := range held {
		if seen[a] {
			t.Errorf("%s is assigned twice", a)
		}
		seen[a] = true
		if err := stay.Ping(a); err != nil {
			t.Error(err)
		}
	}
	if got := reports(t, n); len(got) > 0 {
		t.Errorf("only agents changed the kernel, and they report\n%s", strings.Join(got, "\n"))
	}
	n.Until("the ledger has exactly the returned addresses", func() error {
		b := n.Ledger()
		if got := node.Count(b, "assigned"); got != len(seen) || node.Count(b, "quarantined") != 0 {
			return fmt.Errorf("%d assigned, want %d; %d quarantined", got, len(seen), node.Count(b, "quarantined"))
		}
		for _, e := range b.ENIs {
			for _, a := range e.Addresses {
				if !n.InVPC(a.Address) {
					return fmt.Errorf("%s is in the ledger and not at EC2", a.Address)
				}
			}
		}
		return nil
	})
}

// A damaged journal is set aside; the pods are recovered from the kernel and EC2.
func TestADamagedJournalIsRebuiltFromTheKernelAndEC2(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	a := n.NewPod("a")
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	path := filepath.Join(n.Dir, "state", "journal", "log")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 0xff
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	n.StartAgent()
	n.UntilReady()
	b := n.NewPod("b")
	if err := n.Add(b); err != nil {
		t.Fatal(err)
	}
	if a.Addr == b.Addr {
		t.Fatalf("%s is assigned twice", a.Addr)
	}
	if err := b.Ping(a.Addr); err != nil {
		t.Error(err)
	}
	if err := n.Del(a); err != nil {
		t.Error(err)
	}
	n.Until("the rebuilt attachment is deleted", func() error {
		if got := n.Ledger(); node.Count(got, "assigned") != 1 {
			return fmt.Errorf("%d assigned", node.Count(got, "assigned"))
		}
		return nil
	})
}

// More concurrent ADDs than the pool has addresses wait for EC2 and succeed.
func TestABurstWaitsForEC2(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	pods := make([]*node.Pod, 9) // t3.medium: 3 interfaces, 5 pod addresses each
	done := make(chan error, len(pods))
	for i := range pods {
		pods[i] = n.NewPod(fmt.Sprint("p", i))
		go func() { done <- n.Add(pods[i]) }()
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, p := range pods {
		if seen[p.Addr] {
			t.Errorf("%s is assigned twice", p.Addr)
		}
		seen[p.Addr] = true
	}
	for _, p := range pods[1:] { // on both interfaces
		if err := pods[0].Ping(p.Addr); err != nil {
			t.Error(err)
		}
	}
}
