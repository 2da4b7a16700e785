package state

import (
	"errors"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// handles are the write handles of the tables that a controller writes itself, by writer.
// app/agent takes them from the store and passes each controller its own: no controller can
// write the table of another one.
type handles struct {
	cni     CNITables
	backend BackendTables
	network NetworkTables
}

func (h *handles) register(db *table.DB) error {
	return errors.Join(h.cni.register(db), h.backend.register(db), h.network.register(db))
}

// CNITables are the write handles for control/cni.
func (s *Store) CNITables() CNITables { return s.owned.cni }

// BackendTables are the write handles for the node's backend.
func (s *Store) BackendTables() BackendTables { return s.owned.backend }

// NetworkTables are the write handles for control/network.
func (s *Store) NetworkTables() NetworkTables { return s.owned.network }

// only is the one row of a table.
func only[T any](t *table.Table[T], db *table.DB) (row T) {
	row, _, _ = t.Get(db.Snapshot(), table.Query[T]{})
	return row
}

// Set stores rows in a table that a controller owns, in a transaction of their own.
func Set[T any](s *Store, owned table.RW[T], rows ...T) {
	err := s.DB.Update(func(txn *table.Txn) error {
		for _, row := range rows {
			if _, err := owned.Insert(txn, row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil { // these tables have no unique index beside the primary one
		panic("state: " + err.Error())
	}
}

// Delete deletes the rows that a query finds in a table that a controller owns, in a
// transaction of their own.
func Delete[T any](s *Store, owned table.RW[T], q table.Query[T]) {
	_ = s.DB.Update(func(txn *table.Txn) error { // f returns no error
		owned.Delete(txn, q)
		return nil
	})
}

// Replace makes rows the ones of a table that belong to a part of it, and leaves the
// others alone.
func Replace[T comparable](s *Store, owned table.RW[T], part func(T) bool, rows []T) {
	err := s.DB.Update(func(txn *table.Txn) error {
		all := rows
		for row := range owned.All(txn) {
			if !part(row) {
				all = append(all, row)
			}
		}
		_, err := owned.Replace(txn, all, func(a, b T) bool { return a == b })
		return err
	})
	if err != nil {
		panic("state: " + err.Error())
	}
}
