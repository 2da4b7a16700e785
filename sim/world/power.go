package world

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// power is what is known of the instances' machines.
type power struct {
	mu      sync.Mutex // guards what follows
	busy    map[vpc.InstanceID]bool
	reboots map[vpc.InstanceID]int      // done so far
	failed  map[vpc.InstanceID]attempts // since the last success
	changed chan struct{}               // closed and renewed at every change
	again   chan struct{}               // holds a token when there may be more to do
}

type attempts struct {
	count int
	err   error
	next  time.Time
}

// retryAfter is how long a switch that failed is left alone.
const retryAfter = 2 * time.Second

func newPower() power {
	return power{
		busy: map[vpc.InstanceID]bool{}, reboots: map[vpc.InstanceID]int{},
		failed: map[vpc.InstanceID]attempts{}, changed: make(chan struct{}), again: make(chan struct{}, 1),
	}
}

// followPower switches machines as the account asks, until ctx ends. Machines
// take their time, so each has a goroutine of its own while it is switched.
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

// claim marks an instance as being switched when there is something to do.
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

// switchMachine does to the machine what its instance asks for.
func (w *World) switchMachine(ctx context.Context, n *cloud.Instance) {
	err := w.flip(ctx, n)
	if err != nil && ctx.Err() == nil {
		w.log.Warn("machine is not switched, retrying", "instance", string(n.ID), "state", string(n.State), "err", err)
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

// release records how a switch went and wakes whoever waits.
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
	default: // a token is waiting already
	}
}

// look returns whether so many reboots are done, what the last attempt said and
// a channel that is closed when this may have changed.
func (p *power) look(id vpc.InstanceID) (reboots int, last attempts, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reboots[id], p.failed[id], p.changed
}

// Launch runs an instance, as RunInstances would. Its links are plugged when its
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

// Reboot does what RebootInstances does and returns when the machine is on again
// and its links are plugged. An error of the machine is returned at once; the
// reboot is retried all the same.
func (w *World) Reboot(ctx context.Context, id vpc.InstanceID) error {
	_, before, _ := w.power.look(id)
	if err := w.cloud.Reboot([]vpc.InstanceID{id}); err != nil {
		return err
	}
	asked := w.State().Instances[id].Reboots
	for {
		done, last, changed := w.power.look(id)
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

// Terminate does what TerminateInstances does and returns when the machine is
// off for good. An error of the machine is returned at once; it is retried all
// the same.
func (w *World) Terminate(ctx context.Context, id vpc.InstanceID) error {
	_, before, _ := w.power.look(id)
	if err := w.cloud.Terminate([]vpc.InstanceID{id}); err != nil {
		return err
	}
	for {
		_, last, changed := w.power.look(id)
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
