package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/machinery/loop"
	"github.com/trunkline/trunkline/internal/machinery/reconcile"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// place is a part of the kernel that is compared as a whole: links and what is on them, or
// nftables.
type place[T any] struct {
	*reconcile.Reconciler[T]
	n    *Controller
	name string
	rows table.RW[T]
	text func(T) string // a part as text, complete

	// Of the comparison that runs:
	failed   []error  // of operations
	repaired []string // external changes
}

func newPlace[T any](n *Controller, name string, rows table.RW[T], text func(T) string, ops reconcile.Ops[T]) (*place[T], error) {
	p := &place[T]{n: n, name: name, rows: rows, text: text}
	add := func(what []string) {
		for _, w := range what {
			p.repaired = append(p.repaired, w+" (repaired)")
		}
	}
	var err error
	p.Reconciler, err = reconcile.New(n.State.DB, rows.Table(), ops, reconcile.Config[T]{
		MaxBackoff: maxRowBackoff,
		OnRepaired: func(_ T, d reconcile.Drift) { add(d.Texts()) },
		OnPruned:   add,
	})
	return p, err
}

// failAll notes an error that concerns every row of a call.
func (p *place[T]) failAll(rows int, err error) []error {
	p.failed = append(p.failed, err)
	return slices.Repeat([]error{err}, rows)
}

// compare compares the place with its rows, repairs what differs, and reports drift. err
// is of operations that failed. next is when to compare again without an event; zero: no
// need.
func (p *place[T]) compare(ctx context.Context) (next time.Time, err error) {
	next, failed, err := p.with(ctx, p.Pass)
	return next, errors.Join(failed, err)
}

// restore compares the place without regard to back-offs, for a caller that needs an
// owner's part in the kernel. It returns an error unless the part is there. A failed operation
// of another owner is none, such as of a branch after its trunk was detached.
func (p *place[T]) restore(ctx context.Context, owner string) error {
	_, failed, err := p.with(ctx, p.PassNow)
	if err != nil {
		return err
	}
	if err := p.done(owner); err != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// with compares by a pass. failed is of operations, err of the pass itself.
func (p *place[T]) with(ctx context.Context, pass func(context.Context) (time.Time, error)) (next time.Time, failed, err error) {
	select {
	case p.n.turn <- struct{}{}:
		defer func() { <-p.n.turn }()
	case <-ctx.Done():
		return time.Time{}, nil, ctx.Err()
	}
	p.failed, p.repaired = nil, nil
	next, err = pass(ctx)
	if len(p.repaired) > 0 {
		p.n.changed(p.name, p.repaired, fmt.Sprintf("Another program changed the node's network, and the change was repaired: %s. "+
			"If it happens again, look for another program on the node that manages routes, rules or nftables.", drift.Summary(p.repaired)))
	}
	return loop.Sooner(next, p.reportStanding()), errors.Join(p.failed...), err
}

// reportStanding enters the rows that cannot be reconciled for some time in the drift
// table, and reports new ones. next is when another one becomes one of them.
func (p *place[T]) reportStanding() (next time.Time) {
	now := time.Now()
	var standing []string
	for s := range p.Status().List(p.n.State.DB.Snapshot(), reconcile.ByState().Query(reconcile.Failed)) {
		if at := s.Since.Add(drift.Standing); now.Before(at) {
			next = loop.Sooner(next, at)
		} else {
			standing = append(standing, s.Error)
		}
	}
	if p.name == inLinks {
		contests, end := p.n.theirs.standing()
		standing, next = append(standing, contests...), loop.Sooner(next, end)
	}
	if found := p.n.publish(p.name, standing); len(found) > 0 {
		p.n.Report()
		p.n.changed(p.name, found, fmt.Sprintf("The node's network differs from the desired state and the agent cannot repair it: %s. "+
			"A pod that lost its interface gets a new one when it is deleted and created again.", drift.Summary(found)))
		if p.name == inLinks {
			p.n.Missing("a link is missing")
		}
	}
	return next
}

// done returns the error of an owner's part, unless the kernel agrees with it.
func (p *place[T]) done(owner string) error {
	for s := range p.Status().All(p.n.State.DB.Snapshot()) {
		if s.Name != owner {
			continue
		}
		if s.State == reconcile.Done {
			return nil
		}
		return fmt.Errorf("%s of %s is %s: %s", p.name, owner, s.State, s.Error)
	}
	return fmt.Errorf("%s of %s: not desired", p.name, owner)
}

// changed reports drift: one log line and one count per difference, one event for all.
func (n *Controller) changed(place string, list []string, message string) {
	for _, what := range list {
		n.Log.Warn("the node's network was changed externally", "where", place, "what", what)
	}
	n.Drift.WithLabelValues(place).Add(float64(len(list)))
	n.Events.NodeWarning("NetworkDrift", message)
}

// publish replaces the rows of a place in the drift table, and returns those that are new.
func (n *Controller) publish(place string, what []string) (found []string) {
	known := n.State.Drift()
	var rows []state.Drift
	for _, w := range what {
		rows = append(rows, state.Drift{Place: place, What: w})
		if !slices.Contains(known, w) {
			found = append(found, w)
		}
	}
	state.Replace(n.State, n.Owned.Drift, func(d state.Drift) bool { return d.Place == place }, rows)
	return found
}
