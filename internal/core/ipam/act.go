package ipam

import (
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// Begin records an action of a plan as in flight and fences what it releases:
// addresses become releasing, an interface detaching or deleting. The records must be
// synced to disk before the action is carried out. Begin fails with ErrStale when the
// ledger has changed since the plan was made (a pod was assigned an address, another
// action of the same interface is in flight): plan again. The action needs an ID.
func (l *Ledger) Begin(a cloud.Action, now time.Time) ([]Record, error) {
	if a.ID == "" {
		return nil, fmt.Errorf("begin %s: the action has no id", a)
	}
	if l.rows.actions[a.ID] != nil {
		return nil, fmt.Errorf("begin %s: %s is in flight: %w", a, a.ID, ErrStale)
	}
	l.expire(now)
	f := fence{rows: &l.rows, claimed: l.volatile.claims.unassigned(&l.rows), now: now, action: a}
	if err := f.build(); err != nil {
		return nil, fmt.Errorf("begin %s: %w", f.action, err)
	}
	f.action.Began = stamp(now)
	l.volatile.idle.begin(a.Kind, f.action.Began, l.settings.idleTime())
	return l.change(now, append(f.records, Record{Op: PutAction, Action: &f.action})...), nil
}

// Settle records the effect of an action that succeeded and drops the action. It
// fails with ErrUnknown when the action is not in flight.
func (l *Ledger) Settle(id cloud.ActionID, r cloud.Outcome, now time.Time) ([]Record, error) {
	a := l.rows.actions[id]
	if a == nil {
		return nil, fmt.Errorf("settle action %s: %w", id, ErrUnknown)
	}
	c := l.rows.complete(a, now)
	c.clearBackoffs()
	c.succeeded(r)
	return l.change(now, c.records...), nil
}

// Fail records that an action failed, drops it and starts a back-off for the scope of
// the failure. After a definite failure fenced addresses are free again; otherwise
// they stay fenced and the planner repeats the action. It fails with ErrUnknown when the
// action is not in flight.
func (l *Ledger) Fail(id cloud.ActionID, f cloud.Failure, now time.Time) ([]Record, error) {
	a := l.rows.actions[id]
	if a == nil {
		return nil, fmt.Errorf("fail action %s: %w", id, ErrUnknown)
	}
	c := l.rows.complete(a, now)
	if f.Definite {
		c.unfence()
	}
	c.backOff(f)
	return l.change(now, c.records...), nil
}
