package link

import (
	"context"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Foreign returns the single addresses that have a route without gateway by a link that
// is not ours, with the link's name. Pods wired by another CNI, such as AWS's, are among
// them; the caller selects those it needs.
func (h *Host) Foreign(ctx context.Context) (map[netip.Addr]string, error) {
	links, err := h.sockets.links(ctx)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		if have := linkOf(l.Attrs()); !have.Ours() {
			names[l.Attrs().Index] = have.Name
		}
	}
	var s hostnet.State
	if err := readRoutes(ctx, h.sockets.dump, names, &s); err != nil {
		return nil, err
	}
	foreign := map[netip.Addr]string{}
	for _, r := range s.Routes {
		if r.To.IsSingleIP() && !r.Via.IsValid() && r.Link != "" {
			foreign[r.To.Addr()] = r.Link
		}
	}
	return foreign, nil
}
