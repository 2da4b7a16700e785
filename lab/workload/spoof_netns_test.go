//go:build netns

package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/test/testns"
)

// Two namespaces are connected without a filter, so spoofed datagrams arrive. This proves
// that a missing datagram in other tests was filtered.
func TestSpoofedDatagramsArriveWithoutAFilter(t *testing.T) {
	client, far := testns.New(t, "client"), testns.New(t, "far")
	mac := join(t, client, far)
	s := &server{pod: "far"}
	var l listeners
	far.Do(t, func() {
		var err error
		if l, err = listen(t.Context(), "", "", "10.77.0.2:8082"); err != nil {
			t.Fatal(err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	spoof := func(args ...string) Result {
		t.Helper()
		var out, errs bytes.Buffer
		client.Do(t, func() {
			// An ordinary exchange first, which creates the neighbour entry.
			for _, argv := range [][]string{{"udp", "10.77.0.2:8082"}, append([]string{"spoof", "10.77.0.2:8082"}, args...)} {
				out.Reset()
				if code := Run(t.Context(), append([]string{"dial"}, argv...), Process{Stdout: &out, Stderr: &errs}); code != 0 {
					t.Fatalf("%v: exit %d: %s%s", argv, code, out.String(), errs.String())
				}
			}
		})
		var r Result
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, tc := range map[string]struct {
		args   []string
		source string
	}{
		"as itself":                      {nil, "10.77.0.1"},
		"from a foreign address":         {[]string{"--source", "10.77.0.9"}, "10.77.0.9"},
		"from a foreign MAC":             {[]string{"--mac", "02:00:00:00:00:99"}, "10.77.0.1"},
		"from a foreign address and MAC": {[]string{"--source", "10.77.0.9", "--mac", mac.String()}, "10.77.0.9"},
	} {
		t.Run(name, func(t *testing.T) {
			r := spoof(tc.args...)
			seen := awaitReceived(t, s, r.Token, r.Sent)
			if r.Sent != 3 || seen.Count != 3 || seen.Sources[0].Addr() != netip.MustParseAddr(tc.source) {
				t.Errorf("sent %d, seen %+v, want 3 from %s", r.Sent, seen, tc.source)
			}
		})
	}
}

func awaitReceived(t *testing.T, s *server, token string, want int) Received {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var seen Received
	for range 3000 { // half a minute
		if seen = s.received.of(token); seen.Count >= want {
			break
		}
		<-tick.C
	}
	return seen
}

// join connects two namespaces by a veth pair and returns a MAC that neither uses.
func join(t *testing.T, a, b *testns.NS) net.HardwareAddr {
	t.Helper()
	other := b.Open(t)
	a.Do(t, func() {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "w1", PeerNamespace: netlink.NsFd(int(other.Fd())),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		up(t, "w0", "10.77.0.1/24")
	})
	b.Do(t, func() {
		up(t, "w1", "10.77.0.2/24")
	})
	return net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
}

func up(t *testing.T, name, cidr string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}
