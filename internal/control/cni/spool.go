package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// A spooled DEL and an ADD of the same attachment are ordered by cause, not by a clock, which
// may step back between them. An ADD begins by executing and removing the DEL in the spool:
// the runtime ended that DEL before it made the ADD. So a DEL that is found while no call of
// its attachment is in flight came after the last ADD, and is executed.
//
// There is one exception: if the runtime killed the plugin of an ADD before the agent read the
// request, the DEL came after it. Such an ADD is not begun (cniserver).

// spool is the work on the DELs that plugins spooled.
type spool struct{ *Controller }

// settle executes the spooled DEL of an attachment, of which an ADD begins, and
// removes it from the spool. A crash before the removal has it executed again, before the next
// agent serves.
func (c spool) settle(ctx context.Context, key endpoint.Key) error {
	for _, dir := range c.SpoolDirs {
		s, ok, err := cnirpc.FindSpooled(dir, key.ContainerID, key.IfName)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := c.delete(ctx, key, s); err != nil {
			return fmt.Errorf("execute the spooled DEL that precedes this ADD: %w", err)
		}
		if ctx.Err() != nil { // the ADD waited for its turn, and its plugin was killed: the DEL may be newer
			return context.Cause(ctx)
		}
	}
	return nil
}

// DrainSpool executes the DELs that plugins spooled while no agent answered, and removes
// incomplete files of killed plugins. While a call for the same endpoint is in flight,
// its spooled DEL waits for the next pass: the call may be an ADD that executes it.
func (c *Controller) DrainSpool(ctx context.Context) (problems error) {
	for _, dir := range c.SpoolDirs {
		problems = errors.Join(problems, spool{c}.drain(ctx, dir))
	}
	return problems
}

func (c spool) drain(ctx context.Context, dir string) error {
	spooled, problems := cnirpc.ReadSpool(dir)
	problems = errors.Join(problems, cnirpc.SweepSpool(dir, time.Now().Add(-time.Minute)))
	if len(spooled) > 0 {
		c.adds.Yield(ctx, quiet, yieldAtMost)
	}
	return errors.Join(problems, c.execute(ctx, spooled))
}

// execute executes DELs that were read from the spool some time ago.
func (c spool) execute(ctx context.Context, spooled []cnirpc.Spooled) (problems error) {
	for _, s := range spooled {
		key := endpoint.Key{ContainerID: s.Request.ContainerID, IfName: s.Request.IfName}
		if c.calls.Busy(key) > 0 {
			continue
		}
		problems = errors.Join(problems, c.calls.Do(ctx, key, func(ctx context.Context) error {
			if pending, err := s.Pending(); err != nil || !pending {
				return err // an ADD has executed it since the spool was read, and is newer
			}
			return c.delete(ctx, key, s)
		}))
	}
	return problems
}

// delete executes a spooled DEL and removes it. Both happen within the turn of one call:
// a DEL that is spooled later is never removed unexecuted.
func (c spool) delete(ctx context.Context, key endpoint.Key, s cnirpc.Spooled) error {
	if err := c.del(ctx, key); err != nil {
		return err
	}
	c.metrics.spooled.Inc()
	return s.Remove()
}

// run executes the DELs that were spooled while the agent was starting.
func (c spool) run(ctx context.Context, every time.Duration) error {
	l := loop.New(func(ctx context.Context, _ bool) (time.Time, error) { return time.Time{}, c.DrainSpool(ctx) })
	l.Every, l.MaxBackoff = every, 30*time.Second
	l.Report = func(err error, pause time.Duration) {
		c.Log.Warn("spooled DELs are left", "error", err, "pause", pause)
	}
	return l.Run(ctx)
}
