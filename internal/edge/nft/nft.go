// Package nft makes the kernel's nftables equal to a ruleset.Ruleset, and adds and
// removes the set elements of single pods, over netlink and without nft(8). core/ruleset
// decides what the rules are. The package changes only the tables named hostnet.Table,
// in the network namespace it was opened with, and deletes what AWS's daemon and the plugins of
// its network have left there (aws.go, hostport.go). control/network compares and applies the
// whole, control/cni adds and removes the elements of a pod.
//
// Package nfnetlink reads and writes the kernel's tables. This package makes each change
// one transaction, reports changes of other programs, and finds which rules of the ruleset
// a kernel rejects.
package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/kernel/nfnetlink"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// ErrNoTable is returned when our table, or a set in it, is missing: another program
// flushed it, or Apply has not run yet. Apply adds it.
var ErrNoTable = errors.New("nftables table of ours is missing")

// Firewall is our part of a namespace's nftables. Its methods may be called from any
// goroutine.
type Firewall struct {
	ns   *os.File
	log  *slog.Logger
	conn *nfnetlink.Conn
	// tables and sets are all of a ruleset; the sets have no elements.
	tables []nftables.TableName
	sets   map[setName]nftables.Set

	turn chan struct{} // holds one token; its holder may use conn

	legacy atomic.Pointer[legacyRemoval] // nil before the first
}

type setName struct {
	family nftables.Family
	name   string
}

// Open returns the nftables of the namespace that ns refers to; the descriptor is
// duplicated. A nil ns is the namespace of the calling thread.
func Open(ns *os.File, log *slog.Logger) (*Firewall, error) {
	own, err := duplicate(ns)
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	conn, err := nfnetlink.Dial(int(own.Fd()))
	if err != nil {
		own.Close()
		return nil, err
	}
	f := &Firewall{
		ns: own, log: log, conn: conn, sets: map[setName]nftables.Set{},
		turn: make(chan struct{}, 1),
	}
	for _, t := range ruleset.Compile(ruleset.Config{}).Tables {
		f.tables = append(f.tables, t.TableName)
		for _, s := range t.Sets {
			f.sets[setName{t.Family, s.Name}] = s.With()
		}
	}
	f.turn <- struct{}{}
	return f, nil
}

// Close closes the connection. No other method may be running.
func (f *Firewall) Close() error {
	<-f.turn
	return errors.Join(f.conn.Close(), f.ns.Close())
}

func duplicate(ns *os.File) (*os.File, error) {
	if ns == nil {
		return os.Open("/proc/thread-self/ns/net")
	}
	fd, err := unix.FcntlInt(ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), ns.Name()), nil
}

// alone calls do while no other method uses the connection.
func (f *Firewall) alone(ctx context.Context, do func() error) error {
	select {
	case <-f.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { f.turn <- struct{}{} }()
	return do()
}

// commit makes changes of elements in one transaction.
func (f *Firewall) commit(ctx context.Context, elements []ruleset.Element, change func(nftables.TableName, nftables.Set) nftables.Change) error {
	changes, err := f.bySet(elements, change)
	if err != nil {
		return err
	}
	return f.alone(ctx, func() error { return f.conn.Commit(changes...) })
}

// Put adds elements, all or none: those of one pod, or of many. Adding one that is
// there changes nothing. It returns ErrNoTable if the ruleset is not there.
func (f *Firewall) Put(ctx context.Context, elements ...ruleset.Element) error {
	add := func(t nftables.TableName, s nftables.Set) nftables.Change {
		return nftables.AddElements{Table: t, Set: s}
	}
	err := f.commit(ctx, elements, add)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("add %d elements: %w", len(elements), ErrNoTable)
	}
	if err != nil {
		return fmt.Errorf("add %d elements: %w", len(elements), err)
	}
	return nil
}

// Remove deletes elements. Deleting those that are not there is success.
func (f *Firewall) Remove(ctx context.Context, elements ...ruleset.Element) error {
	remove := func(t nftables.TableName, s nftables.Set) nftables.Change {
		return nftables.DeleteElements{Table: t, Set: s}
	}
	err := f.commit(ctx, elements, remove)
	if errors.Is(err, unix.ENOENT) && len(elements) > 1 {
		// One is missing, so the kernel deleted none.
		err = nil
		for _, e := range elements {
			err = errors.Join(err, f.Remove(ctx, e))
		}
		return err
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %d elements: %w", len(elements), err)
	}
	return nil
}

// bySet makes one change of the elements of each set.
func (f *Firewall) bySet(elements []ruleset.Element, change func(nftables.TableName, nftables.Set) nftables.Change) ([]nftables.Change, error) {
	grouped := map[setName][]nftables.Element{}
	var order []setName
	for _, e := range elements {
		name := setName{e.Family, e.Set}
		if _, known := f.sets[name]; !known {
			return nil, fmt.Errorf("table %s has no set %q", e.Family, e.Set)
		}
		if grouped[name] == nil {
			order = append(order, name)
		}
		grouped[name] = append(grouped[name], e.Element)
	}
	changes := make([]nftables.Change, len(order))
	for i, name := range order {
		table := nftables.TableName{Family: name.family, Name: hostnet.Table}
		changes[i] = change(table, f.sets[name].With(grouped[name]...))
	}
	return changes, nil
}

// Read returns our tables as the kernel has them; one that is missing is left out.
func (f *Firewall) Read(ctx context.Context) (tables []*nftables.Table, err error) {
	err = f.alone(ctx, func() error {
		for _, name := range f.tables {
			have, err := f.conn.Read(name)
			if err != nil {
				return fmt.Errorf("read table %s: %w", name, err)
			}
			if have != nil {
				tables = append(tables, have)
			}
		}
		return nil
	})
	return tables, err
}

// applyRounds bounds how often Apply reads the kernel again. The second round also
// verifies that nothing of a large load was lost.
const applyRounds = 3

// Apply makes our tables be what is wanted. Tables of others are not touched. All that
// differs, and nothing else, changes in one transaction: no packet meets a half-made
// table.
//
// want is called when no other change can come between: a caller that records a pod
// before it Puts its elements never has them removed.
func (f *Firewall) Apply(ctx context.Context, want func() ruleset.Ruleset) error {
	var last []nftables.Change
	for range applyRounds {
		var changes []nftables.Change
		err := f.alone(ctx, func() (err error) {
			if changes, err = f.diff(want()); err != nil || len(changes) == 0 {
				return err
			}
			return f.conn.Commit(changes...)
		})
		if err != nil {
			return fmt.Errorf("apply nftables: %w", err)
		}
		switch {
		case len(changes) == 0:
			return nil
		case reflect.DeepEqual(changes, last):
			return fmt.Errorf("apply nftables: the kernel accepts changes and does not make them: %+v", changes[0])
		}
		f.log.Debug("nftables changed", "changes", len(changes))
		last = changes
	}
	return nil // what is wanted changes as fast as Apply reads
}

// diff reads our tables and lists what makes them agree with rs.
func (f *Firewall) diff(rs ruleset.Ruleset) (changes []nftables.Change, err error) {
	for _, t := range rs.Tables {
		have, err := f.conn.Read(t.TableName)
		if err != nil {
			return nil, err
		}
		changes = append(changes, nftables.Diff(t, have)...)
	}
	return changes, nil
}
