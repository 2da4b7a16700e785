package state

import (
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Keys of what the backend podcidr keeps.
const (
	keyCooling   = "cooling/" // + prefix
	keyLastGiven = "last-address"
)

// CoolingByPrefix is the primary index of the cool-downs.
func CoolingByPrefix() table.Index[podcidr.Cooling, netip.Prefix] {
	return table.By("prefix", func(c podcidr.Cooling) netip.Prefix { return c.Prefix }, table.Prefix)
}

func coolingSchema() table.Schema[podcidr.Cooling] {
	return table.Schema[podcidr.Cooling]{
		Name: "cooling", Primary: CoolingByPrefix(),
		Columns: []string{"PREFIX", "UNTIL"},
		Cells:   func(c podcidr.Cooling) []string { return []string{c.Prefix.String(), c.Until.Format(time.TimeOnly)} },
	}
}

// Cooling is the cool-down of a prefix.
func (tx *Tx) Cooling(p netip.Prefix) (podcidr.Cooling, bool) {
	c, _, ok := tx.s.cooling.Get(tx.txn, CoolingByPrefix().Query(p))
	return c, ok
}

// CoolDowns are all cool-downs, ordered by prefix.
func (tx *Tx) CoolDowns() []podcidr.Cooling { return list(tx.s.cooling.All(tx.txn)) }

// Cool starts the cool-down of a prefix, or changes it. The table has no index beside
// the primary one, so no row conflicts with another.
func (tx *Tx) Cool(c podcidr.Cooling) {
	if _, err := tx.s.cooling.Insert(tx.txn, c); err != nil {
		panic("state: cool-down refused: " + err.Error())
	}
	tx.records = append(tx.records, put(keyCooling+c.Prefix.String(), c))
}

// EndCooling forgets the cool-down of a prefix.
func (tx *Tx) EndCooling(p netip.Prefix) {
	if tx.s.cooling.Delete(tx.txn, CoolingByPrefix().Query(p)) > 0 {
		tx.records = append(tx.records, journal.Forget(keyCooling+p.String()))
	}
}

// LastGiven is the last address that SetLastGiven stored; invalid if there is none.
func (tx *Tx) LastGiven() netip.Addr { return tx.last.addr }

// SetLastGiven stores the address after which the next one is searched.
func (tx *Tx) SetLastGiven(a netip.Addr) {
	tx.last.addr = a
	tx.records = append(tx.records, put(keyLastGiven, a))
}

// LastGiven is as Tx.LastGiven.
func (s *Store) LastGiven() (last netip.Addr) {
	_ = s.DB.Update(func(*table.Txn) error { // changes no table
		last = s.last.addr
		return nil
	})
	return last
}

// CoolDowns are all cool-downs, ordered by prefix.
func (s *Store) CoolDowns() []podcidr.Cooling { return list(s.cooling.All(s.DB.Snapshot())) }

func optionalPrefix(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}
