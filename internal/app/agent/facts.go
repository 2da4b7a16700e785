package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// facts about the node. They are learned once; of the primary interface its groups and
// the VPC's ranges are followed.
type facts struct {
	identity imds.Identity
	primary  imds.Interface
	limits   vpc.Limits
	node     cloud.Node
}

// hostENI is an interface's link on the node.
type hostENI struct {
	id   vpc.ENIID
	link string
}

// known returns the facts as they are now: what is asked from outside may come before
// they are learned, and some change.
func (a *Agent) known() facts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.facts
}

// learn reads who this node is and what EC2 shows of it. It waits for both: a
// node without them can do nothing.
func (a *Agent) learn(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"what an earlier agent left", a.quarantineAfterJournalLoss},
		{"instance metadata", a.learnIdentity},
		{"limits of the instance type", a.learnLimits},
		{"interfaces at EC2", func(ctx context.Context) error { return a.look(ctx, true) }},
	} {
		began := time.Now()
		err := a.untilDone(ctx, step.name, step.do)
		if err != nil {
			return fmt.Errorf("learn %s: %w", step.name, err)
		}
		a.log.Info("learned", "what", step.name, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// errStopped ends a start that was told to stop.
var errStopped = errors.New("stopped while starting")

// untilDone repeats f with growing pauses until it succeeds or ctx ends.
func (a *Agent) untilDone(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	succeeded := false
	l := loop.New(func(ctx context.Context, _ bool) (time.Time, error) {
		err := f(ctx)
		if err == nil {
			succeeded = true
			done()
		}
		return time.Time{}, err
	})
	l.Backoff, l.MaxBackoff = 200*time.Millisecond, 10*time.Second
	l.Report = func(err error, pause time.Duration) {
		a.log.Warn("starting waits", "for", what, "error", err, "pause", pause)
		a.events.NodeWarning("TrunklineStarting", fmt.Sprintf("The agent waits for %s: %v", what, err))
	}
	if err := l.Run(ctx); err != nil {
		return err
	}
	if !succeeded {
		return errStopped
	}
	return nil
}

func (a *Agent) learnIdentity(ctx context.Context) error {
	identity, err := a.metadata.Identity(ctx)
	if err != nil {
		return err
	}
	primary, err := a.metadata.Interface(ctx, identity.PrimaryMAC)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.facts.identity, a.facts.primary = identity, primary
	a.facts.node = cloud.Node{Instance: identity.Instance, Cluster: a.cfg.ClusterName}
	return nil
}

func (a *Agent) learnLimits(ctx context.Context) error {
	limits, err := a.ec2.InstanceLimits(ctx, a.known().identity.Type)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.facts.limits = limits
	return nil
}

// follow takes over what people may have changed since the agent learned it: the groups
// of the primary interface, which new ones get, and the ranges of the VPC, which
// packets leave for with the pod's own address.
func (a *Agent) follow(ctx context.Context, interfaces []ec2.Interface) {
	was := a.known()
	groups, ranges := was.primary.Groups, was.primary.VPCv4CIDRs
	for _, i := range interfaces {
		if i.MAC == was.primary.MAC && len(i.Groups) > 0 {
			groups = i.Groups
		}
	}
	fresh, err := a.metadata.VPCCIDRs(ctx, was.primary.MAC)
	if err != nil {
		a.log.Warn("the VPC's ranges could not be read again; those known are used", "error", err)
	} else {
		ranges = fresh
	}
	if !slices.Equal(groups, was.primary.Groups) {
		a.log.Info("new interfaces get other security groups now", "groups", groups, "was", was.primary.Groups)
	}
	if !slices.Equal(ranges, was.primary.VPCv4CIDRs) {
		a.log.Info("the VPC has other ranges now", "ranges", ranges, "was", was.primary.VPCv4CIDRs)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.facts.primary.Groups, a.facts.primary.VPCv4CIDRs = groups, ranges
}

// settle finishes what an earlier process left before anything new begins: pods found in
// the kernel and not in the state are adopted, ADDs it died over are taken back, DELs it
// accepted are finished, and the kernel agrees with the state.
func (a *Agent) settle(ctx context.Context) error {
	if err := a.cni.AdoptLinks(ctx); err != nil {
		return err
	}
	if err := a.setUpENIs(ctx); err != nil {
		return err
	}
	a.expectLeft()
	if _, err := a.reconcileKernel(ctx, true); err != nil {
		return err
	}
	return a.cni.FinishInterrupted(ctx)
}

// quarantineAfterJournalLoss has the ledger give out no address before its cool-down
// is over, when it is empty although an earlier one existed: its journal was damaged, or
// the kernel shows that pods were wired here.
func (a *Agent) quarantineAfterJournalLoss(ctx context.Context) error {
	if view, _ := a.state.View(time.Now()); len(view.ENIs) > 0 {
		return nil
	}
	lost := a.state.Found.Damage != nil
	if !lost {
		have, err := a.host.Read(ctx)
		if err != nil {
			return fmt.Errorf("look for what an earlier agent left: %w", err)
		}
		lost = slices.ContainsFunc(have.Links, hostnet.Link.Ours) || slices.ContainsFunc(have.Rules, hostnet.Rule.ToPod)
	}
	if !lost {
		return nil
	}
	a.log.Warn("an earlier journal was lost: no address is given out before its cool-down is over")
	_, err := a.state.Update(func(tx *state.Tx) error {
		tx.Ledger().AssumeLost(time.Now())
		return nil
	})
	return err
}
