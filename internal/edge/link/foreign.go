package link

import (
	"context"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Foreign returns the addresses that routes lead to, each alone and without a gateway,
// by links that are not ours, with the link's name: the pods that another CNI wired,
// AWS's among them. Which of them matter is the caller's to know.
func (h *Host) Foreign(ctx context.Context) (map[netip.Addr]string, error) {
	links, err := h.links(ctx)
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
	if err := readRoutes(ctx, h.handle, names, &s); err != nil {
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
