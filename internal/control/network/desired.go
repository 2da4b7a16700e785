package network

import (
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Families are the address families served.
func Families() []vpc.Family { return []vpc.Family{vpc.IPv4} }

// desiredLinks is the desired state of all links, addresses, routes, rules and neighbours.
func (n *Controller) desiredLinks() hostnet.State {
	states := []hostnet.State{hostnet.ForNode(Families(), n.ExternalCIDRs)}
	view, _ := n.State.View(time.Now())
	for _, e := range view.ENIs {
		if want, ok := n.interfaceState(e.ENI); ok {
			states = append(states, want)
		}
	}
	for _, e := range n.State.Endpoints() {
		if e.Wired() {
			states = append(states, hostnet.ForEndpoint(routed(e, view)))
		}
	}
	return hostnet.Join(states...)
}

// interfaceState is the desired network of an interface; false if it has none: its link is
// not known, it is not ours, or it is being attached, detached or deleted.
func (n *Controller) interfaceState(e ipam.ENI) (hostnet.State, bool) {
	found, ok := n.State.Device(e.MAC)
	if !ok || e.Unmanaged || e.Phase == ipam.Attaching || e.Phase == ipam.Detaching || e.Phase == ipam.Deleting {
		return hostnet.State{}, false
	}
	return hostnet.ForENI(hostnet.ENI{
		ID: e.ID, Link: found.Link, MAC: e.MAC, Device: e.Device, MTU: n.MTU,
		Addresses: []netip.Prefix{netip.PrefixFrom(e.PrimaryIP, e.SubnetCIDR.Bits())},
		Gateways:  []netip.Addr{vpc.Gateway(e.SubnetCIDR)},
	}), true
}

// Route returns an endpoint with the interface and route table that hold its addresses
// now.
func (n *Controller) Route(e endpoint.Endpoint) endpoint.Endpoint {
	view, _ := n.State.View(time.Now())
	return routed(e, view)
}

// routed returns an endpoint with the interface that holds its addresses and that
// interface's route table. Both may differ from those of its ADD: an interface that was
// detached by hand can be attached again at another device index.
func routed(e endpoint.Endpoint, view ipam.View) endpoint.Endpoint {
	for _, i := range view.ENIs {
		if i.Phase != ipam.Ready {
			continue
		}
		holds := slices.ContainsFunc(i.Addresses, func(a ipam.Address) bool {
			return a.Holder.Endpoint == e.ID && e.ID != 0 && (a.State == ipam.Assigned || a.State == ipam.Quarantined)
		})
		if holds {
			e.Attachment.Interface, e.Attachment.Table = i.ID, hostnet.ENI{Device: i.Device}.Table()
		}
	}
	return e
}

// desiredFilter is the desired state of our nftables tables.
func (n *Controller) desiredFilter() ruleset.Ruleset {
	node := n.State.Node()
	primary, _ := n.State.Device(node.PrimaryMAC)
	c := n.Ruleset
	c.PrimaryLink, c.PrimaryIPv4, c.VPCCIDRs = primary.Link, node.PrimaryIP, node.Ranges
	for _, e := range n.State.Endpoints() {
		if e.Wired() {
			c.Pods = append(c.Pods, ruleset.PodOf(e, n.PodMetadata))
		}
	}
	return ruleset.Compile(c)
}
