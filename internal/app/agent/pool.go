package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// planOnce is the pool's loop: it asks the planner and begins what it says.
func (a *Agent) planOnce(ctx context.Context, _ bool) (time.Time, error) {
	now := time.Now()
	a.applyFreeze()
	snapshot := a.snapshot(now)
	decision := ipam.Plan(snapshot, poolConfig(a.cfg), now)
	a.mu.Lock()
	changed := a.decision.Condition.Reason != decision.Condition.Reason || a.decision.Condition.CanAdd != decision.Condition.CanAdd
	counted := a.decision.Numbers != decision.Numbers
	a.decision = decision
	if decision.Observe != "" {
		a.why = decision.Observe
		a.observe.Mark()
	}
	a.mu.Unlock()
	if changed {
		a.log.Info("pool", "condition", decision.Condition.String())
	}
	if changed || counted {
		a.report.Mark()
	}
	select {
	case <-a.addressed:
	default:
		if canServe(a.state.View(now)) {
			close(a.addressed)
		}
	}
	var problems error
	for _, action := range decision.Actions {
		if err := a.begin(ctx, action, now); err != nil && !errors.Is(err, ipam.ErrStale) {
			problems = errors.Join(problems, err)
		}
	}
	a.cni.Wake() // a cool-down may have ended
	return decision.Next, problems
}

// canServe reports whether an ADD could be served, or there are pods: a full node
// serves DELs.
func canServe(v ipam.View, leases []ipam.Lease) bool {
	return len(leases) > 0 || slices.ContainsFunc(v.ENIs, func(e ipam.ENIView) bool {
		return e.Phase == ipam.Ready && e.Count(ipam.Free) > 0
	})
}

// begin records an action and carries it out. Its row is on the disk before the first
// call to EC2, and stays until settled: a later process finds it there.
func (a *Agent) begin(ctx context.Context, action cloud.Action, now time.Time) error {
	action.ID = newID()
	err := a.change(ctx, func(l *ipam.Ledger) (rows []ipam.Record, err error) { return l.Begin(action, now) })
	if err != nil {
		if !errors.Is(err, ipam.ErrStale) && ctx.Err() == nil { // in the ledger and not on the disk: not carried out
			a.settled(ctx, action.ID, cloud.Outcome{}, err)
		}
		return fmt.Errorf("begin %s: %w", action, err)
	}
	a.log.Info("begin", "action", action.String(), "why", action.Why, "id", action.ID)
	// The ledger completed the action (Held, Recent, Began): its row is carried out.
	view, _ := a.state.View(now)
	for _, row := range view.InFlight {
		if row.ID == action.ID {
			action = row
		}
	}
	a.work.Go(func() { a.carryOut(ctx, action) })
	return nil
}

// change runs f on the ledger and waits for its records to be on the disk.
func (a *Agent) change(ctx context.Context, f func(l *ipam.Ledger) ([]ipam.Record, error)) error {
	pending, err := a.state.Update(func(tx *state.Tx) error {
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

// carryOut carries out one action and records its outcome.
func (a *Agent) carryOut(ctx context.Context, action cloud.Action) {
	if action.Kind == cloud.SetUp {
		a.setUp(ctx, action)
		return
	}
	out, err := a.ec2.Do(ctx, action)
	a.ended(ctx, action, out, err)
}

// setUp puts an interface's link, routes and rules in place.
func (a *Agent) setUp(ctx context.Context, action cloud.Action) {
	view, _ := a.state.View(time.Now())
	err := fmt.Errorf("set up %s: %w", action.ENI, ipam.ErrUnknown)
	for _, e := range view.ENIs {
		if e.ID == action.ENI {
			if err = a.findENI(ctx, e.ENI); err == nil {
				_, err = a.applyLinks(ctx)
			}
		}
	}
	if ctx.Err() != nil {
		return // in flight in the book; the next process sets it up again
	}
	a.settled(ctx, action.ID, cloud.Outcome{}, err)
}

// ended records an outcome once it is known. Until then the action stays in flight:
// what it fenced is not given out, and when the agent stops the next one recovers it.
func (a *Agent) ended(ctx context.Context, action cloud.Action, out cloud.Outcome, err error) {
	for pause := openPause; errors.Is(err, ec2.ErrOpen); pause = min(2*pause, maxOpenPause) {
		a.log.Warn("the outcome of an action is not known yet", "action", action.String(), "id", action.ID, "error", err, "again", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		out, err = a.ec2.Recover(ctx, action)
	}
	a.settled(ctx, action.ID, out, err)
}

// Pauses before an action whose outcome is open is recovered again, doubling.
const (
	openPause    = 5 * time.Second
	maxOpenPause = time.Minute
)

// settled has the ledger take an outcome, and drops the action from the journal in the
// same append.
func (a *Agent) settled(ctx context.Context, id cloud.ActionID, out cloud.Outcome, failed error) {
	// The outcome is a fact whether or not the agent stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var unknown error
	pending, err := a.state.Update(func(tx *state.Tx) error {
		tx.Durable()
		var rows []ipam.Record
		if failed == nil {
			rows, unknown = tx.Ledger().Settle(id, out, time.Now())
		} else {
			rows, unknown = tx.Ledger().Fail(id, ec2.FailureOf(failed), time.Now())
		}
		tx.Record(rows...)
		return nil
	})
	if err = errors.Join(err, unknown, pending.Wait(ctx)); err != nil {
		a.log.Warn("the outcome of an action was not recorded", "id", id, "error", err)
	}
	if failed != nil {
		a.log.Warn("action did not succeed", "id", id, "error", failed)
		a.metrics.actions.WithLabelValues("failed").Inc()
	} else {
		a.metrics.actions.WithLabelValues("done").Inc()
	}
	a.cni.Wake()
	a.pool.Mark()
	a.kernel.Mark()
	a.report.Mark()
}

// recoverEC2 finishes what an earlier process had in flight, while we serve and
// begin actions of our own. Each outcome is recorded as soon as it is known.
func (a *Agent) recoverEC2(ctx context.Context) {
	for _, action := range a.state.Begun {
		action = a.facts.node.Complete(action, action.Began) // an agent of version 1 completed it at the call
		a.work.Go(func() {
			out, err := a.ec2.Recover(ctx, action)
			a.log.Info("recovered an action of an earlier process", "action", action.String(), "id", action.ID, "error", err)
			a.ended(ctx, action, out, err)
		})
	}
}

// snapshot is what the planner sees.
func (a *Agent) snapshot(now time.Time) ipam.Snapshot {
	view, leases := a.state.View(now)
	addressed := map[string]bool{}
	for _, l := range leases {
		addressed[l.Holder.String()] = true
	}
	a.mu.Lock()
	subnets, facts := a.subnets, a.facts
	a.mu.Unlock()
	brake, _ := a.ec2.Brake()
	node, _ := a.cluster.Node()
	s := ipam.Snapshot{
		View: view, Subnets: subnets, Groups: facts.primary.Groups, Brake: brake, Node: facts.node,
		Limits: ipam.Limits{ENIs: facts.limits.ENIs, AddressesPerENI: facts.limits.IPv4, MaxPods: node.MaxPods},
	}
	waiting, oldest := a.cni.Waiting()
	for _, p := range a.cluster.Pods() {
		if p.WantsAddress() && !p.Deleting && !addressed[p.Namespace+"/"+p.Name] {
			s.Pending = append(s.Pending, ipam.Pending{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Bound: p.Bound, Waiting: waiting > 0})
		}
	}
	for i := len(s.Pending); i < waiting; i++ { // ADDs of pods nobody told us of
		s.Pending = append(s.Pending, ipam.Pending{UID: fmt.Sprint("add-", i), Name: fmt.Sprint("ADD ", i+1), Bound: oldest, Waiting: true})
	}
	return s
}

// applyFreeze sets the brake that the cluster's Brake objects ask for.
func (a *Agent) applyFreeze() {
	freeze, why := a.cluster.Freeze()
	want := cloud.BrakeOff
	switch freeze {
	case trunkline.FreezeNone:
	case trunkline.FreezeRelease:
		want = cloud.FreezeRelease
	case trunkline.FreezeAll:
		want = cloud.FreezeAll
	default: // of a newer version: it asks for something to stop
		want = cloud.FreezeAll
	}
	if have, _ := a.ec2.Brake(); have != want && (want != cloud.BrakeOff || have != cloud.AllocateOnly) {
		a.log.Info("brake", "set", string(want), "why", why)
	}
	a.ec2.SetBrake(want)
}
