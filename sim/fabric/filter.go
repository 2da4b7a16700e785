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
// transaction. It remembers what it wrote, and trusts that as long as the kernel's
// generation number says that no other program wrote; else it reads the tables again.
type filter struct {
	conn       *nfnetlink.Conn
	generation uint32 // after our last transaction
	// written are the tables of our last transaction, nil before the first.
	written map[nftables.TableName]nftables.Table
	// unsure is set while the kernel may not have what was written.
	unsure bool
	device map[vpc.ENIID]string
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
		f.unsure = true
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
		f.unsure = true
		return len(changes), err
	}
	f.written = next
	if f.generation, err = f.conn.Generation(); err != nil {
		f.unsure = true
		return len(changes), err
	}
	f.unsure = false
	return len(changes), nil
}

// diff lists what makes one table of the kernel the wanted one. The first time it
// starts from nothing, so that counters begin at zero.
func (f *filter) diff(want nftables.Table) ([]nftables.Change, error) {
	if f.written == nil {
		// Deleting a table that may not exist takes adding it first.
		return append([]nftables.Change{
			nftables.AddTable{Table: want.TableName}, nftables.DeleteTable{Table: want.TableName},
		}, nftables.Diff(want, nil)...), nil
	}
	if !f.unsure {
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

// of is the field that a reason counts in.
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
