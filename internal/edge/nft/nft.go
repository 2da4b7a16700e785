// Package nft makes the kernel's nftables equal to a ruleset.Ruleset, and adds and
// removes the set elements of single pods, over netlink and without nft(8). core/ruleset
// decides what the rules are. The package changes only the tables named hostnet.Table,
// in the network namespace it was opened with. app/agent calls it.
//
// Package nfnetlink reads and writes the kernel's tables. This package distinguishes
// drift from the agent's own changes, reports changes of other programs, and finds which
// rules of the ruleset a kernel rejects.
package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

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
	sets map[setName]nftables.Set // without elements

	turn chan struct{} // holds one token; its holder may use conn and left
	left map[nftables.Family]*left
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
		turn: make(chan struct{}, 1), left: map[nftables.Family]*left{},
	}
	for _, t := range ruleset.Compile(ruleset.Config{}).Tables {
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

// commit lists changes and makes them in one transaction, while no other method does;
// then committed, if any, records what they left.
func (f *Firewall) commit(ctx context.Context, list func() ([]nftables.Change, error), committed func()) error {
	select {
	case <-f.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { f.turn <- struct{}{} }()
	changes, err := list()
	if err != nil {
		return err
	}
	if err := f.conn.Commit(changes...); err != nil {
		if !errors.Is(err, unix.ENOENT) {
			clear(f.left) // the kernel may have made the changes despite the error
		}
		return err
	}
	if committed != nil {
		committed()
	}
	return nil
}

// Put adds elements, all or none: those of one pod, or of many. Adding one that is
// there changes nothing. It returns ErrNoTable if the ruleset is not there.
func (f *Firewall) Put(ctx context.Context, elements ...ruleset.Element) error {
	add := func(t nftables.TableName, s nftables.Set) nftables.Change {
		return nftables.AddElements{Table: t, Set: s}
	}
	err := f.commit(ctx, func() ([]nftables.Change, error) { return f.bySet(elements, add) }, func() { f.record(elements, true) })
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
	err := f.commit(ctx, func() ([]nftables.Change, error) { return f.bySet(elements, remove) }, func() { f.record(elements, false) })
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

// applyRounds bounds how often Apply reads the kernel again. The second round also
// verifies that nothing of a large load was lost.
const applyRounds = 3

// Apply makes our tables be what is wanted and returns what was not, repaired or not.
// Tables of others are not touched. All that differs, and nothing else, changes in one
// transaction: no packet meets a half-made table.
//
// want is called when no other change can come between: a caller that records a pod
// before it Puts its elements never sees them pruned.
func (f *Firewall) Apply(ctx context.Context, want func() ruleset.Ruleset) ([]hostnet.Drift, error) {
	var all []hostnet.Drift
	for range applyRounds {
		var found []hostnet.Drift
		var rs ruleset.Ruleset
		var changes []nftables.Change
		err := f.commit(ctx, func() (_ []nftables.Change, err error) {
			rs = want()
			changes, found, err = f.diff(rs)
			return changes, err
		}, func() {
			for _, t := range rs.Tables {
				f.left[t.Family] = leftOf(t)
			}
		})
		if err != nil {
			return append(all, found...), fmt.Errorf("apply nftables: %w", err)
		}
		if len(found) == 0 {
			return all, nil
		}
		f.log.Debug("nftables changed", "changes", len(changes), "why", found[0].String())
		for i := range found {
			found[i].Repaired = true
		}
		all = append(all, found...)
	}
	if last := all[len(all)-1]; !last.Own { // else what is wanted changes as fast as Apply reads
		return all, fmt.Errorf("apply nftables: still not as it should be after %d rounds: %s", applyRounds, last)
	}
	return all, nil
}

// diff reads our tables and lists what makes them agree with rs, and what was wrong.
func (f *Firewall) diff(rs ruleset.Ruleset) (changes []nftables.Change, drifts []hostnet.Drift, err error) {
	for _, t := range rs.Tables {
		have, err := f.conn.Read(t.TableName)
		if err != nil {
			return nil, drifts, err
		}
		changes = append(changes, nftables.Diff(t, have)...)
		drifts = append(drifts, f.drifts(t, have)...)
	}
	return changes, drifts, nil
}
