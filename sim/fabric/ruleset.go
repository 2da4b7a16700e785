package fabric

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// ruleset builds a table; its sets and chains are by name.
type ruleset struct {
	name   nftables.TableName
	sets   map[string]*nftables.Set
	chains map[string]*nftables.Chain
}

func newRuleset(family nftables.Family) *ruleset {
	return &ruleset{
		name: nftables.TableName{Family: family, Name: tableName},
		sets: map[string]*nftables.Set{}, chains: map[string]*nftables.Chain{},
	}
}

// table is the finished table.
func (r *ruleset) table() nftables.Table {
	t := nftables.Table{TableName: r.name}
	for _, name := range slices.Sorted(maps.Keys(r.sets)) {
		t.Sets = append(t.Sets, *r.sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		t.Chains = append(t.Chains, *r.chains[name])
	}
	return t
}

// set adds a set, once.
func (r *ruleset) set(name string, key ...nftables.Type) *nftables.Set {
	s, ok := r.sets[name]
	if !ok {
		s = &nftables.Set{Name: name, Key: key}
		r.sets[name] = s
	}
	return s
}

// add adds an element to a set; parts make up its key.
func add(s *nftables.Set, parts ...nftables.Data) {
	s.Elements = append(s.Elements, nftables.Element{Key: nftables.Concat(parts...)})
}

// rule appends a rule to a chain.
func (r *ruleset) rule(chain string, exprs ...nftables.Expr) {
	c, ok := r.chains[chain]
	if !ok {
		c = &nftables.Chain{Name: chain}
		r.chains[chain] = c
	}
	c.Rules = append(c.Rules, nftables.NewRule(exprs...))
}

// base adds a chain at a hook. Its policy is accept and its last rule drops: the kernel
// activates a new base chain with its policy shortly before the rules of the same
// transaction.
func (r *ruleset) base(name string, point nftables.Point, priority int) {
	r.chains[name] = &nftables.Chain{Name: name, Hook: &nftables.Hook{Type: nftables.Filter, Point: point, Priority: priority}}
}

// Reasons for a drop; each has a set that counts by device.
const (
	dropSpoofed    = "drops-spoofed"
	dropMisrouted  = "drops-misrouted"
	dropEgress     = "drops-egress"
	dropIngress    = "drops-ingress"
	dropUnroutable = "drops-unroutable"
	dropStale      = "drops-stale"
	dropService    = "drops-service"
)

func dropReasons() []string {
	return []string{dropSpoofed, dropMisrouted, dropEgress, dropIngress, dropUnroutable, dropStale, dropService}
}

// count adds the set that counts the packets dropped for a reason, by device.
func (r *ruleset) count(reason string, links map[string]linkPlan) {
	counts := r.set(reason, nftables.TypeIfname)
	counts.Counter = true
	for name := range links {
		add(counts, nftables.Ifname(name))
	}
}

// drop counts the packet against a device and drops it.
func (r *ruleset) drop(chain string, device nftables.Field, reason string) {
	r.rule(chain, in(reason, device), verdict(nftables.Drop))
	r.rule(chain, verdict(nftables.Drop))
}

// tables are the nftables tables of the plan.
func (p *plan) tables() []nftables.Table {
	return []nftables.Table{p.packets().table(), p.arp().table()}
}

// packets is the table for IPv4 and IPv6.
func (p *plan) packets() *ruleset {
	r := newRuleset(nftables.Inet)
	for _, reason := range dropReasons() {
		r.count(reason, p.links)
	}
	p.sources(r)
	p.antispoof(r)
	p.routable(r)
	p.fromInternet(r)
	p.forward(r)
	p.input(r)
	return r
}

// sources fills the sets of what each port may send from.
func (p *plan) sources(r *ruleset) {
	for _, f := range families() {
		for _, bits := range p.lengths(f) {
			r.set(sized("legit", f, bits), nftables.TypeIfname, nftables.TypeEther, addrType(f))
		}
	}
	own := r.set("own", nftables.TypeIfname, nftables.TypeEther)
	unchecked := r.set("unchecked", nftables.TypeIfname, nftables.TypeEther)
	forwarders := r.set("forwarders", nftables.TypeIfname)
	marks := r.set("marks", nftables.TypeIfname)
	marks.Value = []nftables.Type{nftables.TypeMark}
	for name, l := range p.links {
		device, mac := nftables.Ifname(name), nftables.Ether(l.port.MAC)
		add(own, device, mac)
		if !l.port.SourceDestCheck {
			add(unchecked, device, mac)
			add(forwarders, device)
		}
		if n := p.subnet[l.port.Subnet]; len(p.state.Subnets[n].Routes) > 0 {
			marks.Elements = append(marks.Elements, nftables.Element{Key: device, Value: nftables.Native(uint32(tableBase + n))})
		}
		for _, held := range holdings(l.port) {
			add(r.sets[sized("legit", vpc.FamilyOf(held.Addr()), held.Bits())], device, mac, nftables.Addr(held.Addr()))
		}
	}
}

// lengths of the prefixes that ports hold in a family, single addresses first. A set of
// masked addresses is a hash table; the kernel rebuilds an interval set at each change.
func (p *plan) lengths(f vpc.Family) []int {
	whole := addrBits(f)
	found := map[int]bool{whole: true}
	for held := range p.owner {
		if vpc.FamilyOf(held.Addr()) == f {
			found[held.Bits()] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(found))
	slices.Reverse(sorted)
	return sorted
}

func sized(name string, f vpc.Family, bits int) string {
	return name + "-" + f.String() + "-" + strconv.Itoa(bits)
}

// antispoof is the first chain: a packet from a port must have the port's MAC and one of
// its addresses as source.
func (p *plan) antispoof(r *ruleset) {
	const here = "from-port"
	r.base(here, nftables.Prerouting, prioAntiSpoof)
	r.rule(here, deviceIs(nftables.Iifname, "lo"), verdict(nftables.Accept))
	r.rule(here, deviceIs(nftables.Iifname, gatewayDevice), gotoChain("from-internet"))
	for _, f := range families() {
		for _, bits := range p.lengths(f) {
			sender := append(nftables.KeyOf(nftables.Iifname, nftables.EtherSaddr), nftables.Bits(source(f), bits))
			r.rule(here, nftables.Lookup{Key: sender, Set: sized("legit", f, bits)}, gotoChain("routable"))
		}
	}
	r.rule(here, in("unchecked", nftables.Iifname, nftables.EtherSaddr), gotoChain("routable"))
	// Neighbour discovery uses link-local source addresses, or none for duplicate address
	// detection. The kernel forwards neither.
	for _, speaker := range []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::/128")} {
		r.rule(here, in("own", nftables.Iifname, nftables.EtherSaddr), within(nftables.IP6Saddr, speaker), verdict(nftables.Accept))
	}
	r.drop(here, nftables.Iifname, dropSpoofed)
}

// routable marks a packet with its subnet's table and drops unroutable packets. The
// routes would drop them too, but without counting them.
func (p *plan) routable(r *ruleset) {
	const here = "routable"
	for _, f := range families() {
		name := "local-" + f.String()
		local := r.set(name, addrType(f))
		for a := range p.local {
			if vpc.FamilyOf(a) == f {
				add(local, nftables.Addr(a))
			}
		}
		r.rule(here, in(name, destination(f)), verdict(nftables.Accept))
	}
	for _, link := range []string{"fe80::/10", "ff00::/8"} {
		r.rule(here, within(nftables.IP6Daddr, netip.MustParsePrefix(link)), verdict(nftables.Accept))
	}
	// The fabric replies to neighbour discovery and never routes it, also if it is
	// unicast.
	for _, kind := range []uint8{solicitation, advertisement} {
		r.rule(here, icmp(vpc.IPv6, kind), verdict(nftables.Drop))
	}
	// Multicast and broadcast are not forwarded, and not counted because they are
	// frequent.
	r.rule(here, within(nftables.IPDaddr, netip.MustParsePrefix("224.0.0.0/3")), verdict(nftables.Drop))
	r.rule(here, nftables.SetFromMap{Field: nftables.MetaMark, Key: nftables.KeyOf(nftables.Iifname), Map: "marks"})
	r.rule(here, nftables.Routed(false), in(dropUnroutable, nftables.Iifname), verdict(nftables.Drop))
	r.rule(here, verdict(nftables.Accept))
}

// fromInternet accepts what outside hosts send to public addresses only.
func (p *plan) fromInternet(r *ruleset) {
	const here = "from-internet"
	public := r.set("public", nftables.TypeIPv4)
	for _, l := range p.links {
		for _, a := range l.port.Public {
			add(public, nftables.Addr(a))
		}
	}
	for _, f := range families() {
		hosts := r.set("hosts-"+f.String(), addrType(f))
		if p.state.Internet == nil {
			continue
		}
		for _, a := range p.state.Internet.Hosts {
			if vpc.FamilyOf(a) == f {
				add(hosts, nftables.Addr(a))
			}
		}
	}
	r.rule(here, in("hosts-ipv4", nftables.IPSaddr), in("public", nftables.IPDaddr), verdict(nftables.Accept))
	// IPv6 needs no public addresses: every address of a port is reachable.
	for _, cidr := range p.cidrs(vpc.IPv6) {
		r.rule(here, in("hosts-ipv6", nftables.IP6Saddr), within(nftables.IP6Daddr, cidr), verdict(nftables.Accept))
	}
	r.rule(here, verdict(nftables.Drop))
}

func (p *plan) cidrs(f vpc.Family) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range p.state.CIDRs {
		if vpc.FamilyOf(cidr.Addr()) == f {
			out = append(out, cidr)
		}
	}
	return out
}

// forward is the chain for packets between ports: connection state first, then the
// gateway, the destination check and the groups of both ports.
func (p *plan) forward(r *ruleset) {
	const here = "between-ports"
	r.base(here, nftables.Forward, 0)
	r.rule(here, nftables.AnyBits(nftables.CtState, nftables.CtEstablished|nftables.CtRelated), verdict(nftables.Accept))
	r.rule(here, nftables.AnyBits(nftables.CtState, nftables.CtInvalid), gotoChain("stale"))
	r.rule(here, deviceIs(nftables.Oifname, gatewayDevice), jumpTo("to-internet"))
	r.rule(here, nftables.Ne(nftables.Oifname, nftables.Ifname(gatewayDevice)), jumpTo("to-port"))
	r.rule(here, nftables.VerdictMap{Key: nftables.KeyOf(nftables.Iifname), Map: "egress"})
	r.rule(here, nftables.VerdictMap{Key: nftables.KeyOf(nftables.Oifname), Map: "ingress"})
	r.rule(here, verdict(nftables.Accept))

	r.drop("stale", nftables.Iifname, dropStale)

	r.rule("to-internet", family(vpc.IPv6), verdict(nftables.Return))
	r.rule("to-internet", in("public", nftables.IPSaddr), verdict(nftables.Return))
	r.drop("to-internet", nftables.Iifname, dropUnroutable)

	p.toPort(r)
	p.groups(r)
}

// toPort is the destination check: a port receives packets to the addresses it holds.
// Packets that a route table sends to it are accepted only if its check is off.
func (p *plan) toPort(r *ruleset) {
	const here = "to-port"
	for _, f := range families() {
		for _, bits := range p.lengths(f) {
			name := sized("held", f, bits)
			held := r.set(name, nftables.TypeIfname, addrType(f))
			for device, l := range p.links {
				for _, h := range holdings(l.port) {
					if vpc.FamilyOf(h.Addr()) == f && h.Bits() == bits {
						add(held, nftables.Ifname(device), nftables.Addr(h.Addr()))
					}
				}
			}
			receiver := append(nftables.KeyOf(nftables.Oifname), nftables.Bits(destination(f), bits))
			r.rule(here, nftables.Lookup{Key: receiver, Set: name}, verdict(nftables.Return))
		}
	}
	r.rule(here, in("forwarders", nftables.Oifname), verdict(nftables.Return))
	r.drop(here, nftables.Oifname, dropMisrouted)
}

// input is the chain for packets to the fabric's own addresses.
func (p *plan) input(r *ruleset) {
	const here = "to-fabric"
	r.base(here, nftables.Input, 0)
	r.rule(here, deviceIs(nftables.Iifname, "lo"), verdict(nftables.Accept))
	r.rule(here, nftables.AnyBits(nftables.CtState, nftables.CtEstablished|nftables.CtRelated), verdict(nftables.Accept))
	for _, f := range families() {
		name := "services-" + f.String()
		services := r.set(name, addrType(f), nftables.TypeProto, nftables.TypePort)
		for _, s := range p.state.Services {
			if vpc.FamilyOf(s.Address) == f {
				addService(services, s)
			}
		}
		r.rule(here, in(name, destination(f), nftables.L4Proto, nftables.ThDport), verdict(nftables.Accept))
		name = "gateways-" + f.String()
		gateways := r.set(name, addrType(f))
		for _, a := range p.gateways {
			if vpc.FamilyOf(a) == f {
				add(gateways, nftables.Addr(a))
			}
		}
		r.rule(here, icmp(f, echoRequest(f)), in(name, destination(f)), verdict(nftables.Accept))
	}
	add(r.sets["gateways-ipv6"], nftables.Addr(linkLocal(1)))
	for _, kind := range neighbourDiscovery() {
		r.rule(here, icmp(vpc.IPv6, kind), verdict(nftables.Accept))
	}
	// Multicast listener reports and similar packets are not counted.
	r.rule(here, within(nftables.IP6Daddr, netip.MustParsePrefix("ff00::/8")), verdict(nftables.Drop))
	r.drop(here, nftables.Iifname, dropService)
}

func addService(to *nftables.Set, s Service) {
	for _, port := range s.TCP {
		add(to, nftables.Addr(s.Address), nftables.Proto(protocolTCP), nftables.Port(port))
	}
	for _, port := range s.UDP {
		add(to, nftables.Addr(s.Address), nftables.Proto(protocolUDP), nftables.Port(port))
	}
}

// arp is the table for ARP: a sender must be the port's MAC with one of its
// addresses, or without an address for duplicate address detection.
func (p *plan) arp() *ruleset {
	r := newRuleset(nftables.ARP)
	p.sources(r)
	for _, unused := range []string{"forwarders", "marks"} {
		delete(r.sets, unused)
	}
	for _, bits := range p.lengths(vpc.IPv6) {
		delete(r.sets, sized("legit", vpc.IPv6, bits))
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
	// A probe for duplicates has no sender address (RFC 5227).
	r.rule(here, in("own", nftables.Iifname, nftables.ARPSaddrEther),
		nftables.Eq(nftables.ARPSaddrIP, nftables.Addr(netip.IPv4Unspecified())), verdict(nftables.Accept))
	r.drop(here, nftables.Iifname, dropSpoofed)
	return r
}
