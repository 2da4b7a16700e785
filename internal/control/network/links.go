package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/reconcile"
)

// repairRounds bounds the observations of one repair: the kernel can delete other objects
// together with an address or link, which the next observation finds.
const repairRounds = 3

// links makes the kernel's links, addresses, routes, rules and neighbours agree with the
// table "links".
type links struct{ n *Controller }

// Read implements reconcile.Ops. What is desired names links as the kernel does now.
func (l links) Read(ctx context.Context) (reconcile.Actual[hostnet.Part], error) {
	if err := l.n.renameDevices(ctx); err != nil {
		return nil, err
	}
	if err := (branches{l.n}).apply(ctx); err != nil {
		l.n.links.failed = append(l.n.links.failed, err) // the pods of other interfaces have theirs
	}
	have, _, err := l.observe(ctx)
	return actualLinks{l, have}, err
}

// Update implements reconcile.Ops.
func (l links) Update(ctx context.Context, parts []hostnet.Part) []error {
	return l.repair(ctx, parts, func(have *hostnet.Actual, p hostnet.Part, _ []hostnet.Part) []hostnet.Op { return have.Diff(p.State) })
}

// Delete implements reconcile.Ops.
func (l links) Delete(ctx context.Context, parts []hostnet.Part) []error {
	return l.repair(ctx, parts, func(have *hostnet.Actual, p hostnet.Part, desired []hostnet.Part) []hostnet.Op {
		return have.Remove(p.State, desired)
	})
}

// repair carries out the steps of each part until the kernel needs none. steps is called
// with what is desired after the kernel was read: whatever an ADD had made by then is in it.
func (l links) repair(ctx context.Context, parts []hostnet.Part, steps func(have *hostnet.Actual, p hostnet.Part, desired []hostnet.Part) []hostnet.Op) []error {
	errs := make([]error, len(parts))
	for range repairRounds {
		actual, desired, err := l.observe(ctx)
		if err != nil {
			return l.n.links.failAll(len(parts), err)
		}
		acted := false
		for i, p := range parts {
			errs[i] = nil
			for _, op := range steps(actual, p, desired) {
				changed, err := l.do(ctx, op)
				acted = acted || changed
				errs[i] = errors.Join(errs[i], err)
			}
		}
		if !acted {
			break
		}
	}
	return errs
}

// observe reads the kernel, and then what is desired.
func (l links) observe(ctx context.Context) (have *hostnet.Actual, desired []hostnet.Part, err error) {
	all, err := l.n.Links.Read(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the node's network: %w", err)
	}
	l.n.theirs.strict, l.n.theirs.returned = all.ForeignStrict(), all.Returned()
	if err := l.n.derive(); err != nil {
		return nil, nil, err
	}
	for p := range l.n.Owned.Links.All(l.n.State.DB.Snapshot()) {
		desired = append(desired, p)
	}
	return hostnet.NewActual(all), desired, nil
}

// do carries out one step. changed is set if the kernel has changed, also by others.
func (l links) do(ctx context.Context, op hostnet.Op) (changed bool, err error) {
	if op.Verb == hostnet.Report {
		return false, errors.New(op.Difference())
	}
	err = l.n.Links.Do(ctx, op)
	switch {
	case errors.Is(err, link.ErrNoLink): // the next observation shows what that changes
		return true, nil
	case err != nil:
		l.n.links.failed = append(l.n.links.failed, err)
		return false, err
	}
	l.n.theirs.deleted(op)
	l.n.Log.Debug("applied", "where", inLinks, "what", op.Difference())
	return true, nil
}

// actualLinks is what the kernel had when it was read.
type actualLinks struct {
	links
	have *hostnet.Actual
}

// Diff implements reconcile.Actual.
func (a actualLinks) Diff(p hostnet.Part) (differences []reconcile.Difference) {
	for _, d := range a.have.Differences(p.State) {
		differences = append(differences, reconcile.Difference{Object: d.Object, Text: d.Why})
	}
	return differences
}

func (a actualLinks) Prune(ctx context.Context, keep []hostnet.Part) (pruned []string, err error) {
	var errs []error
	for _, op := range a.have.Extra(keep) {
		changed, err := a.do(ctx, op)
		errs = append(errs, err)
		if changed {
			pruned = append(pruned, op.Difference())
		}
	}
	for _, op := range a.captured(a.have, keep) {
		changed, err := a.do(ctx, op)
		errs = append(errs, err)
		if r, ok := op.Object.(hostnet.Rule); ok && changed {
			a.n.theirs.rules.Deleted(r.Selector(), time.Now())
			pruned = append(pruned, op.Difference())
		}
	}
	for _, op := range a.leftovers(a.have, keep) {
		if changed, err := a.do(ctx, op); err == nil && changed {
			a.n.Log.Info("deleted what another CNI left", "what", op.Difference())
			// The kernel deletes the first rule of these selectors, of any owner: if an ADD has
			// replaced it since it was read, that is the rule of the ADD.
			a.n.Loop.MarkFull()
		}
	}
	return pruned, errors.Join(errs...)
}
