//go:build netns

package link

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

// open returns the network of a namespace of the test's own.
func open(t testing.TB) (*Host, *testns.NS) {
	t.Helper()
	node := testns.New(t, "node")
	h, err := Open(node.Open(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	ip(t, node, "link set lo up")
	return h, node
}

// ip runs ip(8), which plays the operator and the runtime, in a namespace.
func ip(t testing.TB, ns *testns.NS, args string) string {
	t.Helper()
	out, err := tryIP(ns, args)
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return out
}

func tryIP(ns *testns.NS, args string) (string, error) {
	out, err := exec.Command("ip", append([]string{"-n", ns.Name}, strings.Fields(args)...)...).CombinedOutput()
	return string(out), err
}

func pod(name, addr string) hostnet.Pod {
	return hostnet.Pod{
		Namespace: "default", Name: name, ContainerID: "c-" + name, IfName: "eth0",
		Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Table: hostnet.TableMain,
	}
}

func wire(t testing.TB, h *Host, ns *os.File, p hostnet.Pod) {
	t.Helper()
	if _, err := h.Wire(context.Background(), ns, p); err != nil {
		t.Fatal(err)
	}
	if err := h.Up(context.Background(), p); err != nil {
		t.Fatal(err)
	}
}

func TestAWiredPodHasItsAddressAndItsRoutes(t *testing.T) {
	h, node := open(t)
	podNS := testns.New(t, "pod")
	p := pod("web", "10.0.1.7")
	p.Table = 3
	wire(t, h, podNS.Open(t), p)
	t.Log(ip(t, podNS, "-d link show dev eth0"), ip(t, podNS, "addr show"), ip(t, podNS, "route"), ip(t, podNS, "neigh"))
	t.Log(ip(t, node, "-d link show"), ip(t, node, "rule"), ip(t, node, "route"), ip(t, node, "neigh"))
}
