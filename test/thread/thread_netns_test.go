//go:build netns

package thread

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
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

func TestAPodLivesItsLife(t *testing.T) {
	n := newNode(t)
	n.startAgent()
	n.untilReady()
	a, b := n.newPod("a"), n.newPod("b")
	for _, p := range []*pod{a, b} {
		if err := n.add(p); err != nil {
			t.Fatal(err)
		}
		if !n.inVPC(p.addr) {
			t.Errorf("%s is not an address of the node at EC2", p.addr)
		}
	}
	for _, to := range []netip.Addr{netip.MustParseAddr("10.0.0.1"), b.addr} {
		if err := a.ping(t, to); err != nil {
			t.Error(err)
		}
	}
	cni, list := n.cni()
	if err := cni.CheckNetworkList(t.Context(), list, a.rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := cni.GetStatusNetworkList(t.Context(), list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := n.del(a); err != nil {
		t.Fatal(err)
	}
	if err := n.del(a); err != nil {
		t.Errorf("DEL twice: %v", err)
	}
	n.until("the address cools down and is free", func() error {
		if got := n.book(); count(got, "assigned") != 1 || count(got, "cooling")+count(got, "quarantined") != 0 {
			return fmt.Errorf("%d assigned, %d cooling, %d quarantined", count(got, "assigned"), count(got, "cooling"), count(got, "quarantined"))
		}
		return nil
	})
	if err := cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	n.until("GC takes the other one", func() error {
		if got := count(n.book(), "assigned"); got != 0 {
			return fmt.Errorf("%d assigned", got)
		}
		return nil
	})
}

func TestCHECKNamesWhatIsMissing(t *testing.T) {
	n := newNode(t)
	n.startAgent()
	n.untilReady()
	p := n.newPod("a")
	if err := n.add(p); err != nil {
		t.Fatal(err)
	}
	p.Do(t, func() {
		eth0, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.AddrDel(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: p.addr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	cni, list := n.cni()
	err := cni.CheckNetworkList(t.Context(), list, p.rt)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != 102 || !strings.Contains(e.Details, p.addr.String()) {
		t.Errorf("CHECK of a pod that lost its address: %v", err)
	}
}

func TestFlushedRulesComeBackWithinSeconds(t *testing.T) {
	n := newNode(t)
	n.startAgent()
	n.untilReady()
	a, b := n.newPod("a"), n.newPod("b")
	for _, p := range []*pod{a, b} {
		if err := n.add(p); err != nil {
			t.Fatal(err)
		}
	}
	n.ns.Do(t, func() {
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
			if r.Dst != nil && r.Dst.IP.String() == a.addr.String() {
				if err := netlink.RouteDel(&r); err != nil {
					t.Error(err)
				}
			}
		}
	})
	n.until("traffic again", func() error { return a.ping(t, b.addr) })
	n.until("the drift is counted", func() error {
		// A rule that goes while its pod is being wired is no drift, so take it
		// away until that is over.
		n.ns.Do(t, func() {
			rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Priority: hostnet.RuleToPod}, netlink.RT_FILTER_PRIORITY)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rules {
				_ = netlink.RuleDel(&r) // the agent may be faster
			}
		})
		raw, err := os.ReadFile(filepath.Join(n.dir, "agent.log"))
		if err != nil {
			return err
		}
		if !strings.Contains(string(raw), "reason=NetworkDrift") && !strings.Contains(string(raw), "node=NetworkDrift") {
			return errors.New("no event about it")
		}
		return nil
	})
	cni, list := n.cni()
	n.until("CHECK is content again", func() error { return cni.CheckNetworkList(t.Context(), list, a.rt) })
}

// The agent dies between any two calls, and during them; what was answered holds,
// what was not is taken back, and no address is held twice.
func TestKilledAgentsConverge(t *testing.T) {
	n := newNode(t)
	n.startAgent()
	n.untilReady()
	a, b := n.newPod("a"), n.newPod("b")
	if err := n.add(a); err != nil {
		t.Fatal(err)
	}
	n.kill()
	if err := a.ping(t, netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Errorf("with the agent dead: %v", err)
	}
	// An ADD waits for the next agent.
	added := make(chan error, 1)
	go func() { added <- n.add(b) }()
	n.startAgent()
	if err := <-added; err != nil {
		t.Fatalf("ADD across a restart: %v", err)
	}
	if a.addr == b.addr {
		t.Fatalf("%s is held twice", a.addr)
	}
	if err := a.ping(t, b.addr); err != nil {
		t.Error(err)
	}
	// A DEL does not need an agent.
	n.kill()
	if err := n.del(a); err != nil {
		t.Fatalf("DEL without an agent: %v", err)
	}
	n.startAgent()
	n.untilReady()
	n.until("the spooled DEL is carried out", func() error {
		if got := n.book(); count(got, "assigned") != 1 {
			return fmt.Errorf("%d assigned", count(got, "assigned"))
		}
		return nil
	})
	// The same ADD again is answered with the same address.
	was := b.addr
	if err := n.add(b); err != nil || b.addr != was {
		t.Errorf("ADD again: %s, was %s, %v", b.addr, was, err)
	}
}

// A full node says so on the pod and serves it as soon as another one goes.
func TestAFullNodeSaysSoAndRecovers(t *testing.T) {
	n := newNode(t)
	n.startAgent()
	n.untilReady()
	var pods []*pod
	for i := range 15 { // t3.medium: 3 interfaces, 5 pod addresses each
		p := n.newPod(fmt.Sprint("p", i))
		if err := n.add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	late := n.newPod("late")
	added := make(chan error, 1)
	go func() { added <- n.add(late) }()
	n.until("an event on the pod", func() error {
		raw, err := os.ReadFile(filepath.Join(n.dir, "agent.log"))
		if err == nil && !strings.Contains(string(raw), "pod=default/late reason=NetworkNotReady") {
			err = errors.New("not a word")
		}
		return err
	})
	if err := n.del(pods[7]); err != nil {
		t.Fatal(err)
	}
	if err := <-added; err != nil {
		t.Fatalf("the pod that waited: %v", err)
	}
	if late.addr != pods[7].addr {
		t.Errorf("it got %s, the only free one was %s", late.addr, pods[7].addr)
	}
	if err := pods[0].ping(t, late.addr); err != nil {
		t.Error(err)
	}
}

func TestTheConflistStaysForASuccessorAndGoesWithALastingStop(t *testing.T) {
	n := newNode(t)
	conflist := filepath.Join(n.dir, "net.d", "10-trunkline.conflist")
	n.startAgent()
	n.untilReady()
	n.stop()
	if _, err := os.Stat(conflist); err != nil {
		t.Errorf("after a roll: %v", err)
	}
	p := n.newPod("a")
	added := make(chan error, 1)
	go func() { added <- n.add(p) }()
	n.startAgent("removed")
	if err := <-added; err != nil {
		t.Errorf("ADD across a roll: %v", err)
	}
	n.stop()
	if _, err := os.Stat(conflist); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after a lasting stop: %v, want no conflist", err)
	}
}

// Agents are killed at moments that the clock of the machine chooses, while pods
// come and go. Nothing that was answered is lost and nothing is held twice.
func TestChurnSurvivesKilledAgents(t *testing.T) {
	n := newNode(t)
	n.startAgent("warm-ips=3", "headroom=0")
	n.untilReady()
	stay := n.newPod("stay")
	if err := n.add(stay); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 4)
	held := make(chan netip.Addr, 100)
	for w := range 4 {
		pods := []*pod{n.newPod(fmt.Sprint("w", w, "-0")), n.newPod(fmt.Sprint("w", w, "-1")), n.newPod(fmt.Sprint("w", w, "-2"))}
		go func() {
			var problems error
			for i, p := range pods {
				if err := n.add(p); err != nil {
					problems = errors.Join(problems, err)
					continue
				}
				if i == len(pods)-1 {
					held <- p.addr // this one stays
				} else {
					problems = errors.Join(problems, n.del(p))
				}
			}
			done <- problems
		}()
	}
	for range 3 {
		var b introspection.Book
		n.until("progress before a kill", func() error { return n.get(introspection.BookPath, &b) })
		n.kill()
		n.startAgent("warm-ips=3", "headroom=0")
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	close(held)
	n.untilReady()
	seen := map[netip.Addr]bool{stay.addr: true}
	for a := range held {
		if seen[a] {
			t.Errorf("%s is held twice", a)
		}
		seen[a] = true
		if err := stay.ping(t, a); err != nil {
			t.Error(err)
		}
	}
	n.until("the book holds exactly what was answered", func() error {
		b := n.book()
		if got := count(b, "assigned"); got != len(seen) || count(b, "quarantined") != 0 {
			return fmt.Errorf("%d assigned, want %d; %d quarantined", got, len(seen), count(b, "quarantined"))
		}
		for _, e := range b.ENIs {
			for _, a := range e.Addresses {
				if !n.inVPC(a.Address) {
					return fmt.Errorf("%s is in the book and not at EC2", a.Address)
				}
			}
		}
		return nil
	})
}

// Upstream's portmap is chained behind us when it is installed, for hostPort.
func TestPortmapIsChained(t *testing.T) {
	n := newNode(t)
	portmap := filepath.Join(n.dir, "bin", "portmap")
	build := exec.Command("go", "build", "-o", portmap, "github.com/containernetworking/plugins/plugins/meta/portmap")
	build.Dir, build.Env = "../../lab/kube", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build portmap: %v\n%s", err, out)
	}
	n.startAgent()
	n.untilReady()
	p := n.newPod("web")
	p.rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	cni, list := n.cni()
	// portmap writes into the network namespace it runs in: the node's.
	var result types.Result
	if err := n.ns.Run(func() (err error) { result, err = cni.AddNetworkList(t.Context(), list, p.rt); return err }); err != nil {
		t.Fatal(err)
	}
	got, err := current.NewResultFromResult(result)
	if err != nil || len(got.IPs) != 1 {
		t.Fatalf("the chain's result lost the pod's address: %v, %v", result, err)
	}
	if err := n.ns.Run(func() error { return cni.CheckNetworkList(t.Context(), list, p.rt) }); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	var l net.Listener
	if err := p.Run(func() (err error) { l, err = net.Listen("tcp", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	primary := n.State().Primary(n.State().InstanceNamed("node1").ID).IPv4[0]
	other := n.newPod("client")
	if err := n.add(other); err != nil {
		t.Fatal(err)
	}
	if err := other.Run(func() error {
		conn, err := net.DialTimeout("tcp", primary.String()+":8080", 5*time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	}); err != nil {
		t.Errorf("hostPort: %v", err)
	}
	if err := n.ns.Run(func() error { return cni.DelNetworkList(t.Context(), list, p.rt) }); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// A journal that is damaged is set aside; the pods are found in the kernel.
func TestADamagedJournalIsRebuiltFromTheKernelAndEC2(t *testing.T) {
	n := newNode(t)
	n.startAgent()
	n.untilReady()
	a := n.newPod("a")
	if err := n.add(a); err != nil {
		t.Fatal(err)
	}
	n.kill()
	path := filepath.Join(n.dir, "state", "journal", "log")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 0xff
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	n.startAgent()
	n.untilReady()
	b := n.newPod("b")
	if err := n.add(b); err != nil {
		t.Fatal(err)
	}
	if a.addr == b.addr {
		t.Fatalf("%s is held twice", a.addr)
	}
	if err := b.ping(t, a.addr); err != nil {
		t.Error(err)
	}
	if err := n.del(a); err != nil {
		t.Error(err)
	}
	n.until("the rebuilt attachment is deleted", func() error {
		if got := n.book(); count(got, "assigned") != 1 {
			return fmt.Errorf("%d assigned", count(got, "assigned"))
		}
		return nil
	})
}

// More pods at once than the pool has: they wait, nobody fails.
func TestABurstWaitsForEC2(t *testing.T) {
	n := newNode(t)
	n.startAgent("warm-ips=1", "headroom=0")
	n.untilReady()
	pods := make([]*pod, 9) // t3.medium: 3 interfaces, 5 pod addresses each
	done := make(chan error, len(pods))
	for i := range pods {
		pods[i] = n.newPod(fmt.Sprint("p", i))
		go func() { done <- n.add(pods[i]) }()
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, p := range pods {
		if seen[p.addr] {
			t.Errorf("%s is held twice", p.addr)
		}
		seen[p.addr] = true
	}
	for _, p := range pods[1:] { // over both interfaces
		if err := pods[0].ping(t, p.addr); err != nil {
			t.Error(err)
		}
	}
}
