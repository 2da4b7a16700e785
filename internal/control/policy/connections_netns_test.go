//go:build netns

package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/trunkline/trunkline/internal/edge/bpf"
)

func TestExpiredConnectionsAreDeletedAndANearlyFullTableIsReported(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("enforced", r.on.Load)
	r.mustNotReach("a", "b", 81)
	size := int(r.sizes[bpf.MapConnections])
	now, err := bpf.Monotonic()
	if err != nil {
		t.Fatal(err)
	}
	fill := func(entries int, seen uint32) {
		for n := range entries {
			key := bpf.ConnectionKey{Pod: bpf.AddressOf(r.address("b")), Peer: bpf.AddressOf(netip.MustParseAddr("192.0.2.1")), PodPort: 80, PeerPort: uint16(n), Protocol: 6}
			if err := r.datapath.Maps.Connections.Put(key, bpf.Connection{Set: 16, Seen: seen, State: bpf.Established}); err != nil {
				t.Fatal(err)
			}
		}
	}
	warnings := func() int {
		r.events.mu.Lock()
		defer r.events.mu.Unlock()
		return len(slices.DeleteFunc(slices.Clone(r.events.list), func(e string) bool { return !strings.Contains(e, "ConnectionsNearlyFull") }))
	}
	for _, c := range []struct {
		what    string
		seen    uint32
		valid   bool
		crowded bool
	}{
		{"valid entries", bpf.TicksOf(now), true, true},
		{"the same", bpf.TicksOf(now), true, true},
		{"expired entries", bpf.TicksOf(now) - 10000, false, false},
	} {
		fill(size*95/100, c.seen)
		if err := collect(r.Controller); err != nil {
			t.Fatal(err)
		}
		entries := valueOf(t, r.metrics.connections)
		if valid := entries > float64(size)*crowdedAt/100; valid != c.valid || valueOf(t, r.metrics.size) != float64(size) {
			t.Errorf("%s: %v entries of %v", c.what, entries, valueOf(t, r.metrics.size))
		}
		list := strings.Join(Faults(r.Controller), "; ")
		if strings.Contains(list, "tl_connections=8192") != c.crowded || warnings() != 1 {
			t.Errorf("%s: faults %q, %d events", c.what, list, warnings())
		}
		left, err := r.datapath.Maps.Connections.All()
		if err != nil || len(left) != int(entries) {
			t.Errorf("%s: %d entries are left, %v", c.what, len(left), err)
		}
	}
	if dropped := valueOf(t, r.metrics.dropped.WithLabelValues(bpf.ByPolicy.String())); dropped == 0 {
		t.Error("no dropped packet is counted")
	}
}

// valueOf is that of a gauge or a counter.
func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetGauge().GetValue() + out.GetCounter().GetValue()
}
