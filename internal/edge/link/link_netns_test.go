//go:build netns

package link

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// open returns the Host of a new namespace.
func open(t testing.TB) (*Host, *testns.NS) {
	t.Helper()
	node := testns.New(t, "node")
	h, err := Open(node.Open(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	ip(t, node, "link set lo up")
	return h, node
}

// ip runs ip(8), as an operator or the runtime would, in a namespace.
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

func pod(name, addr string) endpoint.Endpoint {
	return sandbox(name, addr, endpoint.Key{ContainerID: "c-" + name, IfName: "eth0"})
}

// sandbox returns an endpoint of a pod with a given key.
func sandbox(name, addr string, key endpoint.Key) endpoint.Endpoint {
	return endpoint.Adopt(1, key, endpoint.Pod{Namespace: "default", Name: name}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.MustParseAddr(addr)), Attachment: endpoint.Attachment{Table: hostnet.TableMain},
		Link: endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", name), MTU: vpc.MTU,
	}, false, time.Time{})
}

// wire connects a pod and returns the index of the host's end.
func wire(t testing.TB, h *Host, ns *os.File, p endpoint.Endpoint) (index int) {
	t.Helper()
	index, err := h.Wire(context.Background(), ns, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Up(context.Background(), p, index); err != nil {
		t.Fatal(err)
	}
	return index
}

// eventually waits for a condition that another goroutine or the kernel fulfils.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		if done() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// correct asserts that the kernel has exactly the desired state of the pod, on both sides.
func correct(t testing.TB, h *Host, podNS *os.File, p endpoint.Endpoint) {
	t.Helper()
	have, err := h.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range hostnet.Diff(hostnet.ForEndpoint(p), have) {
		t.Errorf("on the node: %s", op)
	}
	side, err := readPodSide(podNS)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range hostnet.Diff(hostnet.PodSide(p), side) {
		if op.Verb != hostnet.Delete || !strings.Contains(op.Object.String(), "fe80") {
			t.Errorf("in the pod: %s", op)
		}
	}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
