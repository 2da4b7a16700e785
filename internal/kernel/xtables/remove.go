package xtables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rule is what identifies a rule of another program.
type Rule struct {
	Chain   string
	Comment string // of the match comment
	To      string // the chain that the rule leads to; empty if it leads to none
}

// Foreign names the chains of a program that are removed, with the rules that lead to them, and
// its rules in chains that stay.
type Foreign struct {
	Chain func(name string) bool
	Rule  func(Rule) bool
}

// Removed is what Remove has removed from chains that stay, and the chains.
type Removed struct {
	Rules  []Rule
	Chains []string
}

// Remove deletes chains and rules of another program from an IPv4 table of iptables-legacy, in
// the namespace ns. Rules of others keep their order and counters. It holds the lock of
// iptables meanwhile; a table without chains or rules of the program is only read. After an error
// nothing is changed, except that counters may be lost, which it then says.
//
// The kernel has no request to delete one rule: a table is replaced as a whole, and the kernel
// refuses that if the number of entries is not the one that was read. Source:
// net/ipv4/netfilter/ip_tables.c (do_replace), net/netfilter/x_tables.c (xt_replace_table).
func Remove(ctx context.Context, ns *os.File, table string, f Foreign) (removed Removed, err error) {
	err = open(ns, table, func(s socket) error {
		_, _, removed, err = s.plan(f)
		return err
	})
	if err == nil && len(removed.Rules)+len(removed.Chains) > 0 {
		removed, err = replace(ctx, ns, table, f)
	}
	if err != nil {
		return removed, fmt.Errorf("change the table %s of iptables-legacy: %w", table, err)
	}
	return removed, nil
}

// plan reads a table and returns it without what is foreign, and which entries that keeps.
func (s socket) plan(f Foreign) (after content, kept []bool, removed Removed, err error) {
	c, err := s.read()
	if err != nil {
		return content{}, nil, Removed{}, err
	}
	t, err := parseTable(c)
	if err != nil {
		return content{}, nil, Removed{}, err
	}
	after, kept, removed = t.remove(f)
	return after, kept, removed, nil
}

// remove returns a table without what is foreign, and which of its entries that keeps.
func (t parsed) remove(f Foreign) (after content, kept []bool, removed Removed) {
	gone := map[string]bool{}
	for _, e := range t.list {
		if e.head && e.rule.Chain != "" && f.Chain(e.rule.Chain) {
			gone[e.rule.Chain] = true
			removed.Chains = append(removed.Chains, e.rule.Chain)
		}
	}
	after = t.without(func(e entry) bool {
		drop := gone[e.rule.Chain]
		if !drop && !e.fixed && (gone[e.rule.To] || f.Rule(e.rule)) {
			drop = true
			removed.Rules = append(removed.Rules, e.rule)
		}
		kept = append(kept, !drop)
		return drop
	})
	return after, kept, removed
}

// replace is Remove for a table with something to remove.
func replace(ctx context.Context, ns *os.File, table string, f Foreign) (removed Removed, err error) {
	unlock, err := lock(ctx, lockFile)
	if err != nil {
		return Removed{}, err
	}
	defer unlock()
	err = open(ns, table, func(s socket) error {
		for range tries {
			after, kept, found, err := s.plan(f)
			if err != nil {
				return err
			}
			counters, err := s.replace(after, len(kept))
			switch {
			case errors.Is(err, unix.EAGAIN): // a program that takes no lock has changed the table
				continue
			case err != nil:
				return err
			}
			removed = found
			return s.addCounters(counters, kept)
		}
		return fmt.Errorf("it changed during %d attempts", tries)
	})
	return removed, err
}

// Options and structures of linux/netfilter_ipv4/ip_tables.h and linux/netfilter/x_tables.h.
const (
	optionReplace  = 64             // IPT_SO_SET_REPLACE
	optionCounters = 65             // IPT_SO_SET_ADD_COUNTERS
	counterLength  = 16             // struct xt_counters: packets and bytes
	countersHead   = nameLength + 8 // struct xt_counters_info: the name, the number, padding
)

// replaceHead is struct ipt_replace without its entries.
type replaceHead struct {
	name                      [nameLength]byte
	validHooks, entries, size uint32
	hookEntry, underflow      [hooks]uint32
	counters                  uint32         // of the table before
	before                    unsafe.Pointer // to which the kernel writes them
}

// replace replaces a table of so many entries, and returns their counters, which the kernel does
// not take over.
func (s socket) replace(c content, number int) (counters []byte, err error) {
	counters = make([]byte, number*counterLength)
	var pin runtime.Pinner // the address is in the request
	defer pin.Unpin()
	before := unsafe.Pointer(unsafe.SliceData(counters))
	pin.Pin(before)
	head := replaceHead{
		validHooks: c.validHooks, entries: c.number, size: uint32(len(c.entries)),
		hookEntry: c.hookEntry, underflow: c.underflow, counters: uint32(number), before: before,
	}
	copy(head.name[:nameLength-1], s.table)
	request := append(unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head)), c.entries...)
	if err := unix.SetsockoptString(s.fd, unix.SOL_IP, optionReplace, unsafe.String(unsafe.SliceData(request), len(request))); err != nil {
		return nil, fmt.Errorf("replace it: %w", err)
	}
	return counters, nil
}

// addCounters adds the counters of a table before its replacement to the entries that it has kept.
func (s socket) addCounters(before []byte, kept []bool) error {
	request := make([]byte, countersHead, countersHead+len(before))
	copy(request[:nameLength-1], s.table)
	number := uint32(0)
	for i, k := range kept {
		if k {
			request = append(request, before[i*counterLength:(i+1)*counterLength]...)
			number++
		}
	}
	binary.NativeEndian.PutUint32(request[nameLength:], number)
	if err := unix.SetsockoptString(s.fd, unix.SOL_IP, optionCounters, string(request)); err != nil {
		return fmt.Errorf("it is replaced, and its counters begin at 0: %w", err)
	}
	return nil
}

// lockFile is the lock that iptables-legacy takes, as do kubelet and kube-proxy by it. Source:
// iptables/xshared.c (XT_LOCK_NAME, xtables_lock) of iptables.
const lockFile = "/run/xtables.lock"

// lockWait is how long iptables may hold the lock. kube-proxy waits as long.
const lockWait = 5 * time.Second

// lock takes the lock of iptables. The file must exist: one that is made in the agent's container
// would exclude no program of the node.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the lock of iptables is not mounted, add deploy/components/aws-node: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of iptables: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, fmt.Errorf("another program held the lock %s for %v", path, lockWait))
	defer cancel()
	again := time.NewTicker(lockWait / 100)
	defer again.Stop()
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}
