package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// plan is one pass: it runs the planner and begins its actions.
func (p *Pool) plan(ctx context.Context, _ bool) (time.Time, error) {
	now := time.Now()
	p.applyFreeze()
	decision := ipam.Plan(p.snapshot(now), p.config(), now)
	if !p.Observer.hasObserved() {
		decision.Condition = untilObserved(decision.Condition)
	}
	p.mu.Lock()
	before := p.decision
	p.decision = decision
	p.mu.Unlock()
	changed := before.Condition.Reason != decision.Condition.Reason || before.Condition.CanAdd != decision.Condition.CanAdd
	if decision.Observe != "" {
		p.Observer.read(everything(decision.Observe))
	}
	if decision.Survey != "" {
		p.Observer.read(reading{why: decision.Survey, subnets: true})
	}
	p.publish()
	if changed {
		p.Log.Info("pool", "condition", decision.Condition.String())
	}
	if changed || before.Numbers != decision.Numbers {
		p.Report()
	}
	if !p.serves() && canServe(p.State.View(now)) {
		p.Serve()
	}
	var problems error
	for _, action := range decision.Actions {
		if err := p.begin(ctx, action, now); err != nil && !errors.Is(err, ipam.ErrStale) {
			problems = errors.Join(problems, err)
		}
	}
	p.Wake() // a cool-down may have ended
	return decision.Next, problems
}

// config is the planner's: a slot is kept for a trunk only on a node that may have one.
func (p *Pool) config() ipam.Config {
	c := p.IPAM
	c.KeepTrunkSlot = c.KeepTrunkSlot && (p.WithoutTrunk == nil || !p.WithoutTrunk())
	return c
}

// untilObserved is the condition of a node without a free address before EC2 is observed:
// no operator froze it.
func untilObserved(c ipam.Condition) ipam.Condition {
	if c.Reason == ipam.ReasonFrozen {
		c.Reason = ipam.ReasonGrowing
		c.Message = "no address is free, and EC2 has not been observed since the agent started: more are requested once it answers"
	}
	return c
}

// canServe reports whether an ADD can be served, or pods are there.
func canServe(v ipam.View, leases []ipam.Lease) bool {
	return len(leases) > 0 || slices.ContainsFunc(v.ENIs, func(e ipam.ENIView) bool {
		return len(e.Claimed) > 0 || e.Phase == ipam.Ready && e.Count(ipam.Free) > 0
	})
}

// snapshot is what the planner reads. It reads the ledger before the ADDs that wait: one that
// waits afterwards had no address before, so its demand comes on top of what the ledger
// shows as assigned. In the other order, an ADD that takes its address between the two reads
// would count as demand and as an assigned address.
func (p *Pool) snapshot(now time.Time) ipam.Snapshot {
	view, leases := p.State.View(now)
	known := p.Observer.known()
	brake, _ := p.EC2.Brake()
	if !p.Observer.hasObserved() {
		brake = cloud.Unobserved
	}
	node, _ := p.Cluster.Node()
	surveyed, asking := p.Observer.surveyed()
	return ipam.Snapshot{
		View: view, Subnets: known.Subnets, Surveyed: surveyed, SurveyAsked: asking, Groups: known.Groups, Brake: brake, Node: p.actor(known),
		Limits:  ipam.Limits{ENIs: known.Limits.ENIs, AddressesPerENI: known.Limits.IPv4, MaxPods: node.MaxPods},
		Pending: p.pending(view, leases),
	}
}

// pending are the ADDs that wait, also of pods that the watch has not shown, and the pods
// that have neither an address nor such an ADD. A pod that requests a branch interface is
// refused (control/cni), so it is no demand.
func (p *Pool) pending(view ipam.View, leases []ipam.Lease) (all []ipam.Pending) {
	addressed, waits := map[string]bool{}, map[string]bool{}
	for _, l := range leases {
		addressed[l.Holder.String()] = true
	}
	for _, e := range view.ENIs {
		for _, c := range e.Claimed { // such as one of a prefix
			addressed[c.Holder.String()] = true
		}
	}
	for _, w := range p.State.Waiting() {
		waits[w.Pod.UID] = true
		all = append(all, ipam.Pending{UID: w.Pod.UID, Namespace: w.Pod.Namespace, Name: w.Pod.Name, Bound: w.Since, Waiting: true})
	}
	for _, pod := range p.Cluster.Pods() {
		if pod.WantsAddress() && !pod.BranchInterface && !pod.Deleting && !waits[pod.UID] && !addressed[pod.Namespace+"/"+pod.Name] {
			all = append(all, ipam.Pending{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Bound: pod.Bound})
		}
	}
	return all
}

// applyFreeze sets the brake that the cluster's Brake objects ask for.
func (p *Pool) applyFreeze() {
	freeze, why := p.Cluster.Freeze()
	want := cloud.BrakeOff
	switch freeze {
	case trunkline.FreezeNone:
	case trunkline.FreezeRelease:
		want = cloud.FreezeRelease
	case trunkline.FreezeAll:
		want = cloud.FreezeAll
	default: // a value of a newer version: the safe reading is a full stop
		want = cloud.FreezeAll
	}
	if p.EC2.SetBrake(want, why) {
		p.Log.Info("brake", "set", string(want), "why", why)
	}
}
