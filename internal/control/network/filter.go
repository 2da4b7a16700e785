package network

import (
	"context"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/machinery/reconcile"
)

// filter makes the kernel's nftables agree with the table "nftables". Whatever differs, it
// applies the whole ruleset in one transaction: no packet meets a table without the
// elements of a pod.
type filter struct{ n *Controller }

func (f filter) Read(ctx context.Context) (reconcile.Actual[ruleset.Part], error) {
	have, err := f.n.Filter.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the node's nftables: %w", err)
	}
	return actualFilter{f, ruleset.NewActual(have)}, f.n.derive()
}

// Update implements reconcile.Ops.
func (f filter) Update(ctx context.Context, parts []ruleset.Part) []error {
	return f.apply(ctx, len(parts))
}

// Delete implements reconcile.Ops.
func (f filter) Delete(ctx context.Context, parts []ruleset.Part) []error {
	return f.apply(ctx, len(parts))
}

func (f filter) apply(ctx context.Context, parts int) []error {
	if err := f.n.Filter.Apply(ctx, f.n.desiredFilter); err != nil {
		return f.n.filter.failAll(parts, err)
	}
	return nil
}

// actualFilter is what the kernel had when it was read.
type actualFilter struct {
	filter
	have *ruleset.Actual
}

// Diff implements reconcile.Actual.
func (a actualFilter) Diff(p ruleset.Part) (differences []reconcile.Difference) {
	for _, d := range a.have.Diff(p) {
		r := reconcile.Difference{Object: d.Object}
		if d.Why != "" {
			r.Text = d.String()
		}
		differences = append(differences, r)
	}
	return differences
}

func (a actualFilter) Prune(ctx context.Context, keep []ruleset.Part) ([]string, error) {
	pruned := a.have.Extra(keep)
	if len(pruned) == 0 {
		return nil, nil
	}
	return pruned, a.n.Filter.Apply(ctx, a.n.desiredFilter)
}
