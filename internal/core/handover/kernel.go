package handover

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Kernel is what the kernel says of the pods of a node. What has no link is not in use.
type Kernel struct {
	// Links are the names of all links, and Wired are the aliases of our own.
	Links []string
	Wired []hostnet.Alias
	// Routed are the addresses with a route to a link that is not ours, with its name.
	Routed map[netip.Addr]string
}

// KernelOf selects it from the state of a node's network.
func KernelOf(have hostnet.State) Kernel {
	k := Kernel{Routed: map[netip.Addr]string{}}
	foreign := map[string]bool{}
	for _, l := range have.Links {
		k.Links = append(k.Links, l.Name)
		foreign[l.Name] = !l.Ours()
		if alias, ok := hostnet.ParseAlias(l.Alias); ok && !l.Dying() {
			k.Wired = append(k.Wired, alias)
		}
	}
	for _, r := range have.Routes {
		if r.To.IsSingleIP() && !r.Via.IsValid() && foreign[r.Link] {
			k.Routed[r.To.Addr()] = r.Link
		}
	}
	return k
}

// wired reports whether a link of ours is that of an attachment.
func (k Kernel) wired(key endpoint.Key) bool {
	return slices.ContainsFunc(k.Wired, func(w hostnet.Alias) bool { return w.Key == key })
}

// hasPod reports whether a link of a pod has an address.
func (k Kernel) hasPod(addr netip.Addr) bool {
	_, routed := k.Routed[addr]
	return routed || slices.ContainsFunc(k.Wired, func(w hostnet.Alias) bool { return slices.Contains(w.Addresses, addr) })
}
