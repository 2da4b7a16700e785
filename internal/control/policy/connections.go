package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// collectEvery is how often expired connections are deleted. For the default size of 131,072 entries,
// reading a full table takes 30 ms of one processor, and deleting half of it 270 ms more.
const collectEvery = time.Minute

// Of the table of connections: beyond crowdedAt percent a warning is given, and below relievedAt it is
// withdrawn.
const (
	crowdedAt  = 90
	relievedAt = 80
)

// collectUntil deletes expired connections until ctx ends.
func collectUntil(ctx context.Context, c *Controller) {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := collect(c); err != nil {
			c.Log.Warn("expired connections are not deleted, retrying", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collect deletes expired connections, and measures how full their table is. ADDs do not wait for it.
func collect(c *Controller) error {
	c.mu.Lock()
	if !c.on.Load() || c.datapath == nil {
		c.metrics.connections.Set(0)
		c.metrics.size.Set(0)
		c.mu.Unlock()
		return nil
	}
	drops, err := c.datapath.Drops()
	if err == nil {
		c.metrics.count(drops)
	}
	table, failed := c.datapath.Maps.Connections.Clone()
	c.mu.Unlock()
	if failed != nil {
		return errors.Join(err, failed)
	}
	o, failed := bpf.CollectConnections(table)
	err = errors.Join(err, failed, table.Close())
	if failed != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics.connections.Set(float64(o.Valid))
	c.metrics.size.Set(float64(o.Size))
	noteOccupancy(c, o)
	return err
}

// noteOccupancy notes whether the table of connections is nearly full.
func noteOccupancy(c *Controller, o bpf.Occupancy) {
	percent := 100 * o.Valid / max(o.Size, 1)
	switch {
	case c.faults.crowded == 0 && percent >= crowdedAt:
		c.faults.crowded = o.Size
		c.Log.Warn("the table of connections is nearly full", "entries", o.Valid, "size", o.Size)
		c.Events.NodeWarning("ConnectionsNearlyFull", "Network policies are enforced, but "+crowded(o.Size))
		c.Report()
	case c.faults.crowded != 0 && (percent < relievedAt || o.Size != c.faults.crowded):
		c.faults.crowded = 0
		c.Log.Info("the table of connections is not nearly full any longer", "entries", o.Valid, "size", o.Size)
		c.Report()
	}
}

func crowded(size int) string {
	return fmt.Sprintf("the table of connections has had more than %d %% of its %d entries: when it is full, entries that were used least recently are deleted, and their connections are judged again. Set network-policy-map-sizes to %s=%d or more",
		crowdedAt, size, bpf.MapConnections, 2*size)
}
