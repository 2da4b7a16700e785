package hostnet

import "net/netip"

// Primary returns the link that packets of an IPv4 pod leave the node by, and the node's
// address on it: the link of the main table's default route with the lowest metric. Of
// several addresses on the link, one of preferred is returned, or else the first. It
// returns false when there is no default route, or its link has no address.
func Primary(have State, preferred []netip.Addr) (link Link, addr netip.Addr, ok bool) {
	var best *Route
	for i, r := range have.Routes {
		everywhere := r.To.IsValid() && r.To.Addr().Is4() && r.To.Bits() == 0
		if r.Table == TableMain && everywhere && r.Link != "" && (best == nil || r.Metric < best.Metric) {
			best = &have.Routes[i]
		}
	}
	if best == nil {
		return Link{}, netip.Addr{}, false
	}
	for _, l := range have.Links {
		if l.Name == best.Link {
			link = l
		}
	}
	for _, a := range have.Addresses {
		if a.Link != best.Link || !a.Prefix.Addr().Is4() {
			continue
		}
		if !addr.IsValid() {
			addr = a.Prefix.Addr()
		}
		for _, p := range preferred {
			if p == a.Prefix.Addr() {
				addr = p
			}
		}
	}
	return link, addr, link.Name != "" && addr.IsValid()
}
