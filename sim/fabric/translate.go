package fabric

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// translate adds the internet gateway's translation of private addresses, one to one:
// connections from outside are to the private address from here on, those to the outside
// are from the public one when they leave. The chains that filter see private addresses,
// except the first one, which is before the translation. Without an address to translate,
// there are no such chains.
func (t *packetTable) translate() {
	const inward, outward = "to-private", "to-public"
	public := slices.DeleteFunc(slices.Clone(t.plan.public), func(p Public) bool { return !p.Address.IsValid() })
	if len(public) == 0 {
		return
	}
	for name, hook := range map[string]nftables.Hook{
		inward:  {Type: nftables.NAT, Point: nftables.Prerouting, Priority: prioToPrivate},
		outward: {Type: nftables.NAT, Point: nftables.Postrouting, Priority: prioToPublic},
	} {
		t.chains[name] = &nftables.Chain{Name: name, Hook: &hook}
	}
	for _, p := range public {
		t.rule(inward, deviceIs(nftables.Iifname, gatewayDevice), nftables.Eq(nftables.IPDaddr, nftables.Addr(p.Address)), nftables.DNAT{To: p.Private})
		t.rule(outward, deviceIs(nftables.Oifname, gatewayDevice), nftables.Eq(nftables.IPSaddr, nftables.Addr(p.Private)), nftables.SNAT{To: p.Address})
	}
}

// publicAddresses are the private addresses that pass the gateway, with how hosts beyond it
// see each.
func (p *plan) publicAddresses() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for _, public := range p.public {
		out[public.Private] = public.outside()
	}
	return out
}

// endPublicFlows deletes the connections through the gateway of every private address that
// another public address has replaced, or none: on EC2 the gateway keeps no state of them.
func (f *Fabric) endPublicFlows(p *plan) error {
	now := p.publicAddresses()
	gone := publicFlows{private: map[netip.Addr]bool{}, within: p.state.CIDRs}
	for private, was := range f.public {
		if now[private] != was {
			gone.private[private] = true
		}
	}
	f.public = now
	if len(gone.private) == 0 {
		return nil
	}
	ended, err := endFlowsOf(f.link, unix.AF_INET, gone)
	f.changes += ended
	return err
}

// publicFlows matches the connections of private addresses with hosts outside the VPC.
type publicFlows struct {
	private map[netip.Addr]bool
	within  []netip.Prefix
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter. The forward tuple has the
// private source of a connection to the outside, the reverse one the private address that
// replies to a connection from there.
func (l publicFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	from, to := addrOf(flow.Forward.SrcIP), addrOf(flow.Forward.DstIP)
	return l.private[from] && !l.inside(to) || !l.inside(from) && l.private[addrOf(flow.Reverse.SrcIP)]
}

func (l publicFlows) inside(a netip.Addr) bool {
	for _, cidr := range l.within {
		if cidr.Contains(a) {
			return true
		}
	}
	return false
}
