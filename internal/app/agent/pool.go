package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// planOnce is the pool's loop: it asks the planner and begins what it says.
func (a *Agent) planOnce(ctx context.Context, _ bool) (time.Time, error) {
	now := time.Now()
	a.obeyBrake()
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

// begin books an action and has it carried out.
func (a *Agent) begin(ctx context.Context, action ipam.Action, now time.Time) error {
	action.ID = newID()
	var err error
	if err = a.change(ctx, func(l *ipam.Ledger) (rows []ipam.Record, err error) { return l.Begin(action, now) }); err != nil {
		if !errors.Is(err, ipam.ErrStale) && ctx.Err() == nil { // booked and not written, so it is not carried out
			a.settled(ctx, action.ID, ipam.Result{}, err)
		}
		return fmt.Errorf("begin %s: %w", action, err)
	}
	a.log.Info("begin", "action", action.String(), "why", action.Why, "id", action.ID)
	// Begin adds what it knows (Held, Recent, Began); the journaled row is the one
	// to carry out.
	view, _ := a.state.View(now)
	for _, booked := range view.InFlight {
		if booked.ID == action.ID {
			action = booked
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

func newID() ipam.ActionID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return ipam.ActionID("tl-" + hex.EncodeToString(b[:]))
}

// carryOut does one action to its end and books how it ended.
func (a *Agent) carryOut(ctx context.Context, action ipam.Action) {
	in, atEC2 := ec2.IntentOf(action, a.facts.node)
	if !atEC2 {
		a.setUp(ctx, action)
		return
	}
	out, err := a.ec2.Do(ctx, in)
	a.ended(ctx, in, out, err)
}

// setUp puts an interface's link, routes and rules in place.
func (a *Agent) setUp(ctx context.Context, action ipam.Action) {
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
	a.settled(ctx, action.ID, ipam.Result{}, err)
}

// ended books an outcome once it is known. Until then the action stays in flight
// and its intent in the journal: what it took away is given to nobody, and when the
// agent stops the next one finds out.
func (a *Agent) ended(ctx context.Context, in ec2.Intent, out ec2.Outcome, err error) {
	for pause := openPause; errors.Is(err, ec2.ErrOpen); pause = min(2*pause, maxOpenPause) {
		a.log.Warn("what became of an action is not known yet", "intent", in.String(), "id", in.ID, "error", err, "again", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		out, err = a.ec2.Recover(ctx, ec2.Entry{Intent: in})
	}
	var result ipam.Result
	if err == nil {
		result = ec2.ResultOf(out)
	}
	a.settled(ctx, ipam.ActionID(in.ID), result, err)
}

// Pauses before an open intent is recovered again, doubling.
const (
	openPause    = 5 * time.Second
	maxOpenPause = time.Minute
)

func (a *Agent) settled(ctx context.Context, id ipam.ActionID, result ipam.Result, failed error) {
	// The outcome is a fact whether or not the agent stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var unknown error
	pending, err := a.state.Update(func(tx *state.Tx) error {
		tx.Durable()
		var rows []ipam.Record
		if failed == nil {
			rows, unknown = tx.Ledger().Settle(id, result, time.Now())
		} else {
			rows, unknown = tx.Ledger().Fail(id, ec2.FailureOf(failed), time.Now())
		}
		tx.Record(rows...)
		tx.Forget(string(id))
		return nil
	})
	if err = errors.Join(err, unknown, pending.Wait(ctx)); err != nil {
		a.log.Warn("the end of an action was not booked", "id", id, "error", err)
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

// recoverEC2 finishes what an earlier process had under way, while we serve and
// begin actions of our own. Each is booked as soon as its own end is known.
func (a *Agent) recoverEC2(ctx context.Context) error {
	left := maps.Clone(a.state.Intents)
	for _, action := range a.state.Begun {
		entry, written := left[string(action.ID)]
		if !written { // it was booked and EC2 not asked yet
			a.work.Go(func() { a.carryOut(ctx, action) })
			continue
		}
		delete(left, string(action.ID))
		a.work.Go(func() {
			out, err := a.ec2.Recover(ctx, entry)
			a.log.Info("recovered what an earlier process began", "action", action.String(), "done", out.Done, "error", err)
			a.ended(ctx, entry.Intent, out, err)
		})
	}
	_, err := a.state.Update(func(tx *state.Tx) error {
		tx.Durable()
		for id := range left { // the ledger took their outcome
			tx.Forget(id)
		}
		return nil
	})
	return err
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
		View: view, Subnets: subnets, Groups: facts.primary.Groups, Brake: ec2.BrakeOf(brake),
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

// obeyBrake hands the operator's brake to the executor.
func (a *Agent) obeyBrake() {
	freeze, why := a.cluster.Freeze()
	want := ec2.NoBrake
	switch freeze {
	case trunkline.FreezeNone:
	case trunkline.FreezeRelease:
		want = ec2.FreezeRelease
	case trunkline.FreezeAll:
		want = ec2.FreezeAll
	default: // of a newer version: something is to stop
		want = ec2.FreezeAll
	}
	if have, _ := a.ec2.Brake(); have != want && (want != ec2.NoBrake || have != ec2.AllocateOnly) {
		a.log.Info("brake", "set", string(want), "why", why)
	}
	a.ec2.SetBrake(want)
}
