package podcidr

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/podcidr"
)

// pass ends cool-downs that are over, follows the node, and compares the pool with that
// of the last pass. It returns when the next cool-down ends.
func (c *Controller) pass(ctx context.Context, now time.Time) (time.Time, error) {
	if err := errors.Join(c.endCoolDowns(now), c.ReadNode(ctx)); err != nil {
		return time.Time{}, err
	}
	complete := c.claim()
	pool := c.Pool(now)
	c.mu.Lock()
	was := c.pool
	c.pool = pool
	c.mu.Unlock()
	if was.Reason() != pool.Reason() || was.Range != pool.Range {
		c.Log.Info("pool", "reason", pool.Reason(), "why", pool.Why())
	}
	c.publish(pool)
	if !same(was, pool) {
		c.Report()
	}
	if complete && pool.CanAssign() || pool.Assigned+pool.Quarantined > 0 {
		select {
		case <-c.addressed:
		default:
			close(c.addressed)
		}
	}
	if pool.CanAssign() {
		c.Wake()
	}
	return pool.NextFree, nil
}

// endCoolDowns forgets cool-downs that are over, and shortens those that a clock which
// was set back would prolong.
func (c *Controller) endCoolDowns(now time.Time) error {
	stale := func(r podcidr.Cooling) bool { return r.Over(now) || r.Clamp(now, c.CoolDown) != r }
	if !slices.ContainsFunc(c.State.CoolDowns(), stale) {
		return nil
	}
	_, err := c.State.Update(func(tx *state.Tx) error {
		for _, r := range tx.CoolDowns() {
			switch {
			case r.Over(now):
				tx.EndCooling(r.Prefix)
			case stale(r):
				tx.Cool(r.Clamp(now, c.CoolDown))
			}
		}
		return nil
	})
	return err
}

// claim updates the addresses of pods that another CNI wired: those that the API server
// shows on pods of this node and no endpoint has. They are not assigned while such a pod
// exists. Once the API server was read, the list only becomes shorter: from then on
// Trunkline wires the node's pods, and an address that no endpoint has any more is one
// that the API server shows late. claim reports whether the list is complete.
func (c *Controller) claim() (complete bool) {
	synced := c.Cluster.Synced()
	own := map[netip.Addr]bool{}
	for _, e := range c.State.Endpoints() {
		for _, a := range e.Addresses.List() {
			own[a] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	foreign := map[netip.Addr]endpoint.Pod{}
	for _, p := range c.Cluster.Pods() {
		for _, a := range p.Addresses {
			if _, before := c.foreign[a]; p.WantsAddress() && !own[a] && (before || !c.claimed) {
				foreign[a] = endpoint.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
			}
		}
	}
	c.foreign, c.claimed = foreign, c.claimed || synced
	return c.claimed
}

// empty is the node's pool without the addresses in use.
func (c *Controller) empty() podcidr.Pool {
	node, known := c.Cluster.Node()
	return podcidr.Of(c.NodeName, known, node.PodCIDRs)
}

// Pool is the node's pool now.
func (c *Controller) Pool(now time.Time) podcidr.Pool {
	c.mu.Lock()
	foreign := c.foreign
	c.mu.Unlock()
	return count(c.empty(), c.State.Endpoints(), c.State.CoolDowns(), foreign, now)
}

// count adds to a pool how many of its addresses are in use.
func count(p podcidr.Pool, endpoints []endpoint.Endpoint, coolDowns []podcidr.Cooling, foreign map[netip.Addr]endpoint.Pod, now time.Time) podcidr.Pool {
	counted := map[netip.Addr]bool{}
	add := func(a netip.Addr, n *int) {
		if p.Range.IsValid() && p.Range.Contains(a) && !counted[a] {
			counted[a] = true
			*n++
		}
	}
	for _, e := range endpoints {
		n := &p.Assigned
		if e.Stage == endpoint.Removing {
			n = &p.Quarantined
		}
		for _, a := range e.Addresses.List() {
			add(a, n)
		}
	}
	everything := false
	for _, r := range coolDowns {
		if r.Over(now) {
			continue
		}
		if p.NextFree.IsZero() || r.Until.Before(p.NextFree) {
			p.NextFree = r.Until
		}
		everything = everything || r.Prefix == podcidr.Everything()
		if r.Prefix.IsSingleIP() {
			add(r.Prefix.Addr(), &p.Cooling)
		}
	}
	for a := range foreign {
		add(a, &p.Foreign)
	}
	p.Free = max(0, p.Total-p.Assigned-p.Quarantined-p.Cooling-p.Foreign)
	if everything {
		p.Cooling, p.Free = p.Cooling+p.Free, 0
	}
	return p
}

// same reports whether two pools are equal but for the time of the next cool-down's end.
func same(a, b podcidr.Pool) bool {
	return a.Reason() == b.Reason() && a.Range == b.Range && a.Assigned == b.Assigned && a.Quarantined == b.Quarantined &&
		a.Cooling == b.Cooling && a.Foreign == b.Foreign
}
