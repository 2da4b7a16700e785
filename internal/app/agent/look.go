package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// How often EC2 is looked at. A look at a node where nothing changed is one call; a
// survey is three more: subnets, route tables, strays.
const (
	lookEvery   = time.Minute
	surveyEvery = 5 * time.Minute
	againAtMost = 3 // looks in a row at a difference that stays
	// lookAgain is when a difference is looked at for the second time.
	lookAgain = 10 * time.Second
)

// lookInterval is lookEvery give or take a tenth, by node: a fleet that was started
// at once does not ask at once.
func lookInterval(node string) time.Duration {
	var seed uint64
	for _, r := range node {
		seed = seed*31 + uint64(r)
	}
	return lookEvery + time.Duration(seed%uint64(lookEvery/5)) - lookEvery/10
}

// sight is what the looks at EC2 came to.
type sight struct {
	subnets  []ec2.Subnet
	surveyed time.Time
	failed   error  // of the last look
	again    int    // looks in a row that saw as many differences
	failures int    // in a row
	doubt    string // why to look before the next round; empty: no reason
	differ   int    // differences, as last reported
	// doubted is why doubtEC2 last had EC2 looked at, and when.
	doubted   string
	doubtedAt time.Time
}

// observeEC2 is the loop that compares the ledger with EC2.
func (a *Agent) observeEC2(ctx context.Context, full bool) (time.Time, error) {
	a.mu.Lock()
	why, doubt := a.why, a.sight.doubt
	a.why, a.sight.doubt = "", ""
	a.mu.Unlock()
	if !full && why == "" && doubt == "" {
		return time.Time{}, nil
	}
	a.log.Debug("looking at EC2", "why", why, "doubt", doubt)
	err := a.look(ctx, why != "")
	a.mu.Lock()
	before := a.sight.failed
	if a.sight.failed = err; err != nil {
		a.sight.failures++
		a.why, a.sight.doubt = cmp.Or(a.why, why), cmp.Or(a.sight.doubt, doubt) // the next pass looks for it
	} else {
		a.sight.failures = 0
	}
	a.mu.Unlock()
	if (before == nil) != (err == nil) {
		a.report.Mark()
	}
	if err != nil {
		return time.Time{}, err
	}
	a.metrics.looks.Inc()
	a.pool.Mark()
	a.kernel.Mark()
	a.cni.Wake()
	return a.lookForSure(), nil
}

// lookForSure asks for another look soon while EC2 and the ledger differ in a way
// that a second look confirms or clears.
func (a *Agent) lookForSure() time.Time {
	view, _ := a.state.View(time.Now())
	now := len(view.Differences())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sight.again++
	if now != a.sight.differ {
		a.sight.differ, a.sight.again = now, 0
		a.report.Mark()
	}
	if now == 0 || a.sight.again >= againAtMost {
		return time.Time{} // what stays as it is waits for the usual round
	}
	a.sight.doubt = "EC2 and the ledger differ"
	return time.Now().Add(lookAgain)
}

// look reads EC2's view of this instance into the ledger. survey has the subnets,
// route tables and strays read too, which are otherwise read when it is their time
// or an interface is not where it was.
func (a *Agent) look(ctx context.Context, survey bool) error {
	a.mu.Lock()
	survey = survey || time.Since(a.sight.surveyed) >= surveyEvery
	a.mu.Unlock()
	if survey {
		if err := a.survey(ctx); err != nil {
			return err
		}
	}
	view, _ := a.state.View(time.Now())
	var known []vpc.ENIID
	for _, e := range view.ENIs {
		if !e.Unmanaged {
			known = append(known, e.ID)
		}
	}
	node := a.known().node
	interfaces, err := a.ec2.Seen(ctx, node.Instance, known, survey)
	if err != nil {
		return err
	}
	a.follow(ctx, interfaces)
	if !survey && slices.ContainsFunc(interfaces, func(i ec2.Interface) bool { return !a.knowsSubnet(i.Subnet) }) {
		if err := a.survey(ctx); err != nil {
			return err
		}
	}
	a.mu.Lock()
	subnets := a.sight.subnets
	a.mu.Unlock()
	var seen []ipam.Observed
	for _, i := range interfaces {
		seen = append(seen, ec2.ObservedOf(i, node, subnets))
	}
	var drift []ipam.Drift
	err = a.change(ctx, func(l *ipam.Ledger) (rows []ipam.Record, err error) {
		rows, drift = l.Observe(seen, time.Now())
		return rows, nil
	})
	a.tellDrift(drift)
	return err
}

// survey reads the subnets that interfaces may be made in, and their routes.
func (a *Agent) survey(ctx context.Context) error {
	known := a.known()
	subnets, err := a.ec2.Subnets(ctx, known.primary.VPC, known.identity.Zone)
	if err != nil {
		return err
	}
	of, main, err := a.ec2.RouteTables(ctx, known.primary.VPC)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sight.subnets, a.sight.surveyed = subnets, time.Now()
	a.subnets = ec2.SubnetsOf(subnets, known.primary.Subnet, a.cfg.ClusterName, of, main)
	return nil
}

func (a *Agent) knowsSubnet(id vpc.SubnetID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.sight.subnets, func(s ec2.Subnet) bool { return s.ID == id })
}

// tellDrift tells people in what EC2 and the ledger differ: the node's, and the
// owner of a pod whose address is gone at EC2.
func (a *Agent) tellDrift(drift []ipam.Drift) {
	_, leases := a.state.View(time.Now())
	for _, d := range drift {
		a.log.Warn("the ledger and EC2 differ", "eni", d.ENI, "ip", d.Addr, "what", d.Message)
		a.metrics.drift.WithLabelValues("ec2").Inc()
		a.events.NodeWarning("AddressDrift", d.Message)
		for _, l := range leases {
			if l.Addr == d.Addr && d.Addr.IsValid() && l.Holder.Pod.Name != "" {
				a.events.PodWarning(kube.PodRef{Namespace: l.Holder.Pod.Namespace, Name: l.Holder.Pod.Name}, l.Holder.Pod.UID, "AddressLost",
					fmt.Sprintf("%s; when that is refused, delete the pod to give it another address", d.Message))
			}
		}
	}
}
