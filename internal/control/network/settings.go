package network

import (
	"context"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// forwardWithin is how long a new link may not route packets on while the setting for new
// links is off.
const forwardWithin = 2 * time.Second

// settings compares the kernel settings of the node.
type settings struct{ *Controller }

// compare compares the kernel settings that init wrote: `sysctl --system` or another
// daemon may have changed them. It repairs those of single links by netlink. /proc/sys is
// read-only in the agent's container, so what it cannot repair stands in the drift table with
// the command that does.
//
// A pass that is not full compares only while ip_forward is off: links that were made since
// do not route packets on.
func (n settings) compare(ctx context.Context, full bool) (next time.Time, err error) {
	if !full && !n.notForwarding {
		return time.Time{}, nil
	}
	primary, links := n.routers()
	wrong, err := n.wrong(hostnet.Required(primary, Families()))
	if err != nil {
		return time.Time{}, err
	}
	before := n.notForwarding
	n.notForwarding = false
	var repaired, standing []string
	for _, op := range wrong {
		s := op.Object.(hostnet.Sysctl)
		err := n.Links.Do(ctx, op)
		if op.Verb == hostnet.Report || err != nil {
			standing = append(standing, fmt.Sprintf("%s: %s; run `%s` on the node, and remove what changes it (see /etc/sysctl.d)", s, op.Why, s.Remedy()))
			n.notForwarding = n.notForwarding || s.Name == hostnet.IPForward
			continue
		}
		repaired = append(repaired, op.String()+" (repaired)")
	}
	if n.notForwarding {
		next = time.Now().Add(forwardWithin)
		made, err := n.forward(ctx, links)
		if err != nil {
			return next, err
		}
		if !before {
			repaired = append(repaired, made...)
		}
	}
	if len(repaired) > 0 {
		n.changed(inSysctl, repaired, "Another program changed kernel settings of the node, and the change was repaired: "+drift.Summary(repaired)+".")
	}
	if found := n.publish(inSysctl, standing); len(found) > 0 {
		n.Report()
		n.changed(inSysctl, found, "Another program changed kernel settings of the node that the agent cannot repair: "+drift.Summary(found)+".")
	}
	return next, nil
}

// forward has links route packets on, each by its own setting.
func (n settings) forward(ctx context.Context, links []string) (made []string, err error) {
	var want []hostnet.Sysctl
	for _, l := range links {
		want = append(want, hostnet.Forwarding(l))
	}
	wrong, err := n.wrong(want)
	if err != nil {
		return nil, err
	}
	for _, op := range wrong {
		if op.Verb == hostnet.Report {
			continue // the link is gone
		}
		if err := n.Links.Do(ctx, op); err != nil {
			return made, err
		}
		made = append(made, op.String()+" (repaired)")
	}
	return made, nil
}

func (n settings) wrong(want []hostnet.Sysctl) ([]hostnet.Op, error) {
	names := make([]string, len(want))
	for i, s := range want {
		names[i] = s.Name
	}
	have, err := n.Links.Settings(names...)
	if err != nil {
		return nil, fmt.Errorf("compare kernel settings: %w", err)
	}
	return hostnet.Diff(hostnet.State{Sysctls: want}, hostnet.State{Sysctls: have}), nil
}

// routers are the links by which packets of pods arrive: those of interfaces and of pods.
// primary is the one of the primary interface, empty if it has no link.
func (n settings) routers() (primary string, links []string) {
	mac := n.State.Node().PrimaryMAC
	for _, d := range n.State.Devices() {
		links = append(links, d.Link)
		if d.MAC == mac {
			primary = d.Link
		}
	}
	for _, e := range n.State.Endpoints() {
		if e.Wired() {
			links = append(links, e.Link)
		}
	}
	return primary, links
}
