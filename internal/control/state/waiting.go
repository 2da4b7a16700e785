package state

import (
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Waiting is an ADD that waits for an address: a row of the table "waiting". It is not
// journaled: no ADD waits when an agent starts, because the plugin sends its request again.
type Waiting struct {
	Key   endpoint.Key
	Pod   endpoint.Pod // zero where the runtime gave no pod
	Since time.Time
}

// CNITables are the write handles of control/cni. Endpoints are not among them: they are
// journaled, and change by methods of Tx.
type CNITables struct {
	Waiting table.RW[Waiting]
}

// WaitingByKey is the primary index of the table "waiting".
func WaitingByKey() table.Index[Waiting, endpoint.Key] {
	return table.By("key", func(w Waiting) endpoint.Key { return w.Key }, appendKey)
}

func (c *CNITables) register(db *table.DB) (err error) {
	c.Waiting, err = table.Register(db, table.Schema[Waiting]{
		Name: "waiting", Primary: WaitingByKey(),
		Columns: []string{"POD", "CONTAINER", "SINCE"},
		Cells: func(w Waiting) []string {
			return []string{endpoint.Endpoint{Key: w.Key, Pod: w.Pod}.Name(), w.Key.String(), clock(w.Since)}
		},
	})
	return err
}

// Waiting are the ADDs that wait for an address, ordered by container.
func (s *Store) Waiting() []Waiting { return list(s.owned.cni.Waiting.All(s.DB.Snapshot())) }
