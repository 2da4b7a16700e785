//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/test/node"
)

// withoutCloud returns a node to which neither EC2 nor instance metadata answers.
func withoutCloud(t *testing.T, podCIDR string) *node.Node {
	t.Helper()
	return node.New(t, node.Config{PodCIDR: netip.MustParsePrefix(podCIDR)})
}

// agentLog is the log of the node's agents.
func agentLog(t *testing.T, n *node.Node) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// inRange returns the ledger's entry of an address of the pod CIDR; the zero value if it
// is free.
func inRange(n *node.Node, addr netip.Addr) introspection.Address {
	r := n.Ledger().PodCIDR
	if r == nil {
		return introspection.Address{}
	}
	for _, a := range r.Addresses {
		if a.Address == addr {
			return a
		}
	}
	return introspection.Address{}
}

// The setting backend has its default, auto.
func TestWithoutACloudPodsGetAddressesOfTheNodesPodCIDR(t *testing.T) {
	t.Parallel()
	n := withoutCloud(t, "10.244.1.0/24")
	n.StartAgent()
	n.UntilReady()
	if log := agentLog(t, n); !strings.Contains(log, `msg=backend name=podcidr why="instance metadata does not answer`) {
		t.Errorf("the backend was not chosen because metadata does not answer:\n%s", log)
	}
	a, b := n.NewPod("a"), n.NewPod("b")
	for _, p := range []*node.Pod{a, b} {
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		if got := inRange(n, p.Addr); !netip.MustParsePrefix("10.244.1.0/24").Contains(p.Addr) || got.State != "assigned" || got.Container != p.RT.ContainerID {
			t.Errorf("%s is %+v", p.Addr, got)
		}
	}
	self := n.State().Primary(n.State().InstanceNamed("node1").ID).IPv4.Addresses[0]
	host := &node.Pod{NS: n.NS, Addr: self}
	outside := netip.MustParseAddr("10.0.0.1") // the VPC's gateway, which knows no pods' addresses
	for _, c := range []struct {
		from *node.Pod
		to   netip.Addr
	}{{a, b.Addr}, {b, a.Addr}, {a, self}, {host, a.Addr}, {host, b.Addr}, {a, outside}} {
		if err := c.from.Ping(c.to); err != nil {
			t.Error(err)
		}
	}
	cni, list := n.CNI()
	if err := errors.Join(cni.CheckNetworkList(t.Context(), list, a.RT), cni.GetStatusNetworkList(t.Context(), list)); err != nil {
		t.Errorf("CHECK and STATUS: %v", err)
	}
	if got := n.Ledger(); len(got.ENIs) > 0 || !strings.Contains(got.WithoutEC2, "not used by the backend podcidr (instance metadata does not answer") {
		t.Errorf("%d interfaces; %q does not say why EC2 is not used", len(got.ENIs), got.WithoutEC2)
	}
	for range 2 {
		if err := n.Del(a); err != nil {
			t.Fatal(err)
		}
	}
	if err := cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	n.Until("every address is free again", func() error {
		if left := n.Ledger().PodCIDR.Addresses; len(left) > 0 {
			return fmt.Errorf("%+v", left)
		}
		return nil
	})
}

// An address is given to another pod only after its cool-down, which a restart does not
// end. What an ADD waited for is in its error.
func TestWithoutACloudPodsBeyondTheRangeWaitAndFailWithTheReason(t *testing.T) {
	t.Parallel()
	n := withoutCloud(t, "10.244.1.0/29")
	n.StartAgent("cool-down=1h", "add-wait=1s")
	n.UntilReady()
	var pods []*node.Pod
	for i := range 5 { // without the first two addresses and the last one
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	late := n.NewPod("late")
	failsWith := func(reasons ...string) {
		t.Helper()
		err := n.Add(late)
		var e *types.Error
		if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
			t.Fatalf("ADD without a free address: %v, want code %d", err, types.ErrTryAgainLater)
		}
		for _, want := range reasons {
			if text := e.Msg + " " + e.Details; !strings.Contains(text, want) {
				t.Errorf("%q does not say %q", text, want)
			}
		}
	}
	failsWith("pod CIDR 10.244.1.0/29: 0 of 5 addresses are free, 5 assigned", "--node-cidr-mask-size")
	if log := agentLog(t, n); !strings.Contains(log, "pod=default/late reason=NetworkNotReady") {
		t.Error("no event on the pod")
	}
	gone := pods[2]
	if err := n.Del(gone); err != nil {
		t.Fatal(err)
	}
	cooling := func() error {
		if got := inRange(n, gone.Addr); got.State != "cooling" {
			return fmt.Errorf("%s is %q", gone.Addr, got.State)
		}
		return nil
	}
	n.Until("the address cools down", cooling)
	failsWith("cooling down", "4 assigned, 1 cooling down", "the first one is free at")
	n.Kill()
	n.StartAgent("cool-down=1h", "add-wait=1s")
	n.UntilReady()
	if err := cooling(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	failsWith("4 assigned, 1 cooling down")
	n.Stop()
	n.StartAgent("cool-down=1s") // bounds the cool-downs that have begun
	n.UntilReady()
	if err := n.Add(late); err != nil {
		t.Fatal(err)
	}
	if late.Addr != gone.Addr {
		t.Errorf("the pod has %s, the only free address was %s", late.Addr, gone.Addr)
	}
	if err := late.Ping(pods[0].Addr); err != nil {
		t.Error(err)
	}
}

func TestWithoutACloudPodsSurviveKilledAgentsAndALostJournal(t *testing.T) {
	t.Parallel()
	n := withoutCloud(t, "10.244.1.0/24")
	n.StartAgent()
	n.UntilReady()
	a, b := n.NewPod("a"), n.NewPod("b")
	if err := errors.Join(n.Add(a), n.Add(b)); err != nil {
		t.Fatal(err)
	}
	taken := map[netip.Addr]bool{a.Addr: true, b.Addr: true}
	endpoints := func() map[netip.Addr]string {
		out := map[netip.Addr]string{}
		for _, r := range n.Ledger().PodCIDR.Addresses {
			if r.State == "assigned" {
				out[r.Address] = r.Container
			}
		}
		return out
	}
	want := fmt.Sprint(endpoints())
	for _, state := range []string{"kept", "lost"} {
		n.Kill()
		if err := a.Ping(b.Addr); err != nil {
			t.Errorf("without an agent: %v", err)
		}
		if state == "lost" {
			if err := os.RemoveAll(filepath.Join(n.Dir, "state", "journal")); err != nil {
				t.Fatal(err)
			}
		}
		n.StartAgent()
		n.UntilReady()
		if got := fmt.Sprint(endpoints()); got != want {
			t.Errorf("journal %s: endpoints %s, want %s", state, got, want)
		}
		was := a.Addr
		if err := n.Add(a); err != nil || a.Addr != was {
			t.Errorf("journal %s: a repeated ADD returns %s, %v; it was %s", state, a.Addr, err, was)
		}
		p := n.NewPod(state)
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		if taken[p.Addr] {
			t.Errorf("journal %s: %s is assigned twice", state, p.Addr)
		}
		taken[p.Addr] = true
		if err := errors.Join(p.Ping(a.Addr), b.Ping(p.Addr)); err != nil {
			t.Errorf("journal %s: %v", state, err)
		}
		want = fmt.Sprint(endpoints())
	}
	if got := reports(t, n); len(got) > 0 {
		t.Errorf("only agents changed the kernel, and they report\n%s", strings.Join(got, "\n"))
	}
	if err := n.Del(a); err != nil {
		t.Fatal(err)
	}
	n.Until("nothing of the adopted pod is left", func() error {
		if _, ok := endpoints()[a.Addr]; ok {
			return errors.New("it has an endpoint")
		}
		rules, err := exec.Command("ip", "-n", n.NS.Name, "rule").Output()
		if err == nil && strings.Contains(string(rules), "to "+a.Addr.String()+" ") {
			err = fmt.Errorf("a rule to it exists:\n%s", rules)
		}
		return err
	})
}
