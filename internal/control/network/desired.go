package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Families are the address families served.
func Families() []vpc.Family { return []vpc.Family{vpc.IPv4} }

// Owners of parts of the desired state.
const ownerNode = "node"

func interfaceOwner(id vpc.ENIID) string { return "interface " + string(id) }

func endpointOwner(e endpoint.Endpoint) string { return fmt.Sprintf("endpoint %d", e.ID) }

// derive makes the desired state follow from endpoints, interfaces, devices and node. A
// comparison calls it after it has read the kernel: what an ADD made before is in the
// state by then.
func (n *Controller) derive() error {
	view, _ := n.State.View(time.Now())
	links := []hostnet.Part{{Owner: ownerNode, State: hostnet.Join(hostnet.ForNode(Families(), n.ExternalCIDRs), branches{n}.returned())}}
	for _, e := range view.ENIs {
		if want, ok := n.interfaceState(e); ok {
			links = append(links, hostnet.Part{Owner: interfaceOwner(e.ID), State: want})
		}
	}
	filter := []ruleset.Part{{Owner: ownerNode, Ruleset: ruleset.Compile(n.settings())}}
	for _, a := range metadataOf(n.State, n.PodMetadata) {
		filter = append(filter, ruleset.Part{Owner: fmt.Sprint("foreign-wired pod ", a), Elements: []ruleset.Element{ruleset.MetadataElement(a)}})
	}
	return n.State.DB.Update(func(txn *table.Txn) error {
		endpoints := n.State.EndpointsIn(txn)
		links = append(links, branches{n}.parts(endpoints)...)
		for _, e := range endpoints {
			if e.Wired() {
				links = append(links, linkPart(routed(e, view)))
				filter = append(filter, n.filterPart(e))
			}
		}
		_, err := n.Owned.Links.Replace(txn, links, hostnet.Part.Equal)
		if err == nil {
			_, err = n.Owned.Filter.Replace(txn, filter, ruleset.Part.Equal)
		}
		return err
	})
}

// linkPart is what an endpoint needs of links, routes, rules and neighbours.
func linkPart(e endpoint.Endpoint) hostnet.Part {
	return hostnet.Part{Owner: endpointOwner(e), State: hostnet.ForEndpoint(e)}
}

// filterPart is what an endpoint needs of nftables.
func (n *Controller) filterPart(e endpoint.Endpoint) ruleset.Part {
	return ruleset.Part{Owner: endpointOwner(e), Elements: ruleset.PodOf(e, n.PodMetadata).Elements()}
}

// interfaceState is the desired network of an interface; false if it has none: its link is
// not known, it is not ours, or it is being attached, detached or deleted.
func (n *Controller) interfaceState(e ipam.ENIView) (hostnet.State, bool) {
	found, ok := n.State.Device(e.MAC)
	if !ok || e.Unmanaged && !(branches{n}).serves(e) || e.Phase == ipam.Attaching || e.Phase == ipam.Detaching || e.Phase == ipam.Deleting {
		return hostnet.State{}, false
	}
	want := hostnet.ForENI(hostnet.ENI{
		ID: e.ID, Link: found.Link, MAC: e.MAC, Device: e.Device, MTU: n.MTU,
		Addresses: []netip.Prefix{netip.PrefixFrom(e.PrimaryIP, e.SubnetCIDR.Bits())},
		Gateways:  []netip.Addr{vpc.Gateway(e.SubnetCIDR)},
	})
	n.theirs.leave(&want)
	for _, a := range e.Addresses {
		if a.State == ipam.Assigned && a.Holder.Link == found.Link && a.Holder.Foreign() {
			want.Leave = append(want.Leave, hostnet.Address{Link: found.Link, Prefix: netip.PrefixFrom(a.Addr, a.Addr.BitLen())})
		}
	}
	return want, true
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

// settings are those of the packet filter, without pods.
func (n *Controller) settings() ruleset.Config {
	node := n.State.Node()
	primary, _ := n.State.Device(node.PrimaryMAC)
	c := n.Ruleset
	c.PrimaryLink, c.PrimaryIPv4, c.VPCCIDRs = primary.Link, node.PrimaryIP, node.Ranges
	if by := n.policy.Load(); by != nil {
		c.Policy = *by
	}
	return c
}

// desiredFilter is our nftables tables as a whole.
func (n *Controller) desiredFilter() ruleset.Ruleset {
	c := n.settings()
	for _, e := range n.State.Endpoints() {
		if e.Wired() {
			c.Pods = append(c.Pods, ruleset.PodOf(e, n.PodMetadata))
		}
	}
	c.Metadata = metadataOf(n.State, n.PodMetadata)
	return ruleset.Compile(c)
}
