package pool

import (
	"cmp"
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

// How often EC2 is observed. An observation of a node without changes is one call; a
// survey is three more: subnets, route tables, strays.
const (
	observeEvery = time.Minute
	surveyEvery  = 5 * time.Minute
	// observeBackoff is the longest pause after a failed observation. One that gets no
	// answer takes more than a minute by itself: its calls are repeated.
	observeBackoff = 30 * time.Second
	// recheckAfter is when a difference is observed again, and rechecks how often in a
	// row while it stays as it is.
	recheckAfter = 10 * time.Second
	rechecks     = 3
)

// Observer compares the ledger with EC2 and keeps the facts of the node up to date.
type Observer struct {
	p *Pool
	// Loop is the loop that observes.
	Loop *loop.Loop

	mu       sync.Mutex
	node     state.Node   // what is known of it
	ec2      []ec2.Subnet // as EC2 describes them
	surveyed time.Time
	notUsed  notUsed
	observed bool   // EC2 was observed by this process
	routes   error  // why the route tables are not known; nil if they are
	failed   error  // of the last observation
	unsure   string // why a survey is due; empty: none is
	request  string // why an observation is due; empty: none is
	asked    asked  // the last request
	recheck  int    // observations in a row with the same differences
	differ   int    // differences at the last observation
}

// notUsed is what the node does not use, as it was last reported.
type notUsed struct {
	skipped []ec2.Skipped        // because of its description
	others  map[vpc.ENIID]string // attached interfaces, each with why
}

// asked is a request for an observation.
type asked struct {
	why string
	at  time.Time
}

func newObserver(p *Pool) *Observer {
	o := &Observer{p: p}
	o.Loop = loop.New(o.observe)
	o.Loop.MinInterval, o.Loop.Every, o.Loop.MaxBackoff = 2*time.Second, interval(p.NodeName), observeBackoff
	return o
}

// interval is observeEvery, plus or minus a tenth by the node's name, so that a fleet that
// was started together does not call EC2 at the same time.
func interval(node string) time.Duration {
	var seed uint64
	for _, r := range node {
		seed = seed*31 + uint64(r)
	}
	return observeEvery + time.Duration(seed%uint64(observeEvery/5)) - observeEvery/10
}

// Request requests an observation of EC2, for instance because an interface may have been
// detached. Requests for the same reason are limited to one per observeEvery: the last
// observation did not resolve it.
func (o *Observer) Request(why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if why == o.asked.why && time.Since(o.asked.at) < observeEvery {
		return
	}
	o.request, o.asked = why, asked{why, time.Now()}
	o.Loop.Mark()
}

// survey requests an observation that includes subnets and route tables.
func (o *Observer) survey(why string) {
	o.mu.Lock()
	o.unsure = why
	o.mu.Unlock()
	o.Loop.Mark()
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
	return o.observed
}

// observe is one pass of the loop.
func (o *Observer) observe(ctx context.Context, full bool) (time.Time, error) {
	o.mu.Lock()
	unsure, request := o.unsure, o.request
	o.unsure, o.request = "", ""
	o.mu.Unlock()
	if !full && unsure == "" && request == "" {
		return time.Time{}, nil
	}
	o.p.Log.Debug("observing EC2", "survey", unsure, "why", request)
	err := o.readEC2(ctx, unsure != "")
	o.mu.Lock()
	before := o.failed
	if o.failed = err; err != nil { // for the next pass
		o.unsure, o.request = cmp.Or(o.unsure, unsure), cmp.Or(o.request, request)
	}
	o.mu.Unlock()
	o.p.publish()
	if (before == nil) != (err == nil) {
		o.p.Report()
	}
	if err != nil {
		return time.Time{}, err
	}
	o.p.metrics.observations.Inc()
	o.p.Plan.Mark()
	o.p.CompareKernel()
	o.p.Wake()
	return o.again(), nil
}

// again returns when to observe EC2 again: soon, while it differs from the ledger and
// another observation may confirm or clear the difference.
func (o *Observer) again() time.Time {
	view, _ := o.p.State.View(time.Now())
	now := len(view.Differences())
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recheck++
	if now != o.differ {
		o.differ, o.recheck = now, 0
		o.p.Report()
	}
	if now == 0 || o.recheck >= rechecks {
		return time.Time{} // a difference that lasts waits for the next regular pass
	}
	o.request = "EC2 and the ledger differ"
	return time.Now().Add(recheckAfter)
}

// readEC2 reads EC2's view of this instance into the ledger. With survey it also reads
// subnets, route tables and strays, which are otherwise read at their interval, or when
// an interface is in a subnet that is not known.
func (o *Observer) readEC2(ctx context.Context, survey bool) error {
	err := o.compareWithEC2(ctx, survey)
	o.p.noteEC2(err)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.observed = true
	o.node = o.node.With(time.Now(), state.FactInterfaces)
	o.mu.Unlock()
	o.publish()
	return nil
}

func (o *Observer) compareWithEC2(ctx context.Context, survey bool) error {
	o.mu.Lock()
	survey = survey || time.Since(o.surveyed) >= surveyEvery
	o.mu.Unlock()
	if survey {
		if err := o.readSubnets(ctx); err != nil {
			return err
		}
	}
	view, _ := o.p.State.View(time.Now())
	var managed []vpc.ENIID
	for _, e := range view.ENIs {
		if !e.Unmanaged {
			managed = append(managed, e.ID)
		}
	}
	actor := o.p.actor(o.known())
	interfaces, err := o.p.EC2.Seen(ctx, actor.Instance, managed, survey)
	if err != nil {
		return err
	}
	skipped := o.follow(ctx, interfaces)
	if !survey && slices.ContainsFunc(interfaces, func(i ec2.Interface) bool { return !o.knowsSubnet(i.Subnet) }) {
		if err := o.readSubnets(ctx); err != nil {
			return err
		}
	}
	o.mu.Lock()
	subnets := o.ec2
	o.mu.Unlock()
	o.skip(append(ec2.SkippedOf(interfaces, subnets), skipped...))
	var seen []ipam.Observed
	for _, i := range interfaces {
		if i.ID != "" {
			seen = append(seen, ec2.ObservedOf(i, actor, subnets))
		}
	}
	o.noteOthers(seen)
	var drift []ipam.Drift
	err = o.p.change(ctx, func(l *ipam.Ledger) (rows []ipam.Record, err error) {
		rows, drift = l.Observe(seen, time.Now())
		return rows, nil
	})
	o.report(drift)
	return err
}

// noteOthers logs why an attached interface is not used although it has IPv4 addresses, once
// for each reason.
func (o *Observer) noteOthers(seen []ipam.Observed) {
	now := map[vpc.ENIID]string{}
	for _, e := range seen {
		if e.Attached && e.ENI.Unmanaged && e.ENI.PrimaryIP.IsValid() {
			now[e.ENI.ID] = e.ENI.WhyUnmanaged
		}
	}
	o.mu.Lock()
	before := o.notUsed.others
	o.notUsed.others = now
	o.mu.Unlock()
	for _, e := range seen {
		why, other := now[e.ENI.ID]
		if was, known := before[e.ENI.ID]; other && (!known || was != why) {
			o.p.Log.Info("an interface with IPv4 addresses is not used and not changed", "eni", e.ENI.ID, "ip", e.ENI.PrimaryIP, "secondary", len(e.Addresses), "why", why)
		}
	}
}

// skip replaces what of the described objects is not used. Each is logged when it appears.
func (o *Observer) skip(now []ec2.Skipped) {
	o.mu.Lock()
	before := o.notUsed.skipped
	o.notUsed.skipped = now
	o.mu.Unlock()
	for _, s := range now {
		if !slices.Contains(before, s) {
			o.p.Log.Warn("an object at EC2 is not used", "object", s.Object, "why", s.Why)
		}
	}
	if !slices.Equal(before, now) {
		o.p.Report()
	}
}

// skippedNow is what of the described objects is not used, as sentences.
func (o *Observer) skippedNow() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.notUsed.skipped {
		out = append(out, s.Object+": "+s.Why)
	}
	return out
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
	o.ec2, o.surveyed, o.routes = subnets, time.Now(), err
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
