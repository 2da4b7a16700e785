package fabric

import (
	"errors"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nfnetlink"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// tableName of the fabric's nftables tables.
const tableName = "fabric"

// filter makes the kernel's tables equal to the plan's, by difference, in one
// transaction. It compares with the tables that it wrote last if the kernel's generation
// number shows that no other program has changed the ruleset since; otherwise it reads
// the tables from the kernel.
type filter struct {
	conn       *nfnetlink.Conn
	generation uint32 // after our last transaction
	// written are the tables of our last transaction, nil before the first.
	written map[nftables.TableName]nftables.Table
	// outdated is set if the kernel's tables may differ from written.
	outdated bool
	device   map[vpc.ENIID]string
}

func openFilter(ns int) (*filter, error) {
	conn, err := nfnetlink.Dial(ns)
	if err != nil {
		return nil, err
	}
	return &filter{conn: conn}, nil
}

func (f *filter) close() { _ = f.conn.Close() }

// apply writes the difference and returns the number of changes.
func (f *filter) apply(want []nftables.Table, device map[vpc.ENIID]string) (int, error) {
	now, err := f.conn.Generation()
	if err != nil {
		return 0, err
	}
	if now != f.generation {
		f.outdated = true
	}
	var changes []nftables.Change
	next := map[nftables.TableName]nftables.Table{}
	for _, t := range want {
		part, err := f.diff(t)
		if err != nil {
			return 0, err
		}
		changes = append(changes, part...)
		next[t.TableName] = t
	}
	f.device = device
	if err := f.conn.Commit(changes...); err != nil {
		f.outdated = true
		return len(changes), err
	}
	f.written = next
	if f.generation, err = f.conn.Generation(); err != nil {
		f.outdated = true
		return len(changes), err
	}
	f.outdated = false
	return len(changes), nil
}

// diff lists the changes that make one table of the kernel equal to want. The first diff
// replaces the table, so that counters begin at zero.
func (f *filter) diff(want nftables.Table) ([]nftables.Change, error) {
	if f.written == nil {
		// Deleting a table that does not exist is an error, so it is added first.
		return append([]nftables.Change{
			nftables.AddTable{Table: want.TableName}, nftables.DeleteTable{Table: want.TableName},
		}, nftables.Diff(want, nil)...), nil
	}
	if !f.outdated {
		have := f.written[want.TableName]
		return nftables.Diff(want, &have), nil
	}
	have, err := f.conn.Read(want.TableName)
	if err != nil {
		return nil, err
	}
	return nftables.Diff(want, have), nil
}

// drops reads the counters of every port.
func (f *filter) drops() (map[vpc.ENIID]Drops, error) {
	out := map[vpc.ENIID]Drops{}
	for id := range f.device {
		out[id] = Drops{}
	}
	var errs []error
	for name, t := range f.written {
		for _, reason := range dropReasons() {
			if t.Set(reason) == nil {
				continue
			}
			counts, err := f.conn.Counts(name, reason)
			if err != nil {
				errs = append(errs, fmt.Errorf("read counters %s: %w", reason, err))
				continue
			}
			for id, device := range f.device {
				d := out[id]
				*d.of(reason) += counts[nftables.Ifname(device)].Packets
				out[id] = d
			}
		}
	}
	return out, errors.Join(errs...)
}

// of is the counter of a reason.
func (d *Drops) of(reason string) *uint64 {
	switch reason {
	case dropSpoofed:
		return &d.Spoofed
	case dropMisrouted:
		return &d.Misrouted
	case dropEgress:
		return &d.Egress
	case dropIngress:
		return &d.Ingress
	case dropUnroutable:
		return &d.Unroutable
	case dropStale:
		return &d.Stale
	}
	return &d.Service
}
