package ruleset

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Names of sets.
const (
	setSources4  = "sources4" // what a pod may send by its link: link, MAC, address
	setSources6  = "sources6"
	setPods4     = "pods4"   // addresses of pods that are translated
	setStrict4   = "strict4" // addresses of strict pods
	setStrict6   = "strict6"
	setMetadata4 = "metadata4" // addresses of pods that may reach instance metadata
	setMetadata6 = "metadata6"
	setKept4     = "kept4"   // destinations that see a pod's own address
	setSources   = "sources" // in the ARP table
)

// sets are the sets of the table inet, of which only kept4 follows from the settings.
func sets(c Config) []nftables.Set {
	const ifname, ether, v4, v6 = nftables.TypeIfname, nftables.TypeEther, nftables.TypeIPv4, nftables.TypeIPv6
	return []nftables.Set{
		{Name: setSources4, Key: []nftables.Type{ifname, ether, v4}},
		{Name: setSources6, Key: []nftables.Type{ifname, ether, v6}},
		{Name: setPods4, Key: []nftables.Type{v4}},
		{Name: setStrict4, Key: []nftables.Type{v4}},
		{Name: setStrict6, Key: []nftables.Type{v6}},
		{Name: setMetadata4, Key: []nftables.Type{v4}},
		{Name: setMetadata6, Key: []nftables.Type{v6}},
		{Name: setKept4, Key: []nftables.Type{v4}, Interval: true, Elements: ranges(c.VPCCIDRs, c.ExcludeSNAT)},
	}
}

// arpSets are the sets of the ARP table.
func arpSets() []nftables.Set {
	return []nftables.Set{{Name: setSources, Key: []nftables.Type{nftables.TypeIfname, nftables.TypeEther, nftables.TypeIPv4}}}
}

// Elements are the set elements that allow a pod to send. Adding them is all that an
// ADD does to the ruleset, deleting them all that DEL does. Each is keyed by what only
// this attachment has, a MAC or an address, and never by a link's name alone: the late
// DEL of an old sandbox deletes nothing of a newer one of the same name.
func (p Pod) Elements() []Element {
	var list []Element
	add := func(f nftables.Family, set string, key ...nftables.Data) {
		e := Element{Family: f, Set: set, Element: nftables.Element{Key: nftables.Concat(key...)}}
		if !slices.Contains(list, e) { // the link-local address is one for all others
			list = append(list, e)
		}
	}
	link, mac := nftables.Ifname(p.Link), nftables.Ether(p.MAC)
	for _, a := range p.Addresses {
		address := nftables.Addr(a)
		if p.Metadata {
			list = append(list, MetadataElement(a))
		}
		if a.Is4() {
			add(nftables.Inet, setSources4, link, mac, address)
			if p.Strict {
				add(nftables.Inet, setStrict4, address)
			} else {
				add(nftables.Inet, setPods4, address)
			}
			add(nftables.ARP, setSources, link, mac, address)
			continue
		}
		if p.Strict {
			add(nftables.Inet, setStrict6, address)
		}
		// Neighbour discovery speaks from the link-local address.
		add(nftables.Inet, setSources6, link, mac, address)
		add(nftables.Inet, setSources6, link, mac, nftables.Addr(linkLocal(p.MAC)))
	}
	return list
}

// MetadataElement is the set element that allows an address to reach the instance metadata
// service.
func MetadataElement(a netip.Addr) Element {
	return Element{Family: nftables.Inet, Set: metadataSet(a), Element: nftables.Element{Key: nftables.Addr(a)}}
}

func metadataSet(a netip.Addr) string {
	if a.Is4() {
		return setMetadata4
	}
	return setMetadata6
}

// linkLocal is the IPv6 link-local address the kernel makes of a MAC (EUI-64).
func linkLocal(m vpc.MAC) netip.Addr {
	b := netip.MustParseAddr("fe80::").As16()
	copy(b[8:], []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	return netip.AddrFrom16(b)
}

// span is the addresses from first to last.
type span struct{ first, last netip.Addr }

// ranges merges IPv4 prefixes into disjoint ranges that do not touch, which is what a
// set of intervals takes.
func ranges(lists ...[]netip.Prefix) []nftables.Element {
	var elements []nftables.Element
	for _, s := range merge(slices.Concat(lists...)) {
		elements = append(elements, nftables.Element{Key: nftables.Addr(s.first), Last: nftables.Addr(s.last)})
	}
	return elements
}

func merge(prefixes []netip.Prefix) (merged []span) {
	var all []span
	for _, p := range prefixes {
		if p.Addr().Is4() {
			all = append(all, span{p.Masked().Addr(), vpc.Last(p)})
		}
	}
	slices.SortFunc(all, func(a, b span) int {
		return cmp.Or(a.first.Compare(b.first), b.last.Compare(a.last))
	})
	for _, s := range all {
		if n := len(merged); n > 0 && (s.first.Compare(merged[n-1].last) <= 0 || s.first == merged[n-1].last.Next()) {
			if merged[n-1].last.Less(s.last) {
				merged[n-1].last = s.last
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}
