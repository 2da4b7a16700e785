package hostnet

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
)

// ErrNoDefaultRoute is returned when packets of pods would not leave the node.
var ErrNoDefaultRoute = errors.New("the node has no IPv4 default route with an address on its link: configure the network of the machine")

// Primary returns the link that packets of an IPv4 pod leave the node by, and the node's
// address on it: the link of the main table's default route with the lowest metric. Of
// several such routes, that of the oldest link counts: an interface that was attached later can
// get one by DHCP. Of several addresses on the link, one of preferred is returned, or else the
// first.
func Primary(have State, preferred []netip.Addr) (link Link, addr netip.Addr, err error) {
	name := defaultRouteLink(have)
	for _, l := range have.Links {
		if l.Name == name {
			link = l
		}
	}
	for _, a := range have.Addresses {
		if a.Link != name || !a.Prefix.Addr().Is4() {
			continue
		}
		if !addr.IsValid() || slices.Contains(preferred, a.Prefix.Addr()) {
			addr = a.Prefix.Addr()
		}
	}
	if name == "" || link.Name == "" || !addr.IsValid() {
		return Link{}, netip.Addr{}, ErrNoDefaultRoute
	}
	return link, addr, nil
}

// defaultRouteLink returns the link of the main table's IPv4 default route with the lowest
// metric, empty if there is none.
func defaultRouteLink(have State) string {
	age := func(r Route) int { return slices.IndexFunc(have.Links, func(l Link) bool { return l.Name == r.Link }) }
	var best Route
	for _, r := range have.Routes {
		everywhere := r.To.IsValid() && r.To.Addr().Is4() && r.To.Bits() == 0
		if r.Table != TableMain || !everywhere || r.Link == "" {
			continue
		}
		if best.Link == "" || cmp.Or(cmp.Compare(r.Metric, best.Metric), cmp.Compare(age(r), age(best))) < 0 {
			best = r
		}
	}
	return best.Link
}
