package world

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// power switches the machines of instances as the account requests, and retries what
// fails.
type power struct {
	account  *cloud.Cloud
	machines Machines // nil: a switch completes at once
	// plug adds the links of a machine that is on again.
	plug func(context.Context, vpc.InstanceID) error
	now  func() time.Time
	log  *slog.Logger

	again   chan struct{} // holds a token if a switch may be pending
	mu      sync.Mutex    // guards what follows
	busy    map[vpc.InstanceID]bool
	reboots map[vpc.InstanceID]int      // done so far
	failed  map[vpc.InstanceID]attempts // since the last success
	changed chan struct{}               // closed and renewed at every change
}

type attempts struct {
	count int
	err   error
	next  time.Time
}

// retryAfter is the back-off after a failed switch.
const retryAfter = 2 * time.Second

func newPower(account *cloud.Cloud, c Config, plug func(context.Context, vpc.InstanceID) error) *power {
	return &power{
		account: account, machines: c.Machines, plug: plug, now: c.Now, log: c.Log,
		again: make(chan struct{}, 1), busy: map[vpc.InstanceID]bool{}, reboots: map[vpc.InstanceID]int{},
		failed: map[vpc.InstanceID]attempts{}, changed: make(chan struct{}),
	}
}

// follow switches machines as the account requests, until ctx ends. Switching takes
// time, so each machine has a goroutine meanwhile.
func (p *power) follow(ctx context.Context) error {
	changed, stop := p.account.Watch()
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-p.again:
		case <-timer.C:
		}
		for _, n := range cloud.Sorted(p.account.State().Instances) {
			if p.claim(n) {
				running.Go(func() { p.perform(ctx, n) })
			}
		}
		timer.Reset(retryAfter)
	}
}

// claim marks an instance as being switched if a switch is pending.
func (p *power) claim(n *cloud.Instance) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := n.State == cloud.ShuttingDown || (n.State == cloud.Running && n.Reboots > p.reboots[n.ID])
	if !due || p.busy[n.ID] || p.now().Before(p.failed[n.ID].next) {
		return false
	}
	p.busy[n.ID] = true
	return true
}

// perform performs the pending switch of an instance.
func (p *power) perform(ctx context.Context, n *cloud.Instance) {
	flip := p.switchOn
	if n.State == cloud.ShuttingDown {
		flip = p.switchOff
	}
	err := flip(ctx, n.ID)
	if err != nil && ctx.Err() == nil {
		p.log.Warn("machine could not be switched, retrying", "instance", string(n.ID), "state", string(n.State), "err", err)
	}
	p.release(n, err)
}

// switchOff turns a machine off permanently.
func (p *power) switchOff(ctx context.Context, id vpc.InstanceID) error {
	if p.machines != nil {
		if err := p.machines.Terminate(ctx, id); err != nil {
			return err
		}
	}
	return p.account.FinishTerminate(id)
}

// switchOn turns a machine off and on, and adds its links again.
func (p *power) switchOn(ctx context.Context, id vpc.InstanceID) error {
	if p.machines != nil {
		if err := p.machines.Reboot(ctx, id); err != nil {
			return err
		}
	}
	return p.plug(ctx, id)
}

// release records the result of a switch and wakes the goroutines that wait for it.
func (p *power) release(n *cloud.Instance, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, n.ID)
	if err != nil {
		p.failed[n.ID] = attempts{p.failed[n.ID].count + 1, err, p.now().Add(retryAfter)}
	} else {
		delete(p.failed, n.ID)
		p.reboots[n.ID] = n.Reboots
	}
	close(p.changed)
	p.changed = make(chan struct{})
	select {
	case p.again <- struct{}{}:
	default: // a token is pending
	}
}

// progress returns how many reboots are done, the error of the last attempt and a
// channel that is closed when this may have changed.
func (p *power) progress(id vpc.InstanceID) (reboots int, last attempts, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reboots[id], p.failed[id], p.changed
}

// reboot requests a reboot and waits for it.
func (p *power) reboot(ctx context.Context, id vpc.InstanceID) error {
	_, before, _ := p.progress(id)
	if err := p.account.Reboot([]vpc.InstanceID{id}); err != nil {
		return err
	}
	requested := p.account.State().Instances[id].Reboots
	if err := p.await(ctx, id, before, func(reboots int) bool { return reboots >= requested }); err != nil {
		return fmt.Errorf("reboot %s: %w", id, err)
	}
	return nil
}

// terminate requests a termination and waits for it.
func (p *power) terminate(ctx context.Context, id vpc.InstanceID) error {
	_, before, _ := p.progress(id)
	if err := p.account.Terminate([]vpc.InstanceID{id}); err != nil {
		return err
	}
	off := func(int) bool { return p.account.State().Instances[id].State == cloud.Terminated }
	if err := p.await(ctx, id, before, off); err != nil {
		return fmt.Errorf("terminate %s: %w", id, err)
	}
	return nil
}

// await waits until a switch is done, and returns the error of the first attempt after
// those before.
func (p *power) await(ctx context.Context, id vpc.InstanceID, before attempts, done func(reboots int) bool) error {
	for {
		reboots, last, changed := p.progress(id)
		switch {
		case done(reboots):
			return nil
		case last.count > before.count:
			return last.err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
