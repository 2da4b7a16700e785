package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// Probe tells whether the kernel takes rs, by giving it to a network namespace
// that is thrown away. The error names each table and rule that it refuses.
func Probe(ctx context.Context, rs ruleset.Ruleset) error {
	ns, err := throwaway()
	if err != nil {
		return fmt.Errorf("make a network namespace to try nftables in: %w", err)
	}
	defer ns.Close()
	f, err := Open(ns, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var errs []error
	for _, t := range rs.Tables {
		whole := f.transact(ctx, func(c *nftables.Conn) error { return f.rebuild(c, t, false) }, nil)
		if whole != nil {
			errs = append(errs, f.culprits(ctx, t, whole))
		}
	}
	return errors.Join(errs...)
}

// culprits finds what of a refused table is refused, rule by rule.
func (f *Firewall) culprits(ctx context.Context, t ruleset.Table, whole error) error {
	bare := t
	bare.Chains = nil
	for _, c := range t.Chains {
		c.Rules = nil
		bare.Chains = append(bare.Chains, c)
	}
	if err := f.transact(ctx, func(c *nftables.Conn) error { return f.rebuild(c, bare, false) }, nil); err != nil {
		return fmt.Errorf("nftables of this kernel has no family %s, or not its hooks and sets: %w", t.Family, err)
	}
	var errs []error
	for _, ch := range t.Chains {
		for _, r := range ch.Rules {
			code, _, err := ruleOf(r)
			if err == nil {
				err = f.transact(ctx, func(c *nftables.Conn) error {
					table := tableOf(t.Family)
					c.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: ch.Name, Table: table}, Exprs: code})
					return nil
				}, nil)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("nftables of this kernel refuses %q: %w", r, err))
			}
		}
	}
	if len(errs) == 0 {
		return whole
	}
	return errors.Join(errs...)
}

// throwaway makes a network namespace that ends when the returned file is closed.
func throwaway() (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		done <- result{ns, err}
	}()
	r := <-done
	return r.ns, r.err
}
