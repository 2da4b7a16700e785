package pool

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// observeBackoff is the longest pause after a failed observation. One that gets no answer
// takes more than a minute by itself: its calls are repeated.
const observeBackoff = 30 * time.Second

// Observer compares the ledger with EC2 and keeps the facts of the node up to date.
type Observer struct {
	p *Pool
	// Loop is the loop that observes.
	Loop *loop.Loop

	mu       sync.Mutex
	schedule schedule
	node     state.Node   // what is known of it
	ec2      []ec2.Subnet // as EC2 describes them
	notUsed  *notUsed
	routes   error // why the route tables are not known; nil if they are
	failed   error // of the last observation
}

func newObserver(p *Pool) *Observer {
	o := &Observer{p: p, schedule: schedule{every: interval(p.NodeName)}, notUsed: &notUsed{p: p}}
	o.Loop = loop.New(o.observe)
	o.Loop.MinInterval, o.Loop.Every, o.Loop.MaxBackoff = 2*time.Second, metadataEvery, observeBackoff
	return o
}

// Request requests an observation of EC2, for instance because an interface may have been
// detached. Requests for the same reason are limited to one per requestEvery: the last
// observation did not resolve it.
func (o *Observer) Request(why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.schedule.request(why, time.Now()) {
		o.Loop.Mark()
	}
}

// read requests a reading of EC2.
func (o *Observer) read(r reading) {
	o.mu.Lock()
	o.schedule.requested = o.schedule.requested.and(r)
	if r.subnets && o.schedule.asking.IsZero() {
		o.schedule.asking = time.Now()
	}
	o.mu.Unlock()
	o.Loop.Mark()
}

// surveyed is when the subnets were read, or that was last tried, and since when a plan has
// requested it; zero: it has not.
func (o *Observer) surveyed() (at, asking time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.schedule.subnets, o.schedule.asking
}

func (o *Observer) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// known returns what is known of the node; its slices and map are not changed in place.
func (o *Observer) known() state.Node {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.node
}

// hasObserved reports whether this process has observed EC2. Before, it begins no action
// there: the ledger is that of an earlier process.
func (o *Observer) hasObserved() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.schedule.observed.IsZero()
}

// observe is one pass of the loop. A full one compares the ledger with instance metadata first.
func (o *Observer) observe(ctx context.Context, full bool) (time.Time, error) {
	if full {
		o.compareWithMetadata(ctx)
	}
	o.mu.Lock()
	due := o.schedule.due(time.Now())
	o.schedule.requested = reading{}
	o.mu.Unlock()
	if !due.any() {
		return o.next(), nil
	}
	o.p.Log.Debug("reading EC2", "why", due.why, "interfaces", due.interfaces, "subnets", due.subnets)
	err := o.readEC2(ctx, due)
	o.mu.Lock()
	before := o.failed
	o.failed = err
	o.mu.Unlock()
	o.p.publish()
	if (before == nil) != (err == nil) {
		o.p.Report()
	}
	if due.subnets {
		o.p.Plan.Mark()
	}
	if err != nil {
		return time.Time{}, err
	}
	if due.interfaces {
		o.p.metrics.observations.Inc()
		o.p.Plan.Mark()
		o.p.CompareKernel()
		o.p.Wake()
	}
	return o.next(), nil
}

// next is when EC2 is observed again because it differs from the ledger; zero: it does not.
func (o *Observer) next() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.schedule.recheck
}

// readEC2 reads a part of EC2's view of this instance into the ledger and the node's facts.
func (o *Observer) readEC2(ctx context.Context, r reading) error {
	var err error
	if r.subnets {
		err = o.readSubnets(ctx)
	}
	if err == nil && r.interfaces {
		err = o.compareWithEC2(ctx, r)
	}
	o.p.noteEC2(err)
	view, _ := o.p.State.View(time.Now())
	differ := len(view.Differences())
	o.mu.Lock()
	o.schedule.read(r, err, time.Now())
	changed := err == nil && r.interfaces && o.schedule.compared(differ, time.Now())
	if err == nil && r.interfaces {
		o.node = o.node.With(time.Now(), state.FactInterfaces)
	}
	o.mu.Unlock()
	if err != nil {
		return err
	}
	o.publish()
	if changed {
		o.p.Report()
	}
	return nil
}

// compareWithEC2 reads the interfaces, and the subnets if one is in a subnet that is not known.
func (o *Observer) compareWithEC2(ctx context.Context, r reading) error {
	view, _ := o.p.State.View(time.Now())
	var managed []vpc.ENIID
	for _, e := range view.ENIs {
		if !e.Unmanaged {
			managed = append(managed, e.ID)
		}
	}
	actor := o.p.actor(o.known())
	interfaces, err := o.p.EC2.Seen(ctx, actor.Instance, managed, r.strays)
	if err != nil {
		return err
	}
	o.followGroups(interfaces)
	if !r.subnets && slices.ContainsFunc(interfaces, func(i ec2.Interface) bool { return !o.knowsSubnet(i.Subnet) }) {
		if err := o.readSubnets(ctx); err != nil {
			return err
		}
	}
	o.mu.Lock()
	subnets := o.ec2
	o.mu.Unlock()
	o.notUsed.objects(ec2.SkippedOf(interfaces, subnets))
	var seen []ipam.Observed
	for _, i := range interfaces {
		if i.ID != "" {
			seen = append(seen, ec2.ObservedOf(i, actor, subnets))
		}
	}
	o.notUsed.interfaces(seen)
	var drift []ipam.Drift
	err = o.p.change(ctx, func(l *ipam.Ledger) (rows []ipam.Record, err error) {
		rows, drift = l.Observe(seen, time.Now())
		return rows, nil
	})
	o.report(drift)
	return err
}

// readSubnets reads the subnets that interfaces may be made in, and their route tables, as
// far as the node's role permits that.
func (o *Observer) readSubnets(ctx context.Context) error {
	known := o.known()
	subnets, err := o.p.EC2.Subnets(ctx, known.VPC, known.Zone)
	if err != nil {
		return err
	}
	of, main, err := o.p.EC2.RouteTables(ctx, known.VPC)
	if err != nil && !ec2.IsUnpermitted(err) {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.routes == nil {
		o.p.Log.Warn("the route tables of subnets are not known", "error", err)
	}
	o.ec2, o.routes = subnets, err
	o.node.Subnets = ec2.SubnetsOf(subnets, known.Subnet, o.p.ClusterName, of, main)
	o.node = o.node.With(time.Now(), state.FactSubnets)
	return nil
}

// warnings are what the pool does without.
func (o *Observer) warnings() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.routes != nil {
		all = append(all, "new interfaces are made in the node's own subnet while it has addresses, because the route tables of the others are not known: "+
			"permit ec2:DescribeRouteTables to the node's role")
	}
	return all
}

func (o *Observer) knowsSubnet(id vpc.SubnetID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.ec2, func(s ec2.Subnet) bool { return s.ID == id })
}

// report reports differences between EC2 and the ledger as events: on the node, and on a
// pod that lost its address at EC2.
func (o *Observer) report(drift []ipam.Drift) {
	_, leases := o.p.State.View(time.Now())
	for _, d := range drift {
		o.p.Log.Warn("the ledger and EC2 differ", "eni", d.ENI, "ip", d.Addr, "what", d.Message)
		o.p.Drift.Inc()
		o.p.Events.NodeWarning("AddressDrift", d.Message)
		for _, l := range leases {
			if pod := l.Holder.Pod; l.Addr == d.Addr && d.Addr.IsValid() && pod.Name != "" {
				o.p.Events.PodWarning(kube.PodRef{Namespace: pod.Namespace, Name: pod.Name}, pod.UID, "AddressLost",
					fmt.Sprintf("%s; when that is refused, delete the pod to give it another address", d.Message))
			}
		}
	}
}
