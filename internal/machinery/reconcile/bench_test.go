package reconcile

import (
	"fmt"
	"testing"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// What direct work pays in a CNI ADD, among 1,000 rows: a lock, and one update that
// inserts the row and records that it is done.
func BenchmarkDirectWork(b *testing.B) {
	g := newRig(b, Config[want]{})
	for i := range 1000 {
		g.lock(fmt.Sprintf("pod-%04d", i))("1")
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		row := want{key: fmt.Sprintf("pod-%04d", i%1000), value: fmt.Sprint(i)}
		release, err := g.r.Lock(b.Context(), row)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.db.Update(func(txn *table.Txn) error {
			rev, err := g.wanted.Insert(txn, row)
			if err != nil {
				return err
			}
			return g.r.MarkDone(txn, row, rev)
		}); err != nil {
			b.Fatal(err)
		}
		release()
	}
}
