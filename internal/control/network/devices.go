package network

import (
	"context"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// findDevices finds the links of the interfaces that are attached to the instance.
func (n *Controller) findDevices(ctx context.Context) error {
	view, _ := n.State.View(time.Now())
	for _, e := range view.ENIs {
		if e.Unmanaged || e.Phase != ipam.Ready {
			continue
		}
		if err := n.FindDevice(ctx, e.ENI); err != nil {
			n.Log.Warn("an interface has no link on the node", "eni", e.ID, "error", err)
			if e.Primary {
				return err
			}
		}
	}
	return nil
}

// FindDevice waits up to 30 s for an interface's link and stores its name in the table.
func (n *Controller) FindDevice(ctx context.Context, e ipam.ENI) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	name, err := n.Links.FindENI(ctx, e.MAC)
	if err != nil {
		return fmt.Errorf("find the link of %s (%s): %w", e.ID, e.MAC, err)
	}
	state.Set(n.State, n.Owned.Devices, state.Device{MAC: e.MAC, ENI: e.ID, Link: name})
	return nil
}

// renameDevices stores the current names of the interfaces' links in the table, and
// requests a pass if one is new: the present one may have judged the interface already, and
// the kernel's event is ignored once the new name is desired.
func (n *Controller) renameDevices(ctx context.Context) error {
	names, err := n.Links.Names(ctx)
	if err != nil {
		return err
	}
	for _, d := range n.State.Devices() {
		if name, there := names[d.MAC]; there && name != d.Link {
			n.Log.Info("an interface was renamed", "eni", d.ENI, "was", d.Link, "link", name)
			d.Link = name
			state.Set(n.State, n.Owned.Devices, d)
			n.Loop.Mark()
		}
	}
	return nil
}
