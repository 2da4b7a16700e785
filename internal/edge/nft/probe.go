package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Probe reports whether the kernel accepts rs, by committing it in a temporary network
// namespace. The error names each table and rule that the kernel rejects.
func Probe(ctx context.Context, rs ruleset.Ruleset) error {
	ns, err := netns.New()
	if err != nil {
		return fmt.Errorf("try nftables: %w", err)
	}
	defer ns.Close()
	f, err := Open(ns, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var errs []error
	for _, t := range rs.Tables {
		if whole := f.try(ctx, nftables.Diff(t, nil)...); whole != nil {
			errs = append(errs, f.rejected(ctx, t, whole))
		}
	}
	return errors.Join(errs...)
}

func (f *Firewall) try(ctx context.Context, changes ...nftables.Change) error {
	return f.alone(ctx, func() error { return f.conn.Commit(changes...) })
}

// rejected returns an error for each rule of t that the kernel rejects; whole is the
// error of the complete table.
func (f *Firewall) rejected(ctx context.Context, t nftables.Table, whole error) error {
	bare := t
	bare.Chains = nil
	for _, c := range t.Chains {
		c.Rules = nil
		bare.Chains = append(bare.Chains, c)
	}
	if err := f.try(ctx, nftables.Diff(bare, nil)...); err != nil {
		return fmt.Errorf("nftables of this kernel has no family %s, or lacks its hooks or sets: %w", t.Family, err)
	}
	var errs []error
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			rule := nftables.InsertRule{Table: t.TableName, Chain: c.Name, Before: nftables.End, Rule: r}
			if err := f.try(ctx, rule); err != nil {
				errs = append(errs, fmt.Errorf("nftables of this kernel refuses %q: %w", r, err))
			}
		}
	}
	if len(errs) == 0 {
		return whole
	}
	return errors.Join(errs...)
}
