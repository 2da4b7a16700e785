package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

// DELs yield to ADDs: they wait until none was in flight for quiet, and for yieldAtMost
// at most. A user waits for the start of a pod; its end tolerates delay, and DELs batch
// well.
const (
	quiet       = 25 * time.Millisecond
	yieldAtMost = time.Second
)

// del removes an endpoint. One that is not known counts as removed once the disk has that: a
// DEL on a full disk ends the pod and is an error (journal.ErrDisk), so that the plugin spools
// it in memory, where it outlives the agent. The addresses stay in quarantine until the kernel
// has deleted the link, which happens in groups, and cool down after that.
func (c *Controller) del(ctx context.Context, key endpoint.Key) error {
	e, ok := c.State.Endpoint(key)
	if !ok {
		if err := state.CatchUp(ctx, c.State); errors.Is(err, journal.ErrDisk) {
			return fmt.Errorf("record that %s is deleted: %w", key, err)
		}
		return nil
	}
	if err := c.detach(ctx, e); err != nil {
		return fmt.Errorf("delete pod %s: %w", e.Name(), err)
	}
	c.Log.Info("pod unwired", "pod", e.Name(), "ip", e.Addresses.Primary())
	return nil
}

// detach records that an endpoint is being removed and removes its filter elements and
// its link. It is idempotent. If the disk does not take the record, it removes them still, and
// returns journal.ErrDisk: the pod is disconnected, and its removal is recorded later.
func (c *Controller) detach(ctx context.Context, e endpoint.Endpoint) (err error) {
	end, err := c.Lock(ctx, e)
	if err != nil {
		return err
	}
	gone := e
	gone.Stage = endpoint.Removing
	var left error // what was not removed
	defer func() {
		if !errors.Is(err, journal.ErrDisk) { // which is of the record, not of the kernel
			left = errors.Join(left, err)
		}
		end(gone, left)
	}()
	unwritten := c.phase("journal", func() error { return c.remove(ctx, e.ID) })
	if unwritten != nil && !errors.Is(unwritten, journal.ErrDisk) {
		return unwritten
	}
	// A newer endpoint of the same pod may have the link's name by now. The filter's
	// elements are keyed by link, MAC and address, of which this endpoint has its own.
	if err := c.phase("filter", func() error { return c.Filter.Remove(ctx, c.elements(e)...) }); err != nil {
		c.Log.Warn("filter elements are left for the next comparison", "pod", e.Name(), "error", err)
		left = err
	}
	var queued bool
	if err := c.phase("unwire", func() (err error) { queued, err = c.Links.Unwire(ctx, e); return err }); err != nil {
		return err
	}
	if e.Attachment.Kind == endpoint.Branch && c.Branches != nil {
		if err := c.phase("branch", func() error { return c.Branches.Disconnect(ctx) }); err != nil {
			c.Log.Warn("the branch's device and rules are left for the next comparison", "pod", e.Name(), "error", err)
			c.CompareKernel()
		}
	}
	if !queued {
		c.release(e.ID)
	}
	return unwritten
}

// remove moves an endpoint to its last stage, in the state and in the journal.
func (c *Controller) remove(ctx context.Context, id endpoint.ID) error {
	pending, err := c.State.Update(func(tx *state.Tx) error {
		e, ok := tx.Current(id)
		if !ok {
			return nil
		}
		e, err := e.Remove(time.Now())
		if err != nil {
			return err
		}
		c.free(tx, e, Removed, time.Now())
		return tx.Put(e)
	})
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}

// release deletes an endpoint that is being removed, once its link is gone. Its
// addresses cool down.
func (c *Controller) release(id endpoint.ID) {
	released := false
	_, _ = c.State.Update(func(tx *state.Tx) error { // f returns no error
		if e, ok := tx.Current(id); ok && e.Stage == endpoint.Removing {
			c.free(tx, e, LinkGone, time.Now())
			tx.Delete(id)
			released = true
		}
		return nil
	})
	if released {
		c.queue.Wake() // a cool-down of zero frees the addresses at once
		c.Backend.Demanded()
	}
}

// gc removes every endpoint of the network that the runtime does not list, except those
// with an ADD in flight, and continues after an error.
func (c *Controller) gc(ctx context.Context, conf netConf) error {
	valid, err := conf.valid()
	if err != nil {
		return err
	}
	var problems error
	c.adds.Yield(ctx, quiet, yieldAtMost)
	for _, e := range c.State.Endpoints() {
		if cmp.Or(e.Network, config.NetworkName) != cmp.Or(conf.Name, config.NetworkName) {
			continue // the list has the attachments of one network only
		}
		if valid[e.Key] || c.calls.Busy(e.Key) > 0 {
			continue
		}
		c.Log.Info("the runtime does not know the endpoint any more", "pod", e.Name(), "ip", e.Addresses.Primary())
		problems = errors.Join(problems, c.calls.Preempt(ctx, e.Key, func(ctx context.Context) error { return c.del(ctx, e.Key) }))
	}
	return problems
}
