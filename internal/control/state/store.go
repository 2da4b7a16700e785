// Package state holds the tables in which the controllers of a node meet, and the one
// journal from which they are restored.
//
//	endpoints, waiting               written by control/cni
//	interfaces, addresses, actions   written by control/pool, out of its ledger
//	cooling                          written by control/podcidr
//	node, pool, sources              written by the backend, one of these two
//	devices, drift, links, nftables  written by control/network, with the statuses
//	                                 links-status and nftables-status
//
// A change is a transaction over all tables. Its rows go to the journal in the order of
// the transactions; the lock is never held while waiting for the disk. The package
// touches the journal's directory only, by edge/journal, and reads it in Open only.
package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Options of Open.
type Options struct {
	Dir      string        // of the journal
	BootID   string        // names this boot of the machine
	Settings ipam.Settings // of the ledger
	// LinkPrefix begins the names of pods' links; of records of version 1 only.
	LinkPrefix string
	Log        *slog.Logger
}

// Store is the agent's state. Its methods may be called from any goroutine.
type Store struct {
	// Found is the condition of the journal when it was opened.
	Found Found
	// Begun are the actions an earlier process had in flight; fixed by Open.
	Begun []cloud.Action
	// Agreed is the last agreement of an earlier process of this boot; fixed by Open.
	Agreed Agreement
	// Recorded is what an earlier process knew of its node; fixed by Open. It may be another
	// node: the disk may be an image of that one's. Of this boot, it is this node.
	Recorded Node

	DB         *table.DB
	owned      handles
	endpoints  table.RW[endpoint.Endpoint]
	interfaces table.RW[ipam.ENI]
	addresses  table.RW[ipam.Address]
	actions    table.RW[cloud.Action]
	cooling    table.RW[podcidr.Cooling]

	boot    string       // ID
	journal *recorder    // its write is guarded by DB.Update
	ledger  *ipam.Ledger // guarded by DB.Update
	last    last         // guarded by DB.Update
}

// Found is the condition of a journal.
type Found struct {
	journal.Opened
	// Left is set if an earlier process had left the node: nothing was restored.
	Left bool
}

// last holds the last endpoint ID and pod CIDR address that were given out: the search for
// the next one starts there. A transaction changes a copy.
type last struct {
	id   endpoint.ID
	addr netip.Addr // see SetLastGiven
}

// Agreement is what a full comparison has last found, or put, in the kernel: a digest of
// each part of the desired state, by place and owner. What a part of the same digest lacks
// at the next start was removed externally while no agent ran.
type Agreement map[string]string

// Open takes the journal's lock, which an agent that is still stopping may hold for up
// to a minute, and restores the state. If the journal is damaged or inconsistent, the
// state is empty; it is rebuilt from the kernel and EC2. Records of version 1 are
// converted (see migrate.go).
func Open(ctx context.Context, o Options) (*Store, error) {
	j, records, err := openJournal(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if j.Found.Damage != nil {
		o.Log.Error("the journal is damaged; rebuilding from the kernel and EC2", "kept", j.Found.SetAside, "error", j.Found.Damage)
	}
	now := time.Now()
	var s *Store
	var changes []journal.Record
	left := hasLeft(records)
	if left {
		o.Log.Info("an earlier agent has left the node since the journal was written; rebuilding from the kernel and EC2")
		s, changes, err = forgotten(o.Settings, records)
	} else {
		var converted []journal.Record
		if converted, changes, err = migrate(records, o.LinkPrefix, now); err == nil {
			s, err = restored(o.Settings, converted)
		}
		if err != nil {
			o.Log.Error("the journal is inconsistent; rebuilding from the kernel and EC2", "error", err)
			s, changes, err = forgotten(o.Settings, records)
		}
	}
	if err == nil {
		s.Found, s.journal, s.boot = Found{j.Found, left}, newRecorder(j), o.BootID
		err = s.start(ctx, now, changes, o.Log)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return s, nil
}

// forgotten is a store without rows, and the changes that remove the records from the
// journal.
func forgotten(settings ipam.Settings, records []journal.Record) (s *Store, changes []journal.Record, err error) {
	for _, r := range records {
		changes = append(changes, journal.Forget(r.Key))
	}
	s, err = restored(settings, nil)
	return s, changes, err
}

// restored is a store with the rows of records.
func restored(settings ipam.Settings, records []journal.Record) (*Store, error) {
	s := &Store{DB: table.New(), ledger: ipam.New(settings)}
	var errs [5]error
	s.endpoints, errs[0] = table.Register(s.DB, endpointSchema())
	s.interfaces, errs[1] = table.Register(s.DB, interfaceSchema())
	s.addresses, errs[2] = table.Register(s.DB, addressSchema())
	s.actions, errs[3] = table.Register(s.DB, actionSchema())
	s.cooling, errs[4] = table.Register(s.DB, coolingSchema())
	if err := errors.Join(append(errs[:], s.owned.register(s.DB))...); err != nil {
		return nil, err
	}
	return s, s.transact(func(tx *Tx) error { return tx.restore(records) })
}

// start adapts what was restored to this process, and to this boot, and journals that with
// what was converted in one append: it is the first one, see journal.Opened.
func (s *Store) start(ctx context.Context, now time.Time, converted []journal.Record, log *slog.Logger) error {
	pending, err := s.Update(func(tx *Tx) error {
		tx.Durable()
		tx.records = append(tx.records, converted...)
		tx.Record(tx.Ledger().Restart(now)...)
		if s.Found.Rebooted {
			for _, e := range tx.Endpoints() {
				if e.Stage != endpoint.Removing {
					log.Info("endpoint of an earlier boot", "pod", e.Name(), "ip", e.Addresses.Primary())
				}
				if err := tx.Put(e.Rebooted(now)); err != nil {
					return err
				}
			}
			s.Agreed = nil
			tx.records = append(tx.records, journal.Forget(keyAgreed))
		}
		s.Begun = tx.Ledger().View(now).InFlight
		return nil
	})
	if err != nil || len(converted) == 0 {
		return err
	}
	return pending.Wait(ctx)
}

func openJournal(ctx context.Context, o Options) (j *journal.Journal, records []journal.Record, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		j, records, err = journal.Open(o.Dir, journal.Options{BootID: o.BootID, Reserve: reserveSize})
		if !errors.Is(err, journal.ErrLocked) {
			return j, records, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, err
		case <-tick.C:
		}
	}
}

// reserveSize is that of the journal's reserve, in bytes: a rewrite of the journal of a node
// with 1,000 addresses, and the removals of as many pods, are less than 1 MiB.
const reserveSize = 2 << 20

// DiskFull reports that the disk of the journal has no space left. What is removed can still
// be recorded; nothing may be added.
func DiskFull(s *Store) bool { return s.journal.Full() }

// RecordedNow reports whether Recorded is of this boot of the machine.
func (s *Store) RecordedNow() bool { return s.Recorded.Boot != "" && s.Recorded.Boot == s.boot }

// Close writes what was accepted and releases the journal's lock.
func (s *Store) Close() error { return s.journal.Close() }

// ErrOtherInstance says that the journal is that of another instance, of which the disk is
// an image.
var ErrOtherInstance = errors.New("the journal is that of another instance")

// SetAside closes the journal and sets its file aside as a damaged one is; it returns the
// file's path. The next process starts with an empty state.
func (s *Store) SetAside() (path string, err error) { return s.journal.SetAside() }

// View is the ledger at one moment, with the addresses of endpoints that are being
// removed in quarantine, and every other assigned address.
func (s *Store) View(now time.Time) (view ipam.View, leases []ipam.Lease) {
	_ = s.DB.Update(func(txn *table.Txn) error { // changes no table
		removing := func(id endpoint.ID) bool {
			e, _, ok := s.endpoints.Get(txn, EndpointsByID().Query(id))
			return ok && e.Stage == endpoint.Removing
		}
		for _, l := range s.ledger.Leases() {
			if l.Holder.Foreign() || !removing(l.Holder.Endpoint) {
				leases = append(leases, l)
			}
		}
		view = s.ledger.View(now).Removing(removing)
		return nil
	})
	return view, leases
}

// Endpoints are all endpoints, ordered by ID.
func (s *Store) Endpoints() []endpoint.Endpoint { return list(s.endpoints.All(s.DB.Snapshot())) }

// EndpointsChanged returns a channel that is closed once an endpoint changes.
func EndpointsChanged(s *Store) <-chan struct{} {
	return s.endpoints.Watch(s.DB.Snapshot(), table.Query[endpoint.Endpoint]{})
}

// EndpointsIn are the endpoints of a view, ordered by ID.
func (s *Store) EndpointsIn(v table.View) []endpoint.Endpoint { return list(s.endpoints.All(v)) }

// EndpointsOf are the endpoints with a link of that name.
func (s *Store) EndpointsOf(link string) []endpoint.Endpoint {
	return list(s.endpoints.List(s.DB.Snapshot(), EndpointsByLink().Query(link)))
}

// Endpoint is the endpoint of a key: the one in use, or else one that is being removed.
func (s *Store) Endpoint(key endpoint.Key) (endpoint.Endpoint, bool) {
	return s.byKey(s.DB.Snapshot(), key)
}

func (s *Store) byKey(v table.View, key endpoint.Key) (found endpoint.Endpoint, ok bool) {
	for e := range s.endpoints.List(v, EndpointsByKey().Query(key)) {
		if !ok || found.Stage == endpoint.Removing {
			found, ok = e, true
		}
	}
	return found, ok
}

func list[T any](rows iter.Seq2[T, table.Revision]) []T {
	var all []T
	for row := range rows {
		all = append(all, row)
	}
	return all
}

// Update runs f as one transaction. What f changed goes to the journal, in the order of
// the transactions; when f returns an error, nothing has changed: neither the tables nor
// the ledger. When the disk refuses it (journal.ErrDisk), the tables have the change, and the
// caller undoes it or repeats it: the journal follows with the next change, see recorder.
func (s *Store) Update(f func(tx *Tx) error) (pending *journal.Pending, err error) {
	err = s.transact(func(tx *Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		pending = s.journal.write(tx.records, tx.durable)
		return nil
	})
	return pending, err
}

// transact runs f as one transaction that is not journaled.
func (s *Store) transact(f func(tx *Tx) error) error {
	return s.DB.Update(func(txn *table.Txn) error {
		tx := &Tx{s: s, txn: txn, last: s.last}
		if err := s.ledger.Atomic(func() error { return f(tx) }); err != nil {
			return err
		}
		s.last = tx.last
		return nil
	})
}

// Tx is a transaction of a Store.
type Tx struct {
	s       *Store
	txn     *table.Txn
	last    last
	records []journal.Record
	durable bool
}

// Txn is the transaction of the tables alone: for those that a controller writes by handles
// of its own. Their rows are not journaled.
func (tx *Tx) Txn() *table.Txn { return tx.txn }

// Durable makes the transaction wait for the disk: its records must outlive a power
// cut. Others survive the process, not the machine: which endpoint has which address
// does not outlive a boot.
func (tx *Tx) Durable() { tx.durable = true }

// Ledger is the ledger of addresses as the transaction changes it; hand the records of
// each change to Record. When the transaction fails, it is as before.
func (tx *Tx) Ledger() *ipam.Ledger { return tx.s.ledger }

// Record enters changes of the ledger in its tables and in the journal.
func (tx *Tx) Record(rows ...ipam.Record) {
	for _, row := range rows {
		tx.apply(row)
		tx.records = append(tx.records, ledgerRecord(row))
	}
}

// apply enters a change of the ledger in its tables. They have no unique index beside
// the primary ones, so no row conflicts with another.
func (tx *Tx) apply(row ipam.Record) {
	var err error
	switch row.Op {
	case ipam.PutENI:
		_, err = tx.s.interfaces.Insert(tx.txn, *row.ENI)
	case ipam.DropENI:
		tx.s.interfaces.Delete(tx.txn, InterfacesByID().Query(row.ENIID))
		tx.s.addresses.Delete(tx.txn, AddressesByInterface().Query(row.ENIID))
	case ipam.PutAddress:
		_, err = tx.s.addresses.Insert(tx.txn, *row.Address)
	case ipam.DropAddress:
		tx.s.addresses.Delete(tx.txn, AddressesByAddr().Query(row.Addr))
	case ipam.PutAction:
		_, err = tx.s.actions.Insert(tx.txn, *row.Action)
	case ipam.DropAction:
		tx.s.actions.Delete(tx.txn, ActionsByID().Query(row.ID))
	case ipam.PutBackoff, ipam.DropBackoff, ipam.PutGone, ipam.DropGone: // only the ledger uses them
	}
	if err != nil {
		panic("state: ledger record refused: " + err.Error())
	}
}

// NextID is an ID for a new endpoint. It is taken once the endpoint is Put.
func (tx *Tx) NextID() (endpoint.ID, error) {
	return endpoint.NextID(tx.last.id, func(id endpoint.ID) bool { _, used := tx.Current(id); return used })
}

// Endpoint is as Store.Endpoint.
func (tx *Tx) Endpoint(key endpoint.Key) (endpoint.Endpoint, bool) { return tx.s.byKey(tx.txn, key) }

// Current is the endpoint of an ID.
func (tx *Tx) Current(id endpoint.ID) (endpoint.Endpoint, bool) {
	e, _, ok := tx.s.endpoints.Get(tx.txn, EndpointsByID().Query(id))
	return e, ok
}

// ByID implements endpoint.Others.
func (tx *Tx) ByID(id endpoint.ID) (endpoint.Endpoint, bool) { return tx.Current(id) }

// ByAddress implements endpoint.Others.
func (tx *Tx) ByAddress(addr netip.Addr) (endpoint.Endpoint, bool) {
	e, _, ok := tx.s.endpoints.Get(tx.txn, EndpointsByAddress().Query(addr))
	return e, ok
}

// Check refuses, with endpoint.ErrTaken, an endpoint that would share an ID or an
// address with another.
func (tx *Tx) Check(e endpoint.Endpoint) error { return endpoint.Check(e, tx) }

// Put stores an endpoint that passes Check.
func (tx *Tx) Put(e endpoint.Endpoint) error {
	if err := tx.Check(e); err != nil {
		return err
	}
	_, known := tx.Current(e.ID)
	if _, err := tx.s.endpoints.Insert(tx.txn, e); err != nil {
		return err
	}
	if !known {
		tx.last.id = e.ID
		tx.records = append(tx.records, put(keyLastID, e.ID))
	}
	if e.Stage != endpoint.Waiting {
		tx.records = append(tx.records, endpointRecord(e))
	}
	return nil
}

// Delete deletes an endpoint. Call it once nothing of it is in the kernel any more. Its
// ID may be used again.
func (tx *Tx) Delete(id endpoint.ID) {
	if tx.s.endpoints.Delete(tx.txn, EndpointsByID().Query(id)) > 0 {
		tx.records = append(tx.records, journal.Forget(endpointKey(id)))
	}
}

// Endpoints are all endpoints, ordered by ID.
func (tx *Tx) Endpoints() []endpoint.Endpoint { return list(tx.s.endpoints.All(tx.txn)) }

// Agree records a comparison that ended in agreement.
func (tx *Tx) Agree(a Agreement) { tx.records = append(tx.records, put(keyAgreed, a)) }

// restore enters the rows of records in the tables. None of it is journaled again.
func (tx *Tx) restore(records []journal.Record) error {
	var rows []ipam.Record
	lastID := endpoint.ID(0)
	for _, r := range records {
		var err error
		switch prefix, _, _ := strings.Cut(r.Key, "/"); prefix + "/" {
		case keyLedger:
			var row ipam.Record
			err = decode(r, &row)
			rows = append(rows, row)
		case keyEndpoint:
			var e endpoint.Endpoint
			if err = decode(r, &e); err == nil {
				err = tx.Put(e)
			}
		case keyCooling:
			var c podcidr.Cooling
			if err = decode(r, &c); err == nil {
				tx.Cool(c)
			}
		}
		switch r.Key {
		case keyLastID:
			err = decode(r, &lastID)
		case keyLastGiven:
			err = decode(r, &tx.last.addr)
		case keyAgreed:
			err = decode(r, &tx.s.Agreed)
		case keyNode:
			err = decode(r, &tx.s.Recorded)
		} // keys of another version are left as they are
		if err != nil {
			return fmt.Errorf("record %s: %w", r.Key, err)
		}
	}
	if err := tx.Ledger().Replay(rows); err != nil {
		return err
	}
	tx.Record(rows...)
	if lastID != 0 {
		tx.last.id = lastID
	}
	return nil
}
