package world

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// power is the state of the instances' machines.
type power struct {
	mu      sync.Mutex // guards what follows
	busy    map[vpc.InstanceID]bool
	reboots map[vpc.InstanceID]int      // done so far
	failed  map[vpc.InstanceID]attempts // since the last success
	changed chan struct{}               // closed and renewed at every change
	again   chan struct{}               // holds a token if a switch may be pending
}

type attempts struct {
	count int
	err   error
	next  time.Time
}

// retryAfter is the back-off after a failed switch.
const retryAfter = 2 * time.Second

func newPower() power {
	return power{
		busy: map[vpc.InstanceID]bool{}, reboots: map[vpc.InstanceID]int{},
		failed: map[vpc.InstanceID]attempts{}, changed: make(chan struct{}), again: make(chan struct{}, 1),
	}
}

// followPower switches machines as the account requests, until ctx ends. Switching
// takes time, so each machine has a goroutine meanwhile.
func (w *World) followPower(ctx context.Context) error {
	changed, stop := w.cloud.Watch()
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
		case <-w.power.again:
		case <-timer.C:
		}
		for _, n := range cloud.Sorted(w.State().Instances) {
			if w.power.claim(n, w.config.Now()) {
				running.Go(func() { w.switchMachine(ctx, n) })
			}
		}
		timer.Reset(retryAfter)
	}
}

// claim marks an instance as being switched if a switch is pending.
func (p *power) claim(n *cloud.Instance, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := n.State == cloud.ShuttingDown || (n.State == cloud.Running && n.Reboots > p.reboots[n.ID])
	if !due || p.busy[n.ID] || now.Before(p.failed[n.ID].next) {
		return false
	}
	p.busy[n.ID] = true
	return true
}

// switchMachine performs the pending switch of an instance.
func (w *World) switchMachine(ctx context.Context, n *cloud.Instance) {
	err := w.flip(ctx, n)
	if err != nil && ctx.Err() == nil {
		w.log.Warn("machine could not be switched, retrying", "instance", string(n.ID), "state", string(n.State), "err", err)
	}
	w.power.release(n, err, w.config.Now())
}

func (w *World) flip(ctx context.Context, n *cloud.Instance) error {
	machines := w.config.Machines
	if n.State == cloud.ShuttingDown {
		if machines != nil {
			if err := machines.Terminate(ctx, n.ID); err != nil {
				return err
			}
		}
		if err := w.cloud.FinishTerminate(n.ID); err != nil {
			return err
		}
		w.profiles.forget(n.ID)
		return nil
	}
	if machines != nil {
		if err := machines.Reboot(ctx, n.ID); err != nil {
			return err
		}
	}
	return w.Plug(ctx, n.ID)
}

// release records the result of a switch and wakes the goroutines that wait for it.
func (p *power) release(n *cloud.Instance, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, n.ID)
	if err != nil {
		p.failed[n.ID] = attempts{p.failed[n.ID].count + 1, err, now.Add(retryAfter)}
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

// progress returns whether so many reboots are done, the error of the last attempt
// and a channel that is closed when this may have changed.
func (p *power) progress(id vpc.InstanceID) (reboots int, last attempts, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reboots[id], p.failed[id], p.changed
}

// Launch runs an instance, as RunInstances would. Its links are added when its
// namespace exists; see Plug.
func (w *World) Launch(spec cloud.InstanceSpec) error {
	if spec.Role != "" {
		if r, ok := w.iam.Role(spec.Role); !ok || !r.Instances {
			return fmt.Errorf("launch %s: role %q does not exist, or instances may not have it", spec.Name, spec.Role)
		}
	}
	_, err := w.cloud.Launch(spec)
	return err
}

// Reboot does what RebootInstances does and returns when the machine is on again with
// its links. An error of the machine is returned at once, but the reboot is retried.
func (w *World) Reboot(ctx context.Context, id vpc.InstanceID) error {
	_, before, _ := w.power.progress(id)
	if err := w.cloud.Reboot([]vpc.InstanceID{id}); err != nil {
		return err
	}
	asked := w.State().Instances[id].Reboots
	for {
		done, last, changed := w.power.progress(id)
		switch {
		case done >= asked:
			return nil
		case last.count > before.count:
			return fmt.Errorf("reboot %s: %w", id, last.err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("reboot %s: %w", id, ctx.Err())
		}
	}
}

// Terminate does what TerminateInstances does and returns when the machine is off
// permanently. An error of the machine is returned at once, but the termination is
// retried.
func (w *World) Terminate(ctx context.Context, id vpc.InstanceID) error {
	_, before, _ := w.power.progress(id)
	if err := w.cloud.Terminate([]vpc.InstanceID{id}); err != nil {
		return err
	}
	for {
		_, last, changed := w.power.progress(id)
		switch {
		case w.State().Instances[id].State == cloud.Terminated:
			return nil
		case last.count > before.count:
			return fmt.Errorf("terminate %s: %w", id, last.err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("terminate %s: %w", id, ctx.Err())
		}
	}
}
