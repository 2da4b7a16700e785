package ipam_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// sized is a ledger with four interfaces, half of the addresses of each assigned.
func sized(b *testing.B, perENI int) *ipam.Ledger {
	b.Helper()
	l := ipam.New(ipam.DefaultConfig().Settings())
	var seen []ipam.Observed
	addr := netip.MustParseAddr("10.0.0.10")
	for n := range 4 {
		o := ipam.Observed{Attached: true, ENI: ipam.ENI{
			ID: vpc.ENIID(fmt.Sprintf("eni-%d", n)), Type: vpc.TypeInterface, Primary: true, Device: n,
			SubnetCIDR: netip.MustParsePrefix("10.0.0.0/16"),
		}}
		for range perENI {
			o.Addresses = append(o.Addresses, addr)
			addr = addr.Next()
		}
		seen = append(seen, o)
	}
	l.Observe(seen, epoch)
	for n := range 4 * perENI / 2 {
		if _, _, err := l.Assign(holder(n), epoch); err != nil {
			b.Fatal(err)
		}
	}
	return l
}

// sizes are a node with secondary addresses, and one with as many addresses as
// fifteen /28 prefixes for each interface have.
func sizes() map[string]int { return map[string]int{"4x30": 30, "4x240": 240} }

// BenchmarkAssign measures the ADD of a pod and the DEL of an earlier one. Each address
// cools down for 30 of these.
func BenchmarkAssign(b *testing.B) {
	for name, perENI := range sizes() {
		b.Run(name, func(b *testing.B) {
			l, now := sized(b, perENI), epoch
			live := 4 * perENI / 2
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				now = now.Add(time.Second)
				if _, _, err := l.Assign(holder(live+n), now); err != nil {
					b.Fatal(err)
				}
				l.Release(holder(n).Endpoint, now)
			}
		})
	}
}

// BenchmarkRenewed measures the usual case: the pod has no foreign sandbox.
func BenchmarkRenewed(b *testing.B) {
	for name, perENI := range sizes() {
		b.Run(name, func(b *testing.B) {
			l := sized(b, perENI)
			pod := endpoint.Pod{Namespace: "default", Name: "new", UID: "uid-new"}
			b.ReportAllocs()
			for b.Loop() {
				l.Renewed(pod, epoch)
			}
		})
	}
}
