// Package nft makes the kernel's nftables agree with a ruleset.Ruleset and adds
// and removes the set elements of single pods, over netlink, without nft(8). It
// decides nothing and touches only the tables called hostnet.Table in the
// namespace it was opened with. The agent calls it.
package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// ErrNoTable says that our table, or a set in it, is not there: somebody flushed
// it, or Apply has not run yet. Apply puts it back.
var ErrNoTable = errors.New("nftables table of ours is missing")

// Firewall is our part of a namespace's nftables. Its methods may be called from
// many goroutines; they take turns.
type Firewall struct {
	ns   *os.File
	log  *slog.Logger
	turn chan *nftables.Conn      // holds the one connection; whoever has it may write
	left map[ruleset.Family]*left // by our last transaction; whoever has the turn may use it

	mu   sync.Mutex
	own  map[uint32]bool // port ids of our sockets: whose changes are ours
	sets map[setName]ruleset.Set
}

type setName struct {
	family ruleset.Family
	name   string
}

// Open returns the nftables of the namespace that ns names; the descriptor is
// duplicated. A nil ns is the namespace of the calling thread.
func Open(ns *os.File, log *slog.Logger) (*Firewall, error) {
	own, err := duplicate(ns)
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	f := &Firewall{ns: own, log: log, turn: make(chan *nftables.Conn, 1), own: map[uint32]bool{}, sets: map[setName]ruleset.Set{}, left: map[ruleset.Family]*left{}}
	for _, t := range ruleset.Compile(ruleset.Config{}).Tables {
		for _, s := range t.Sets {
			f.sets[setName{t.Family, s.Name}] = s
		}
	}
	c, err := f.dial()
	if err != nil {
		own.Close()
		return nil, err
	}
	f.turn <- c
	return f, nil
}

// Close releases the connection. No other method may be running.
func (f *Firewall) Close() error {
	c := <-f.turn
	return errors.Join(c.CloseLasting(), f.ns.Close())
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

// bufferSize is room for the answers to a whole ruleset, in bytes.
const bufferSize = 4 << 20

func (f *Firewall) dial() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(f.ns.Fd())), nftables.AsLasting(), nftables.WithSockOptions(f.remember, func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(bufferSize), c.SetWriteBuffer(bufferSize))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// remember notes the port id of a socket of ours.
func (f *Firewall) remember(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		sa, err := unix.Getsockname(int(fd))
		if inner = err; err != nil {
			return
		}
		if nl, ok := sa.(*unix.SockaddrNetlink); ok {
			f.mu.Lock()
			f.own[nl.Pid] = true
			f.mu.Unlock()
		}
	})
	return errors.Join(err, inner)
}

func (f *Firewall) ours(port uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.own[port]
}

// transact queues changes on the one connection and commits them together: all
// or none; then done, if any, notes what they left. A connection that failed is
// replaced, for answers may still be in it.
func (f *Firewall) transact(ctx context.Context, queue func(*nftables.Conn) error, done func()) error {
	var c *nftables.Conn
	select {
	case c = <-f.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := queue(c)
	if err == nil {
		err = c.Flush()
		if err != nil && !errors.Is(err, unix.ENOENT) {
			clear(f.left) // the kernel may have done it all the same
		}
	}
	if err == nil && done != nil {
		done()
	}
	if err != nil {
		if fresh, dialErr := f.dial(); dialErr == nil {
			_ = c.CloseLasting()
			c = fresh
		}
	}
	f.turn <- c
	return err
}

// perMessage is how many elements one message takes. More than 64 KiB of them
// are silently lost.
const perMessage = 400

// Put adds elements, all or none: what one pod needs, or many. Adding one that is
// there changes nothing. It returns ErrNoTable if the ruleset is not there.
func (f *Firewall) Put(ctx context.Context, elements ...ruleset.Element) error {
	err := f.transact(ctx, func(c *nftables.Conn) error { return f.queue(elements, c.SetAddElements) },
		func() { f.note(elements, true) })
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("add %d elements: %w", len(elements), ErrNoTable)
	}
	if err != nil {
		return fmt.Errorf("add %d elements: %w", len(elements), err)
	}
	return nil
}

// Remove takes elements away. Those that are not there are gone already.
func (f *Firewall) Remove(ctx context.Context, elements ...ruleset.Element) error {
	err := f.transact(ctx, func(c *nftables.Conn) error { return f.queue(elements, c.SetDeleteElements) },
		func() { f.note(elements, false) })
	if errors.Is(err, unix.ENOENT) && len(elements) > 1 {
		// The kernel takes back everything when one is missing.
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

// queue hands elements to the kernel set by set, in messages it can take.
func (f *Firewall) queue(elements []ruleset.Element, send func(*nftables.Set, []nftables.SetElement) error) error {
	grouped := map[setName][]nftables.SetElement{}
	var order []setName
	for _, e := range elements {
		name := setName{e.Family, e.Set}
		s, known := f.sets[name]
		if !known {
			return fmt.Errorf("table %s has no set %q", e.Family, e.Set)
		}
		if grouped[name] == nil {
			order = append(order, name)
		}
		grouped[name] = append(grouped[name], elementsOf(s, e)...)
	}
	for _, name := range order {
		set, err := setOf(tableOf(name.family), f.sets[name])
		if err != nil {
			return err
		}
		for list := grouped[name]; len(list) > 0; {
			n := min(len(list), perMessage)
			if err := send(set, list[:n]); err != nil {
				return err
			}
			list = list[n:]
		}
	}
	return nil
}

// applyRounds bounds how often Apply looks again. The second look also verifies
// that nothing of a large load was lost.
const applyRounds = 3

// Apply makes our tables be what is wanted and returns what was not, put right or
// not. Tables of others are not touched. A table whose chains, rules or sets are
// wrong is replaced in one transaction: no packet meets a half-made one. Of one
// that is right only the elements that differ change.
//
// want is asked when no other change can come between: a caller that records a
// pod before it Puts its elements never sees them pruned.
func (f *Firewall) Apply(ctx context.Context, want func() ruleset.Ruleset) ([]hostnet.Drift, error) {
	var all []hostnet.Drift
	for range applyRounds {
		var found []hostnet.Drift
		var rs ruleset.Ruleset
		err := f.transact(ctx, func(c *nftables.Conn) (err error) {
			rs = want()
			found, err = f.plan(c, rs)
			return err
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
		for i := range found {
			found[i].Repaired = true
		}
		all = append(all, found...)
	}
	if last := all[len(all)-1]; !last.Own { // else what is wanted changes as fast as we look
		return all, fmt.Errorf("apply nftables: still not as it should be after %d rounds: %s", applyRounds, last)
	}
	return all, nil
}
