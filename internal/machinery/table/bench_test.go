package table

import (
	"fmt"
	"net/netip"
	"testing"
)

// thousand returns a table of 1,000 rows and a function that gives a new row for one
// of them.
func thousand(b *testing.B) (*DB, RW[*pod], func(i int) *pod) {
	db := New()
	pods := register(b, db, "pods")
	row := func(i int) *pod {
		return &pod{
			name: fmt.Sprintf("default/web-%04d/eth0", i), node: fmt.Sprintf("node-%d", i%10),
			addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		}
	}
	for i := range 1000 {
		insert(b, db, pods, row(i))
	}
	return db, pods, row
}

// The write that stands in a CNI ADD: one new row in a table of 1,000, with three
// indexes, and its deletion.
func BenchmarkInsertOfOneRow(b *testing.B) {
	db, pods, row := thousand(b)
	extra := row(1000)
	b.ReportAllocs()
	for b.Loop() {
		if err := db.Update(func(txn *Txn) error { _, err := pods.Insert(txn, extra); return err }); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		remove(b, db, pods, extra.name)
		b.StartTimer()
	}
}

func BenchmarkReplacementOfOneRow(b *testing.B) {
	db, pods, row := thousand(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := db.Update(func(txn *Txn) error { _, err := pods.Insert(txn, row(i%1000)); return err }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetByAddress(b *testing.B) {
	db, pods, _ := thousand(b)
	addr := netip.MustParseAddr("10.0.1.7")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := pods.Get(db.Snapshot(), byAddr().Query(addr)); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkListOfAThousandRows(b *testing.B) {
	db, pods, _ := thousand(b)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for range pods.All(db.Snapshot()) {
			n++
		}
		if n != 1000 {
			b.Fatal(n)
		}
	}
}
