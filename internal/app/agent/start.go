package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// errStopped ends a start that was stopped.
var errStopped = errors.New("stopped while starting")

// errNodeUnknown: it cannot be decided yet where addresses come from.
var errNodeUnknown = errors.New("instance metadata does not answer, and the API server has not shown the Node yet")

// collectLess has the garbage collector run when the heap has tripled, not doubled: it took
// 14 % of the agent's processor time in bursts of ADDs and DELs, and the heap is a quarter of
// the agent's memory. A GOGC that is set in the environment stays.
func collectLess() {
	const byDefault, less = 100, 200
	if before := debug.SetGCPercent(less); before != byDefault {
		debug.SetGCPercent(before)
	}
}

// learn reads facts in order until the backend can work: it has all of them, or an earlier
// process has recorded the others. It waits for them: without them no pod can get an
// address. It returns those that are to be read while calls are served.
func (a *agent) learn(ctx context.Context) (unread []fact, err error) {
	earlier := fact{name: "what an earlier agent left", read: a.quarantineAfterJournalLoss}
	if err := a.read(ctx, earlier, a.startWaits(earlier.name)); err != nil {
		return nil, err
	}
	for left := a.backend.facts; len(left) > 0; left = left[1:] {
		if a.backend.resume() {
			a.log.Info("serving from the journal until its facts are read again", "node", a.state.Node().Instance, "interfaces", a.state.Node().Read[state.FactInterfaces])
			return slices.DeleteFunc(slices.Clone(left), func(f fact) bool { return f.again }), nil
		}
		if err := a.read(ctx, left[0], a.startWaits(left[0].name)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// read reads a fact, and repeats that until it succeeds. A journal of another instance is
// set aside: the process ends, and the next one starts without it.
func (a *agent) read(ctx context.Context, f fact, report func(error, time.Duration)) error {
	began := time.Now()
	var other error
	err := untilDone(ctx, report, func(ctx context.Context) error {
		err := f.read(ctx)
		if errors.Is(err, state.ErrOtherInstance) {
			other = err // another try has the same result
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", f.name, err)
	case other != nil:
		path, err := a.state.SetAside()
		// Policies of another cluster must not be in force until this one's are known.
		return errors.Join(fmt.Errorf("read %s: %w; its file is kept as %s, and the next start rebuilds the state from the kernel and EC2", f.name, other, path), err,
			kube.RemovePolicySnapshot(PolicySnapshot(a.cfg)), kube.RemoveGroupSnapshot(GroupSnapshot(a.cfg)))
	}
	a.log.Info("read", "what", f.name, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// startWaits reports that the start waits for something.
func (a *agent) startWaits(what string) func(error, time.Duration) {
	return func(err error, pause time.Duration) {
		a.log.Warn("start is waiting", "for", what, "error", err, "pause", pause)
		a.events.NodeWarning("TrunklineStarting", fmt.Sprintf("The agent waits for %s: %v", what, err))
	}
}

// factWaits reports that a fact cannot be read while calls are served. The status has
// which service does not answer.
func (a *agent) factWaits(what string) func(error, time.Duration) {
	return func(err error, pause time.Duration) {
		a.log.Debug("not read yet", "what", what, "error", err, "pause", pause)
	}
}

// untilDone repeats f with growing pauses until it succeeds or ctx ends; report is called
// after each failure.
func untilDone(ctx context.Context, report func(error, time.Duration), f func(context.Context) error) error {
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
	l.Backoff, l.MaxBackoff, l.Report = 200*time.Millisecond, 10*time.Second, report
	if err := l.Run(ctx); err != nil {
		return err
	}
	if !succeeded {
		return errStopped
	}
	return nil
}

// settle finishes the work of an earlier process before new work begins: it adopts pods
// that are in the kernel and not in the state, and programs of network policies, makes the
// kernel agree with the state, rolls back interrupted ADDs and finishes accepted DELs.
func (a *agent) settle(ctx context.Context) error {
	if err := a.cni.AdoptLinks(ctx); err != nil {
		return err
	}
	if err := a.policies.adopt(ctx, a.cfg, a.log); err != nil {
		return err
	}
	if a.cfg.SecurityGroups == config.SecurityGroupsOff { // nothing keeps the snapshot up to date
		if err := kube.RemoveGroupSnapshot(GroupSnapshot(a.cfg)); err != nil {
			return err
		}
	}
	if err := a.network.Start(ctx); err != nil {
		return err
	}
	return a.cni.FinishInterrupted(ctx)
}

// quarantineAfterJournalLoss has the backend give out no address before its cool-down
// is over, when its record is empty although pods were wired here: the journal was
// damaged, or the kernel shows it. They may be those of another CNI, which has no journal here.
func (a *agent) quarantineAfterJournalLoss(ctx context.Context) error {
	if a.backend.known() {
		return nil
	}
	lost := a.state.Found.Damage != nil
	if !lost {
		have, err := a.host.Read(ctx)
		if err != nil {
			return fmt.Errorf("find what an earlier agent left: %w", err)
		}
		ours := func(r hostnet.Rule) bool { return r.ToPod() && r.Ours() }
		lost = slices.ContainsFunc(have.Links, hostnet.Link.Ours) || slices.ContainsFunc(have.Rules, ours)
		if !lost && !slices.ContainsFunc(have.Rules, hostnet.Rule.ToPod) {
			return nil
		}
	}
	if lost {
		a.log.Warn("an earlier journal was lost: no address is given out before its cool-down is over", "kept", a.state.Found.SetAside)
		a.events.NodeWarning("JournalLost", journalLost(a.state.Found.SetAside))
	} else {
		a.log.Info("another CNI has wired pods here: no address is given out before its cool-down is over")
	}
	return a.backend.assumeLost(ctx)
}

// journalLost is the event's text; kept is the file that the journal was set aside as, or empty.
func journalLost(kept string) string {
	what := "An earlier journal was lost"
	if kept != "" {
		what = "An earlier journal was damaged, and is set aside as " + kept
	}
	return what + ": the agent rebuilds its state from the kernel and EC2."
}

// poolConfig is the part of the configuration that the planner uses.
func poolConfig(cfg config.Config) ipam.Config {
	c := ipam.DefaultConfig()
	c.WarmIPs, c.Headroom, c.WarmENIs, c.MinIPs, c.MaxENIs = cfg.WarmIPs, cfg.Headroom, cfg.WarmENIs, cfg.MinIPs, cfg.MaxENIs
	c.KeepTrunkSlot = cfg.Branches()
	c.CoolDown, c.IdleAfter, c.ReleaseEvery = cfg.CoolDown, cfg.IdleAfter, cfg.ReleaseEvery
	for _, r := range cfg.NodeName {
		c.Seed = c.Seed*31 + uint64(r)
	}
	return c
}

// filterConfig is the part of the configuration that the packet filter uses.
func filterConfig(cfg config.Config) ruleset.Config {
	return ruleset.Config{
		ExcludeSNAT: cfg.ExcludeSNATCIDRs, ExternalSNAT: cfg.ExternalSNAT,
		Random: ruleset.Randomize(cfg.RandomizeSNAT), NoNodePort: !cfg.NodePort,
	}
}
