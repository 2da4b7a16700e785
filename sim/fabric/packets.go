package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// tables are the nftables tables of a plan.
func tables(p *plan) []nftables.Table {
	return []nftables.Table{newPacketTable(p).table(), newARPTable(p).table()}
}

// packetTable is the table for IPv4 and IPv6: source checks before connection tracking,
// then the destination check and the groups between ports, and the fabric's own
// addresses.
type packetTable struct {
	*ruleset
	plan *plan
}

func newPacketTable(p *plan) *packetTable {
	t := &packetTable{newRuleset(nftables.Inet), p}
	for _, reason := range dropReasons() {
		t.count(reason, p.links)
	}
	t.senders(p, vpc.IPv4, vpc.IPv6)
	t.antispoof()
	t.routable()
	t.fromInternet()
	t.translate()
	t.forward()
	t.toPort()
	(&groupRules{t.ruleset, p}).build()
	t.input()
	return t
}

// antispoof is the first chain: a packet from a port must have the port's MAC and one of
// its addresses as source.
func (t *packetTable) antispoof() {
	const here = "from-port"
	t.base(here, nftables.Prerouting, prioAntiSpoof)
	t.rule(here, deviceIs(nftables.Iifname, "lo"), verdict(nftables.Accept))
	t.rule(here, deviceIs(nftables.Iifname, gatewayDevice), gotoChain("from-internet"))
	for _, f := range families() {
		for _, bits := range t.plan.lengths(f) {
			sender := append(nftables.KeyOf(nftables.Iifname, nftables.EtherSaddr), nftables.Bits(source(f), bits))
			t.rule(here, nftables.Lookup{Key: sender, Set: sized("legit", f, bits)}, gotoChain("routable"))
		}
	}
	t.rule(here, in("unchecked", nftables.Iifname, nftables.EtherSaddr), gotoChain("routable"))
	// Neighbour discovery uses link-local source addresses, or none for duplicate address
	// detection. The kernel forwards neither.
	for _, speaker := range []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::/128")} {
		t.rule(here, in("own", nftables.Iifname, nftables.EtherSaddr), within(nftables.IP6Saddr, speaker), verdict(nftables.Accept))
	}
	t.drop(here, nftables.Iifname, dropSpoofed)
}

// routable marks a packet with its subnet's table and drops unroutable packets. The
// routes would drop them too, but without counting them.
func (t *packetTable) routable() {
	const here = "routable"
	for _, f := range families() {
		name := "local-" + f.String()
		local := t.set(name, addrType(f))
		for a := range t.plan.local {
			if vpc.FamilyOf(a) == f {
				add(local, nftables.Addr(a))
			}
		}
		t.rule(here, in(name, destination(f)), verdict(nftables.Accept))
	}
	for _, link := range []string{"fe80::/10", "ff00::/8"} {
		t.rule(here, within(nftables.IP6Daddr, netip.MustParsePrefix(link)), verdict(nftables.Accept))
	}
	// The fabric replies to neighbour discovery and never routes it, also if it is
	// unicast.
	for _, kind := range []uint8{solicitation, advertisement} {
		t.rule(here, icmp(vpc.IPv6, kind), verdict(nftables.Drop))
	}
	// Multicast and broadcast are not forwarded, and not counted because they are
	// frequent.
	t.rule(here, within(nftables.IPDaddr, netip.MustParsePrefix("224.0.0.0/3")), verdict(nftables.Drop))
	t.marks()
	t.rule(here, nftables.SetFromMap{Field: nftables.MetaMark, Key: nftables.KeyOf(nftables.Iifname), Map: "marks"})
	t.rule(here, nftables.Routed(false), in(dropUnroutable, nftables.Iifname), verdict(nftables.Drop))
	t.rule(here, verdict(nftables.Accept))
}

// marks adds the mark of each port's subnet, by device.
func (t *packetTable) marks() {
	marks := t.set("marks", nftables.TypeIfname)
	marks.Value = []nftables.Type{nftables.TypeMark}
	for name, l := range t.plan.links {
		if n := t.plan.subnet[l.port.Subnet]; len(t.plan.state.Subnets[n].Routes) > 0 {
			mark := tableBase + t.plan.number[l.port.Subnet]
			marks.Elements = append(marks.Elements, nftables.Element{Key: nftables.Ifname(name), Value: nftables.Native(uint32(mark))})
		}
	}
}

// fromInternet accepts what outside hosts send to public addresses only.
func (t *packetTable) fromInternet() {
	const here = "from-internet"
	public, inside := t.set("public", nftables.TypeIPv4), t.set("has-public", nftables.TypeIPv4)
	for _, p := range t.plan.public {
		add(public, nftables.Addr(p.outside()))
		add(inside, nftables.Addr(p.Private))
	}
	for _, f := range families() {
		hosts := t.set("hosts-"+f.String(), addrType(f))
		if t.plan.state.Internet == nil {
			continue
		}
		for _, a := range t.plan.state.Internet.Hosts {
			if vpc.FamilyOf(a) == f {
				add(hosts, nftables.Addr(a))
			}
		}
	}
	t.rule(here, in("hosts-ipv4", nftables.IPSaddr), in("public", nftables.IPDaddr), verdict(nftables.Accept))
	// IPv6 needs no public addresses: every address of a port is reachable.
	for _, cidr := range t.plan.cidrs(vpc.IPv6) {
		t.rule(here, in("hosts-ipv6", nftables.IP6Saddr), within(nftables.IP6Daddr, cidr), verdict(nftables.Accept))
	}
	t.rule(here, verdict(nftables.Drop))
}

// forward is the chain for packets between ports: connection state first, then the
// gateway, the destination check and the groups of both ports.
func (t *packetTable) forward() {
	const here = "between-ports"
	t.base(here, nftables.Forward, 0)
	t.rule(here, nftables.AnyBits(nftables.CtState, nftables.CtEstablished|nftables.CtRelated), verdict(nftables.Accept))
	t.rule(here, nftables.AnyBits(nftables.CtState, nftables.CtInvalid), gotoChain("stale"))
	t.rule(here, deviceIs(nftables.Oifname, gatewayDevice), jumpTo("to-internet"))
	t.rule(here, nftables.Ne(nftables.Oifname, nftables.Ifname(gatewayDevice)), jumpTo("to-port"))
	t.rule(here, nftables.VerdictMap{Key: nftables.KeyOf(nftables.Iifname), Map: "egress"})
	t.rule(here, nftables.VerdictMap{Key: nftables.KeyOf(nftables.Oifname), Map: "ingress"})
	t.rule(here, verdict(nftables.Accept))

	t.drop("stale", nftables.Iifname, dropStale)

	t.rule("to-internet", family(vpc.IPv6), verdict(nftables.Return))
	t.rule("to-internet", in("has-public", nftables.IPSaddr), verdict(nftables.Return))
	t.drop("to-internet", nftables.Iifname, dropUnroutable)
}

// toPort is the destination check: a port receives packets to the addresses it holds.
// Packets that a route table sends to it are accepted only if its check is off.
func (t *packetTable) toPort() {
	const here = "to-port"
	for _, f := range families() {
		for _, bits := range t.plan.lengths(f) {
			name := sized("held", f, bits)
			held := t.set(name, nftables.TypeIfname, addrType(f))
			for device, l := range t.plan.links {
				for _, h := range holdings(l.port) {
					if vpc.FamilyOf(h.Addr()) == f && h.Bits() == bits {
						add(held, nftables.Ifname(device), nftables.Addr(h.Addr()))
					}
				}
			}
			receiver := append(nftables.KeyOf(nftables.Oifname), nftables.Bits(destination(f), bits))
			t.rule(here, nftables.Lookup{Key: receiver, Set: name}, verdict(nftables.Return))
		}
	}
	forwarders := t.set("forwarders", nftables.TypeIfname)
	for device, l := range t.plan.links {
		if !l.port.SourceDestCheck {
			add(forwarders, nftables.Ifname(device))
		}
	}
	t.rule(here, in("forwarders", nftables.Oifname), verdict(nftables.Return))
	t.drop(here, nftables.Oifname, dropMisrouted)
}

// input is the chain for packets to the fabric's own addresses.
func (t *packetTable) input() {
	const here = "to-fabric"
	t.base(here, nftables.Input, 0)
	t.rule(here, deviceIs(nftables.Iifname, "lo"), verdict(nftables.Accept))
	t.rule(here, nftables.AnyBits(nftables.CtState, nftables.CtEstablished|nftables.CtRelated), verdict(nftables.Accept))
	for _, f := range families() {
		name := "services-" + f.String()
		services := t.set(name, addrType(f), nftables.TypeProto, nftables.TypePort)
		platform := t.set("platform-"+f.String(), addrType(f))
		for _, s := range t.plan.state.Services {
			if vpc.FamilyOf(s.Address) == f {
				addService(services, s)
				add(platform, nftables.Addr(s.Address))
			}
		}
		t.rule(here, in(name, destination(f), nftables.L4Proto, nftables.ThDport), verdict(nftables.Accept))
		t.rule(here, in("platform-"+f.String(), destination(f)), gotoChain("refuse"))
		name = "gateways-" + f.String()
		gateways := t.set(name, addrType(f))
		for _, a := range t.plan.gateways {
			if vpc.FamilyOf(a) == f {
				add(gateways, nftables.Addr(a))
			}
		}
		t.rule(here, icmp(f, echoRequest(f)), in(name, destination(f)), verdict(nftables.Accept))
	}
	add(t.sets["gateways-ipv6"], nftables.Addr(linkLocal(1)))
	for _, kind := range neighbourDiscovery() {
		t.rule(here, icmp(vpc.IPv6, kind), verdict(nftables.Accept))
	}
	// Multicast listener reports and similar packets are not counted.
	t.rule(here, within(nftables.IP6Daddr, netip.MustParsePrefix("ff00::/8")), verdict(nftables.Drop))
	t.drop(here, nftables.Iifname, dropService)
	t.refuse()
}

// refuse is the chain for packets to a service's address where it does not listen: the
// sender gets the answer of a host with a closed port, so that it fails at once.
func (t *packetTable) refuse() {
	const here = "refuse"
	t.rule(here, in(dropService, nftables.Iifname)) // counts
	t.rule(here, protocolIs(protocolTCP), nftables.Reject{With: nftables.TCPReset})
	t.rule(here, protocolIs(protocolUDP), nftables.Reject{With: nftables.PortUnreachable})
	t.rule(here, verdict(nftables.Drop))
}

func addService(to *nftables.Set, s Service) {
	for _, port := range s.TCP {
		add(to, nftables.Addr(s.Address), nftables.Proto(protocolTCP), nftables.Port(port))
	}
	for _, port := range s.UDP {
		add(to, nftables.Addr(s.Address), nftables.Proto(protocolUDP), nftables.Port(port))
	}
}
