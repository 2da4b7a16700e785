package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
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

// learn reads the facts that the backend needs. It waits for them: without them no pod
// can get an address.
func (a *agent) learn(ctx context.Context) error {
	for _, f := range append([]fact{{"what an earlier agent left", a.quarantineAfterJournalLoss}}, a.backend.facts...) {
		began := time.Now()
		if err := a.untilDone(ctx, f.name, f.read); err != nil {
			return fmt.Errorf("read %s: %w", f.name, err)
		}
		a.log.Info("read", "what", f.name, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// untilDone repeats f with growing pauses until it succeeds or ctx ends.
func (a *agent) untilDone(ctx context.Context, what string, f func(context.Context) error) error {
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
		a.log.Warn("start is waiting", "for", what, "error", err, "pause", pause)
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

// settle finishes the work of an earlier process before new work begins: it adopts pods
// that are in the kernel and not in the state, makes the kernel agree with the state,
// rolls back interrupted ADDs and finishes accepted DELs.
func (a *agent) settle(ctx context.Context) error {
	if err := a.cni.AdoptLinks(ctx); err != nil {
		return err
	}
	if err := a.network.Start(ctx); err != nil {
		return err
	}
	return a.cni.FinishInterrupted(ctx)
}

// quarantineAfterJournalLoss has the backend give out no address before its cool-down
// is over, when its record is empty although an earlier one existed: the journal was
// damaged, or the kernel shows that pods were wired here.
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
		lost = slices.ContainsFunc(have.Links, hostnet.Link.Ours) || slices.ContainsFunc(have.Rules, hostnet.Rule.ToPod)
	}
	if !lost {
		return nil
	}
	a.log.Warn("an earlier journal was lost: no address is given out before its cool-down is over")
	return a.backend.assumeLost(ctx)
}

// poolConfig is the part of the configuration that the planner uses.
func poolConfig(cfg config.Config) ipam.Config {
	c := ipam.DefaultConfig()
	c.WarmIPs, c.Headroom, c.WarmENIs, c.MinIPs, c.MaxENIs = cfg.WarmIPs, cfg.Headroom, cfg.WarmENIs, cfg.MinIPs, cfg.MaxENIs
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
