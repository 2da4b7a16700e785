package state_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// sized is a store with four interfaces.
func sized(b *testing.B, perENI int) *state.Store {
	b.Helper()
	s := statetest.Open(b, b.TempDir())
	var seen []ipam.Observed
	addr := netip.MustParseAddr("10.0.0.10")
	for n := range 4 {
		o := statetest.First()
		o.ENI.ID, o.ENI.Device, o.ENI.Primary, o.Addresses = vpc.ENIID(fmt.Sprintf("eni-%d", n)), n, true, nil
		for range perENI {
			o.Addresses = append(o.Addresses, addr)
			addr = addr.Next()
		}
		seen = append(seen, o)
	}
	statetest.Update(b, s, func(tx *state.Tx) error {
		rows, _ := tx.Ledger().Observe(seen, time.Now())
		tx.Record(rows...)
		return nil
	})
	return s
}

// BenchmarkTransaction measures what the ledger adds to a transaction: the step of an ADD
// that changes nothing, and one that assigns an address and fails, so that it is undone
// and not journaled.
func BenchmarkTransaction(b *testing.B) {
	pod := endpoint.Pod{Namespace: "default", Name: "new", UID: "uid-new"}
	for _, perENI := range []int{30, 240} {
		s, now := sized(b, perENI), time.Now()
		for name, f := range map[string]func(tx *state.Tx) error{
			"renewed": func(tx *state.Tx) error {
				tx.Record(tx.Ledger().Renewed(pod, now)...)
				return errRefused
			},
			"assign": func(tx *state.Tx) error {
				_, rows, err := tx.Ledger().Assign(ipam.Holder{Endpoint: 1, Pod: pod}, now)
				if err != nil {
					b.Fatal(err)
				}
				tx.Record(rows...)
				return errRefused
			},
		} {
			b.Run(fmt.Sprintf("%s/4x%d", name, perENI), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := s.Update(f); err == nil {
						b.Fatal("the transaction was not refused")
					}
				}
			})
		}
	}
}

// BenchmarkView measures what each plan of the pool reads.
func BenchmarkView(b *testing.B) {
	for _, perENI := range []int{14, 240} {
		s, now := sized(b, perENI), time.Now()
		b.Run(fmt.Sprintf("4x%d", perENI), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.View(now)
			}
		})
	}
}
