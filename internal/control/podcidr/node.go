package podcidr

import (
	"context"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
)

// ReadNode reads by which interface the node reaches the network around it, has
// control/network enter its link, and publishes the node's row. Call it before the first
// comparison of the kernel; passes repeat it.
func (c *Controller) ReadNode(ctx context.Context) error {
	have, err := c.Links(ctx)
	if err != nil {
		return err
	}
	node, _ := c.Cluster.Node()
	primary, addr, err := hostnet.Primary(have, node.Addresses)
	if err != nil {
		return err
	}
	d, known := c.State.Device(primary.MAC)
	moved := !known || d.Link != primary.Name
	if moved {
		if err := c.FindDevice(ctx, ipam.ENI{MAC: primary.MAC, Primary: true}); err != nil {
			return err
		}
	}
	row := state.Node{PrimaryMAC: primary.MAC, PrimaryIP: addr}
	if r, ok := podcidr.Range(node.PodCIDRs); ok {
		row.PodCIDR, row.Ranges = r, []netip.Prefix{r}
	}
	was := c.State.Node()
	same := was.PrimaryMAC == row.PrimaryMAC && was.PrimaryIP == row.PrimaryIP && was.PodCIDR == row.PodCIDR && slices.Equal(was.Ranges, row.Ranges)
	if !same {
		c.Log.Info("node", "link", primary.Name, "ip", addr, "podCIDR", row.PodCIDR)
		state.Set(c.State, c.Owned.Node, row)
	}
	if moved || !same {
		c.CompareKernel()
	}
	return nil
}

// publish writes the row of a pool, which was read before: an ADD that waits now is not
// among its assigned addresses.
func (c *Controller) publish(p podcidr.Pool) {
	waiting := len(c.State.Waiting())
	have := p.Free + p.Cooling + p.Quarantined + p.Assigned
	d := ipam.Decision{
		Next:      p.NextFree,
		Condition: ipam.Condition{CanAdd: p.CanAssign(), Reason: ipam.Reason(p.Reason()), Message: p.Why(), RetryAt: p.NextFree},
		Numbers: ipam.Numbers{
			Capacity: p.Total - p.Foreign, Assigned: p.Assigned, Quarantined: p.Quarantined, Cooling: p.Cooling, Free: p.Free,
			Demand: waiting, Unmet: max(0, waiting-p.Free), Want: have, Have: have, Attainable: p.Free + p.Cooling + p.Quarantined,
		},
	}
	state.Set(c.State, c.Owned.Pool, state.Pool{Decision: d})
}
