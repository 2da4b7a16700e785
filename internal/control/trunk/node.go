package trunk

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// node is the reconcile of one node. Its passes are made by one goroutine, which alone uses the
// fields above mu.
type node struct {
	c       *Controller
	name    string
	loop    *loop.Loop
	end     context.CancelFunc // of the loop
	flights sync.WaitGroup     // calls

	rec     record
	written written
	ended   map[core.PodUID]bool // by a live GET
	waiting waiting
	seen    seen
	times   times
	said    said

	mu      sync.Mutex
	results []result
	view    view // of the last pass, for the status
}

// times of what is done at intervals.
type times struct {
	host, observe, gone time.Time
	asked               time.Time // when the plan began to depend on an observation; zero: it does not
	bound               time.Time // of the first binding that is not written yet; zero: all outcomes are, or are due
	unlisted            bool      // an observation waits for a listing of associations
	waits               time.Time // of the next report of what pods wait for
}

// seen is what this process has read beside the record.
type seen struct {
	host     ec2.Host
	custom   customNetworking
	branches bool // EC2 has branches that the record does not have
	gone     bool // no pod runs on the instance: it is terminated and its Node does not exist, or the Node has another
	replaced bool // by a live GET, the Node has another instance
	ebpf     bool // the capacity is that of the mode ebpf, which the node had before
	limit    int  // branches of the instance type
	shared   bool // AWS's controller makes branches on the node, or did
}

// result of a call.
type result struct {
	id      cloud.ActionID
	outcome core.Outcome
	failure *core.Failure
}

// finalizer keeps the record of a deleted Node until its branches are deleted.
const finalizer = "trunkline.dev/branches"

func newNode(c *Controller, name string) *node {
	n := &node{c: c, name: name, ended: map[core.PodUID]bool{}, waiting: waiting{}, said: said{waits: waits{}}}
	n.loop = loop.New(n.pass)
	n.loop.MinInterval, n.loop.MaxBackoff, n.loop.Report = passEvery, 30*time.Second, c.report("node "+name)
	return n
}

// pass is one reconcile. It is repeated at the returned time if nothing changes before.
func (n *node) pass(ctx context.Context, _ bool) (time.Time, error) {
	object, exists := n.c.objects.CNINode(n.name)
	if !exists {
		n.forget()
		n.end() // no call is in flight; a CNINode that is created later has another reconcile
		return time.Time{}, nil
	}
	on, present := n.c.objects.Node(n.name)
	if err := n.load(object, on); err != nil || n.rec.state.Instance == "" {
		return time.Time{}, err
	}
	now := clock()
	n.settle(now)
	mode := chooser{n}
	mode.choose(object, on)
	n.seen.shared = n.c.o.Choose && (!n.own() || object.OwnedByAWS() != "")
	if mode.idle(object, on) {
		return mode.rest(ctx, object, on)
	}
	n.rec.state = mode.probed(n.rec.state)
	if err := n.checkGone(ctx, object, on, now); err != nil {
		return time.Time{}, err
	}
	if n.seen.over(n.rec, on) {
		return time.Time{}, n.release(ctx, object, on)
	}
	if present {
		if err := (hostReader{n}).read(ctx, object, on, now); err != nil {
			return time.Time{}, err
		}
	}
	d, err := n.plan(ctx, object, on, now)
	if err != nil {
		return time.Time{}, err
	}
	if err := n.begin(ctx, object, d, now); err != nil {
		return time.Time{}, err
	}
	return n.advertised(ctx, on, n.next(d, now)), nil
}

// advertised writes the capacity and returns when the next pass is due: soon if it was not written.
func (n *node) advertised(ctx context.Context, on *corev1.Node, next time.Time) time.Time {
	if n.advertise(ctx, on) {
		return next
	}
	if again := clock().Add(advertiseAgain); next.IsZero() || again.Before(next) {
		return again
	}
	return next
}

// forget drops the record with its CNINode. Calls in flight end first: their outcomes are of no
// record then.
func (n *node) forget() {
	n.flights.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.results, n.view = nil, view{}
	n.rec, n.written, n.seen.custom = record{}, written{}, customNetworking{}
	n.seen.gone, n.seen.replaced = false, false
	n.times.bound = time.Time{}
}

// load reads the record, as a new process does, if that was not done yet or another object has
// the node's name.
func (n *node) load(object *vpcresources.CNINode, on *corev1.Node) error {
	if n.written.object != nil && n.written.object.UID == object.UID {
		return nil
	}
	n.forget()
	instance := vpc.InstanceID("")
	if on != nil {
		instance = instanceOf(on)
	}
	l := object.Status.Trunkline
	if l != nil && instance != "" && bare(l) {
		l = nil // a decision on another instance
	}
	if l != nil {
		instance = cmp.Or(vpc.InstanceID(l.InstanceID), instance) // if it is another one, its branches are deleted first
	}
	if instance == "" && l == nil {
		return nil // without a providerID yet
	}
	rec, err := readLedger(l, instance)
	if err != nil {
		badRecord(n, "No branch of the node is changed and no pod gets one until its CNINode is corrected, or deleted if no pod of the node has a branch: "+err.Error())
		return fmt.Errorf("nothing of node %s is changed until its CNINode is corrected, or deleted if no pod of the node has a branch: %w", n.name, err)
	}
	n.said.record = ""
	if !n.c.o.Choose {
		rec.choice = groupmode.Choice{}
	}
	n.mu.Lock()
	n.view.choice = rec.choice
	n.mu.Unlock()
	n.written, n.rec = written{object: object}, rec
	n.rec.state = core.Restart(rec.state, clock())
	for _, b := range n.rec.state.Branches {
		n.c.groups.carried(n.rec.host.vpc, b.Groups)
		if b.Intent != nil {
			n.c.groups.carried(n.rec.host.vpc, b.Intent.Action.Groups)
		}
	}
	n.times.observe = n.rec.state.Observed.Add(observeEvery)
	if earliest := n.c.started.Add(settleFor + rand.N(observeEvery)); n.times.observe.Before(earliest) {
		n.times.observe = earliest // not those of all nodes at once after a restart
	}
	return nil
}

// badRecord reports once what is wrong with a record.
func badRecord(n *node, why string) {
	if n.said.record == why {
		return
	}
	n.said.record = why
	n.c.o.Events.NodeEvent(n.name, corev1.EventTypeWarning, eventBadRecord, securitygroup.Cut(why))
}

// settle records the outcomes of calls.
func (n *node) settle(now time.Time) {
	n.mu.Lock()
	results := n.results
	n.results = nil
	n.mu.Unlock()
	due := false
	for _, r := range results {
		i, ok := n.rec.state.Call(r.id)
		if !ok {
			continue
		}
		if i.Action.Kind != core.Bind || r.failure != nil {
			due = true
		} else if n.times.bound.IsZero() {
			n.times.bound = now
		}
		if r.failure != nil {
			n.rec.state = core.Fail(n.rec.state, r.id, *r.failure, n.c.o.Config, now)
			if r.failure.Reason == core.FailGroups {
				n.c.groups.refused(i.Action.Groups)
			}
		} else {
			n.rec.state = core.Settle(n.rec.state, r.id, r.outcome, n.c.o.Config, now)
			n.c.groups.carried(n.rec.host.vpc, i.Action.Groups) // EC2 has accepted them
		}
		n.notify(i.Action, r)
	}
	if due {
		n.times.bound = time.Time{}
	}
}

// replaced reports whether a Node has another instance than a record: the Node of that one was deleted, and
// another instance has registered under its name.
func replaced(s core.State, on *corev1.Node) bool {
	return on != nil && instanceOf(on) != "" && instanceOf(on) != s.Instance
}

// checkGone finds out whether no pod runs on the instance of the record any more, where its Node does not
// exist or has another instance now. A trunk that is attached to a stopped instance is left to it: it is deleted
// with the instance, and taken over if that joins again.
func (n *node) checkGone(ctx context.Context, object *vpcresources.CNINode, on *corev1.Node, now time.Time) error {
	if on != nil && instanceOf(on) == n.rec.state.Instance {
		n.times.gone, n.seen.gone, n.seen.replaced = time.Time{}, false, false
		return nil
	}
	if n.seen.gone {
		n.times.gone = time.Time{}
		return nil
	}
	if now.Before(n.times.gone) {
		return nil
	}
	n.times.gone = now.Add(goneEvery)
	left, err := n.c.leftNode(ctx, object, on)
	if err != nil || !left {
		return err
	}
	n.seen.replaced = replaced(n.rec.state, on)
	exists, stopped, err := n.c.o.EC2.Exists(ctx, n.rec.state.Instance)
	if err != nil {
		return err
	}
	n.seen.gone = !exists || stopped && n.seen.replaced
	return nil
}

// leftNode reports whether, by a live GET, a Node does not exist any more or is the one of the cache, which has
// another instance than the record: the cache may be older than the record.
func (c *Controller) leftNode(ctx context.Context, object *vpcresources.CNINode, on *corev1.Node) (bool, error) {
	if on != nil {
		gone, err := c.objects.NodeGone(ctx, on.Name, string(on.UID))
		return !gone, err
	}
	uid := types.UID("")
	for _, o := range object.OwnerReferences {
		if o.Kind == "Node" {
			uid = o.UID
		}
	}
	return c.objects.NodeGone(ctx, object.Name, string(uid))
}

// over reports whether a record has nothing to do any more: no pod runs on its instance, or its Node has another one,
// and no branch is left.
func (s seen) over(r record, on *corev1.Node) bool {
	return (s.gone || s.replaced && on != nil) && r.empty() && (on == nil || instanceOf(on) != "")
}

// release ends the record of an instance that is terminated, or is not that of the Node.
func (n *node) release(ctx context.Context, object *vpcresources.CNINode, on *corev1.Node) error {
	if on == nil {
		if !slices.Contains(object.Finalizers, finalizer) {
			return nil
		}
		return n.c.objects.SetFinalizer(ctx, object, finalizer, false)
	}
	n.c.o.Log.Info("branches of an earlier instance deleted", "node", n.name, "instance", string(n.rec.state.Instance))
	next, err := n.c.objects.WriteLedger(ctx, n.written.object, nil, n.written.tried...)
	if err != nil {
		return n.lost(err, nil)
	}
	n.forget()
	n.written, n.rec = written{object: next}, newRecord(instanceOf(on))
	n.loop.Mark()
	return nil
}

func typeOf(on *corev1.Node) string { return on.Labels[corev1.LabelInstanceTypeStable] }

// begin records the actions of a decision, writes the record, and only then carries them out. If
// it cannot be written, none is begun.
//
// Without an action, bindings are written boundWithin after the first of them at the latest. A process
// that ends before repeats them, which changes nothing: the pods have their annotations.
func (n *node) begin(ctx context.Context, object *vpcresources.CNINode, d core.Decision, now time.Time) error {
	if len(d.Actions) == 0 && now.Before(n.times.bound.Add(boundWithin)) {
		return nil
	}
	begun, calls, taken := n.rec.state, []core.Intent(nil), []core.Action(nil)
	for _, a := range d.Actions {
		fresh := a.ID == ""
		if fresh {
			a.ID = newID()
		}
		next, err := core.Begin(begun, a, n.c.o.Config, now)
		if err != nil {
			n.c.o.Log.Debug("action not begun", "node", n.name, "action", a.String(), "err", err)
			n.loop.Mark()
			continue
		}
		if fresh && !n.c.subnets.take(a) {
			n.loop.Mark() // it is planned again, with what is left
			continue
		}
		if begun = next; fresh {
			taken = append(taken, a)
		}
		n.c.o.Log.Debug("action begins", "node", n.name, "action", a.String(), "id", a.ID, "why", a.Why)
		if i, open := begun.Call(a.ID); open {
			calls = append(calls, i)
		} else {
			n.loop.Mark() // it is complete, and another may follow
		}
	}
	if err := n.write(ctx, object, begun); err != nil {
		n.c.subnets.giveBack(taken)
		return err
	}
	for _, i := range calls {
		f, err := n.prepare(i)
		if err != nil {
			n.report(result{id: i.Action.ID, failure: &core.Failure{Reason: core.FailOther, Definite: true, Message: err.Error()}})
			continue
		}
		n.announce(f)
		n.flights.Go(func() { n.report(n.carryOut(ctx, f)) })
	}
	return nil
}

// report hands a result to the next pass.
func (n *node) report(r result) {
	n.mu.Lock()
	n.results = append(n.results, r)
	n.mu.Unlock()
	n.loop.Mark()
}

// next is when the next pass is due without an event. A time that this pass, at now, did not use is none: what
// it is for waits for an event.
func (n *node) next(d core.Decision, now time.Time) (out time.Time) {
	observe, written := n.times.observe, time.Time{}
	if n.times.unlisted {
		observe = time.Time{} // the listing marks the node
	}
	if !n.times.bound.IsZero() {
		written = n.times.bound.Add(boundWithin)
	}
	host := time.Time{}
	if (hostReader{n}).due(now) {
		host = n.times.host
	}
	for _, t := range []time.Time{observe, d.Next, host, n.times.gone, n.seen.custom.recheck, n.times.waits, written} {
		if t.After(now) && (out.IsZero() || t.Before(out)) {
			out = t
		}
	}
	return out
}
