package pool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// Pauses before an action with an open outcome is recovered again, doubling. What EC2 refuses
// may last until an operator changes a permission, so its pauses grow as those of the ledger.
const (
	openPause       = 5 * time.Second
	maxOpenPause    = time.Minute
	maxRefusedPause = 16 * time.Minute
)

// nextPause is the pause after one of was, if the recovery ended with err.
func nextPause(was time.Duration, err error) time.Duration {
	if ec2.Code(err) != "" && !ec2.IsThrottled(err) && !ec2.IsCredentials(err) {
		return min(2*was, maxRefusedPause)
	}
	return min(2*was, maxOpenPause)
}

// slowAfter is after how long an action at EC2 is a reason to observe EC2, which finds and
// reports whether it answers: actions are repeated until their outcome is known.
const slowAfter = 30 * time.Second

// begin records an action and executes it. Its row is on the disk before the first
// call to EC2, and stays until settled: a later process finds it there.
func (p *Pool) begin(ctx context.Context, action cloud.Action, now time.Time) error {
	action.ID = newID()
	err := p.change(ctx, func(l *ipam.Ledger) (rows []ipam.Record, err error) { return l.Begin(action, now) })
	if err != nil {
		if !errors.Is(err, ipam.ErrStale) && ctx.Err() == nil { // in the ledger and not on the disk: not executed
			p.settled(ctx, action.ID, cloud.Outcome{}, err)
		}
		return fmt.Errorf("begin %s: %w", action, err)
	}
	p.Log.Info("begin", "action", action.String(), "why", action.Why, "id", action.ID)
	// The ledger completed the action (Held, Recent, Began): its row is executed.
	view, _ := p.State.View(now)
	for _, row := range view.InFlight {
		if row.ID == action.ID {
			action = row
		}
	}
	p.work.Go(func() { p.execute(ctx, action) })
	return nil
}

// change runs f on the ledger and waits for its records to be on the disk.
func (p *Pool) change(ctx context.Context, f func(l *ipam.Ledger) ([]ipam.Record, error)) error {
	pending, err := p.State.Update(func(tx *state.Tx) error {
		tx.Durable()
		rows, err := f(tx.Ledger())
		tx.Record(rows...)
		return err
	})
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}

func newID() cloud.ActionID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return cloud.ActionID("tl-" + hex.EncodeToString(b[:]))
}

// execute executes one action and records its outcome.
func (p *Pool) execute(ctx context.Context, action cloud.Action) {
	if action.Kind != cloud.SetUp {
		slow := time.AfterFunc(slowAfter, func() { p.Observer.Request("an action at EC2 takes long") })
		out, err := p.EC2.Do(ctx, action)
		slow.Stop()
		p.ended(ctx, action, out, err)
		return
	}
	view, _ := p.State.View(time.Now())
	err := fmt.Errorf("set up %s: %w", action.ENI, ipam.ErrUnknown)
	for _, e := range view.ENIs {
		if e.ID == action.ENI {
			err = p.SetUp(ctx, e.ENI)
		}
	}
	if ctx.Err() == nil { // otherwise in flight in the ledger; the next process sets it up again
		p.settled(ctx, action.ID, cloud.Outcome{}, err)
	}
}

// ended records an outcome once it is known. Until then the action stays in flight:
// the addresses that it fences are not assigned, and when the agent stops the next one
// recovers it.
func (p *Pool) ended(ctx context.Context, action cloud.Action, out cloud.Outcome, err error) {
	for pause := openPause; errors.Is(err, ec2.ErrOpen); pause = nextPause(pause, err) {
		p.Log.Warn("the outcome of an action is not known yet", "action", action.String(), "id", action.ID, "error", err, "again", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		out, err = p.EC2.Recover(ctx, action)
	}
	p.settled(ctx, action.ID, out, err)
}

// settled enters an outcome in the ledger and drops the action from the journal, in one
// append.
func (p *Pool) settled(ctx context.Context, id cloud.ActionID, out cloud.Outcome, failed error) {
	// The outcome is a fact whether or not the agent stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := p.change(ctx, func(l *ipam.Ledger) ([]ipam.Record, error) {
		if failed != nil {
			return l.Fail(id, ec2.FailureOf(failed), time.Now())
		}
		return l.Settle(id, out, time.Now())
	})
	if err != nil {
		p.Log.Warn("the outcome of an action was not recorded", "id", id, "error", err)
	}
	result := "done"
	if failed != nil {
		p.Log.Warn("action did not succeed", "id", id, "error", failed)
		result = "failed"
	}
	p.metrics.actions.WithLabelValues(result).Inc()
	p.Wake()
	p.Plan.Mark()
	p.CompareKernel()
	p.Report()
}

// Recover finishes the actions that an earlier process had in flight, while calls are
// served and actions of this process begin. Each outcome is recorded as soon as it is known.
func (p *Pool) Recover(ctx context.Context) {
	p.applyFreeze() // the first plan has not yet
	actor := p.actor(p.Observer.known())
	for _, action := range p.State.Begun {
		action = actor.Complete(action, action.Began) // an agent of version 1 completed it at the call
		p.work.Go(func() {
			out, err := p.EC2.Recover(ctx, action)
			p.Log.Info("recovered an action of an earlier process", "action", action.String(), "id", action.ID, "error", err)
			p.ended(ctx, action, out, err)
		})
	}
}
