package link

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Used are addresses in use on the node that no endpoint of ours has there, with the links'
// names.
type Used struct {
	// Routed are those of pods that another CNI wired, such as AWS's.
	Routed map[netip.Addr]string
	// Local are addresses of the node itself, on any link. The kernel delivers their packets
	// to the node, unless the local route was deleted because a pod has the address.
	Local map[netip.Addr]string
}

// Used reads both from the lists of addresses and routes; the caller selects those it needs. The
// MACs are those of the instance's interfaces: routes by their links lead to no pod.
func (h *Host) Used(ctx context.Context, enis []vpc.MAC) (Used, error) {
	links, err := h.sockets.links(ctx)
	if err != nil {
		return Used{}, err
	}
	var have hostnet.State
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		have.Links = append(have.Links, linkOf(l.Attrs()))
	}
	if err := readAddresses(ctx, h.sockets.dump, names, &have); err != nil {
		return Used{}, err
	}
	used := Used{Local: map[netip.Addr]string{}}
	for _, a := range have.Addresses {
		used.Local[a.Prefix.Addr()] = a.Link
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.routes(ctx, family)
		if err != nil {
			return Used{}, err
		}
		for _, r := range routes {
			if addr, ok := localAddress(r); ok {
				used.Local[addr] = names[r.LinkIndex]
			}
			if route, ok := routeOf(r, family, names); ok {
				have.Routes = append(have.Routes, route)
			}
		}
	}
	used.Routed = have.ForeignPods(enis)
	return used, nil
}

// localAddress is the address that a route of the kernel's local table delivers to the node.
func localAddress(r netlink.Route) (netip.Addr, bool) {
	if r.Table != unix.RT_TABLE_LOCAL || r.Type != unix.RTN_LOCAL || r.Dst == nil {
		return netip.Addr{}, false
	}
	p, ok := prefixOf(r.Dst)
	return p.Addr(), ok && p.IsSingleIP()
}

// routes lists the routes of a family, of all tables.
func (h *Host) routes(ctx context.Context, family int) ([]netlink.Route, error) {
	list, err := again(ctx, func() ([]netlink.Route, error) {
		return h.sockets.dump.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return list, nil
}
