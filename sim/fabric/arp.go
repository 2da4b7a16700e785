package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// newARPTable is the table for ARP: a sender must be the port's MAC with one of its
// addresses, or without an address for duplicate address detection. A branch may name any
// address: AWS's plugin gives the node's device of a branch none, so that Linux names one of
// another interface (arp_solicit, arp_announce 0), and AWS's router replies to it.
func newARPTable(p *plan) *ruleset {
	r := newRuleset(nftables.ARP)
	r.senders(p, vpc.IPv4)
	branches := r.set("branches", nftables.TypeIfname, nftables.TypeEther)
	for name, l := range p.branches() {
		add(branches, nftables.Ifname(name), nftables.Ether(l.port.MAC))
	}
	r.count(dropSpoofed, p.links)
	const here = "from-port"
	r.base(here, nftables.Input, 0)
	r.rule(here, deviceIs(nftables.Iifname, gatewayDevice), verdict(nftables.Accept))
	for _, bits := range p.lengths(vpc.IPv4) {
		sender := append(nftables.KeyOf(nftables.Iifname, nftables.ARPSaddrEther), nftables.Bits(nftables.ARPSaddrIP, bits))
		r.rule(here, nftables.Lookup{Key: sender, Set: sized("legit", vpc.IPv4, bits)}, verdict(nftables.Accept))
	}
	r.rule(here, in("unchecked", nftables.Iifname, nftables.ARPSaddrEther), verdict(nftables.Accept))
	r.rule(here, in("branches", nftables.Iifname, nftables.ARPSaddrEther), verdict(nftables.Accept))
	// A probe for duplicates has no sender address (RFC 5227).
	r.rule(here, in("own", nftables.Iifname, nftables.ARPSaddrEther),
		nftables.Eq(nftables.ARPSaddrIP, nftables.Addr(netip.IPv4Unspecified())), verdict(nftables.Accept))
	r.drop(here, nftables.Iifname, dropSpoofed)
	return r
}
