package state

import (
	"context"
	"slices"

	"github.com/trunkline/trunkline/internal/edge/journal"
)

// keyLeft is in the journal once the agent has left the node.
const keyLeft = "left"

// Leave records that the agent leaves the node to another CNI, which assigns addresses from
// now on. The next Open restores nothing. It returns once the record is on the disk.
func (s *Store) Leave(ctx context.Context) error {
	pending, err := s.Update(func(tx *Tx) error {
		tx.Durable()
		tx.records = append(tx.records, put(keyLeft, true))
		return nil
	})
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}

func hasLeft(records []journal.Record) bool {
	return slices.ContainsFunc(records, func(r journal.Record) bool { return r.Key == keyLeft })
}
