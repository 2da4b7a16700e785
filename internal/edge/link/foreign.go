package link

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Used are addresses in use on the node that no endpoint of ours has there, with the links'
// names.
type Used struct {
	// Routed have a route without gateway by a link that is not ours. Pods wired by another
	// CNI, such as AWS's, are among them.
	Routed map[netip.Addr]string
	// Local are addresses of the node itself, on any link: the kernel delivers their
	// packets to the node, and a pod of such an address is unreachable.
	Local map[netip.Addr]string
}

// Used reads both from one list of routes; the caller selects those it needs.
func (h *Host) Used(ctx context.Context) (Used, error) {
	links, err := h.sockets.links(ctx)
	if err != nil {
		return Used{}, err
	}
	all, foreign := map[int]string{}, map[int]string{}
	for _, l := range links {
		have := linkOf(l.Attrs())
		all[l.Attrs().Index] = have.Name
		if !have.Ours() {
			foreign[l.Attrs().Index] = have.Name
		}
	}
	used := Used{Routed: map[netip.Addr]string{}, Local: map[netip.Addr]string{}}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.routes(ctx, family)
		if err != nil {
			return Used{}, err
		}
		for _, r := range routes {
			if addr, ok := localAddress(r); ok {
				used.Local[addr] = all[r.LinkIndex]
			}
			if to, ok := routeOf(r, family, foreign); ok && to.To.IsSingleIP() && !to.Via.IsValid() && to.Link != "" {
				used.Routed[to.To.Addr()] = to.Link
			}
		}
	}
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
