package fabric

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ruleset is one nftables table as a value: named sets with their elements, and
// chains with their rules.
type ruleset struct {
	family nftables.TableFamily
	sets   map[string]*set
	chains map[string]*chain
}

// set is a set or, with a value, a map. Keys are the kernel's bytes; a value is
// bytes, or the chain a verdict map jumps to.
type set struct {
	key      nftables.SetDatatype
	kind     setKind
	elements map[string]string
}

type setKind uint8

const (
	plainSet    setKind = iota
	countingSet         // each element counts the packets that matched it
	markMap
	verdictMap
)

// chain is a list of rules; hook is set on one the kernel enters by itself.
type chain struct {
	hook  *hook
	rules []match
}

type hook struct {
	number   nftables.ChainHook
	priority int
}

// arpInput is NF_ARP_IN.
const arpInput nftables.ChainHook = 0

func newRuleset(family nftables.TableFamily) *ruleset {
	return &ruleset{family: family, sets: map[string]*set{}, chains: map[string]*chain{}}
}

// declare adds a set, once.
func (r *ruleset) declare(name string, kind setKind, key ...nftables.SetDatatype) *set {
	if s, ok := r.sets[name]; ok {
		return s
	}
	s := &set{kind: kind, key: key[0], elements: map[string]string{}}
	if len(key) > 1 {
		s.key = nftables.MustConcatSetType(key...)
	}
	r.sets[name] = s
	return s
}

// rule appends a rule to a chain.
func (r *ruleset) rule(name string, parts ...match) {
	c, ok := r.chains[name]
	if !ok {
		c = &chain{}
		r.chains[name] = c
	}
	c.rules = append(c.rules, slices.Concat(parts...))
}

// base appends a chain the kernel enters at a hook. Its policy is accept and its
// last rule drops: a new base chain is live with its policy, and without its
// rules, a moment before the transaction that makes it is.
func (r *ruleset) base(name string, number nftables.ChainHook, priority int) {
	r.chains[name] = &chain{hook: &hook{number, priority}}
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

// drop counts the packet against the device in key and drops it.
func (r *ruleset) drop(name string, key expr.MetaKey, reason string) {
	r.rule(name, device(key), in(reason), verdict(expr.VerdictDrop))
	r.rule(name, verdict(expr.VerdictDrop))
}

// rulesets are the tables of the plan.
func (p *plan) rulesets() []*ruleset {
	return []*ruleset{p.packets(), p.arp()}
}

// packets is the table for IPv4 and IPv6.
func (p *plan) packets() *ruleset {
	r := newRuleset(nftables.TableFamilyINet)
	for _, reason := range dropReasons() {
		counted := r.declare(reason, countingSet, nftables.TypeIFName)
		for name := range p.links {
			counted.elements[deviceKey(name)] = ""
		}
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
			r.declare(sized("legit", f, bits), plainSet, nftables.TypeIFName, nftables.TypeEtherAddr, addrType(f))
		}
	}
	own := r.declare("own", plainSet, nftables.TypeIFName, nftables.TypeEtherAddr)
	unchecked := r.declare("unchecked", plainSet, nftables.TypeIFName, nftables.TypeEtherAddr)
	forwarders := r.declare("forwarders", plainSet, nftables.TypeIFName)
	marks := r.declare("marks", markMap, nftables.TypeIFName)
	for name, l := range p.links {
		owner := deviceKey(name) + macKey(l.port.MAC)
		own.elements[owner] = ""
		if !l.port.SourceDestCheck {
			unchecked.elements[owner] = ""
			forwarders.elements[deviceKey(name)] = ""
		}
		if n := p.subnet[l.port.Subnet]; len(p.state.Subnets[n].Routes) > 0 {
			marks.elements[deviceKey(name)] = markValue(tableBase + n)
		}
		for _, held := range holdings(l.port) {
			legit := r.sets[sized("legit", vpc.FamilyOf(held.Addr()), held.Bits())]
			legit.elements[owner+addrKey(held.Addr())] = ""
		}
	}
}

// lengths of the prefixes that ports hold in a family, single addresses first.
// Sets of masked addresses are hashes; interval sets would need rebuilding.
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

// antispoof is the first chain a packet meets: what comes from a port must carry
// the port's MAC and one of its addresses.
func (p *plan) antispoof(r *ruleset) {
	const here = "from-port"
	r.base(here, *nftables.ChainHookPrerouting, prioAntiSpoof)
	r.rule(here, deviceIs(expr.MetaKeyIIFNAME, "lo"), verdict(expr.VerdictAccept))
	r.rule(here, deviceIs(expr.MetaKeyIIFNAME, gatewayDevice), jumpTo(expr.VerdictGoto, "from-internet"))
	for _, f := range families() {
		for _, bits := range p.lengths(f) {
			r.rule(here, family(f), device(expr.MetaKeyIIFNAME), sourceMAC(4), source(f, 6), masked(f, bits, 6),
				in(sized("legit", f, bits)), jumpTo(expr.VerdictGoto, "routable"))
		}
	}
	r.rule(here, device(expr.MetaKeyIIFNAME), sourceMAC(4), in("unchecked"), jumpTo(expr.VerdictGoto, "routable"))
	// Neighbour discovery speaks from link-local addresses, or from none while
	// it looks for duplicates. The kernel never forwards either.
	for _, speaker := range []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::/128")} {
		r.rule(here, device(expr.MetaKeyIIFNAME), sourceMAC(4), in("own"), sourceIn(speaker), verdict(expr.VerdictAccept))
	}
	r.drop(here, expr.MetaKeyIIFNAME, dropSpoofed)
}

// routable marks a packet with its subnet's table and drops what leads nowhere,
// which the routes would do as well but without telling.
func (p *plan) routable(r *ruleset) {
	const here = "routable"
	for _, f := range families() {
		local := r.declare("local-"+f.String(), plainSet, addrType(f))
		for a := range p.local {
			if vpc.FamilyOf(a) == f {
				local.elements[addrKey(a)] = ""
			}
		}
		r.rule(here, family(f), destination(f, 0), in("local-"+f.String()), verdict(expr.VerdictAccept))
	}
	for _, link := range []string{"fe80::/10", "ff00::/8"} {
		r.rule(here, destinationIn(netip.MustParsePrefix(link)), verdict(expr.VerdictAccept))
	}
	// Neighbour discovery is answered here and never routed, also when it goes to
	// one address.
	for _, kind := range []byte{solicitation, advertisement} {
		r.rule(here, icmp(vpc.IPv6, kind), verdict(expr.VerdictDrop))
	}
	// Multicast and broadcast are not carried, and chatter is not worth a count.
	r.rule(here, destinationIn(netip.MustParsePrefix("224.0.0.0/3")), verdict(expr.VerdictDrop))
	r.rule(here, device(expr.MetaKeyIIFNAME), setMarkFrom("marks"))
	r.rule(here, unroutable(), device(expr.MetaKeyIIFNAME), in(dropUnroutable), verdict(expr.VerdictDrop))
	r.rule(here, verdict(expr.VerdictAccept))
}

// fromInternet lets outside hosts reach public addresses only.
func (p *plan) fromInternet(r *ruleset) {
	const here = "from-internet"
	public := r.declare("public", plainSet, nftables.TypeIPAddr)
	for _, l := range p.links {
		for _, a := range l.port.Public {
			public.elements[addrKey(a)] = ""
		}
	}
	for _, f := range families() {
		hosts := r.declare("hosts-"+f.String(), plainSet, addrType(f))
		if p.state.Internet == nil {
			continue
		}
		for _, a := range p.state.Internet.Hosts {
			if vpc.FamilyOf(a) == f {
				hosts.elements[addrKey(a)] = ""
			}
		}
	}
	r.rule(here, family(vpc.IPv4), source(vpc.IPv4, 0), in("hosts-ipv4"), destination(vpc.IPv4, 0), in("public"), verdict(expr.VerdictAccept))
	// IPv6 has no private addresses: every one of a port is reachable.
	for _, cidr := range p.cidrs(vpc.IPv6) {
		r.rule(here, family(vpc.IPv6), source(vpc.IPv6, 0), in("hosts-ipv6"), destinationIn(cidr), verdict(expr.VerdictAccept))
	}
	r.rule(here, verdict(expr.VerdictDrop))
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

// forward judges what goes from port to port: state first, then the gateway,
// the destination check and the groups of both ends.
func (p *plan) forward(r *ruleset) {
	const here = "between-ports"
	r.base(here, *nftables.ChainHookForward, 0)
	r.rule(here, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))
	r.rule(here, state(expr.CtStateBitINVALID), jumpTo(expr.VerdictGoto, "stale"))
	r.rule(here, deviceIs(expr.MetaKeyOIFNAME, gatewayDevice), jumpTo(expr.VerdictJump, "to-internet"))
	r.rule(here, deviceIsNot(expr.MetaKeyOIFNAME, gatewayDevice), jumpTo(expr.VerdictJump, "to-port"))
	r.rule(here, device(expr.MetaKeyIIFNAME), by("egress"))
	r.rule(here, device(expr.MetaKeyOIFNAME), by("ingress"))
	r.rule(here, verdict(expr.VerdictAccept))

	r.drop("stale", expr.MetaKeyIIFNAME, dropStale)

	r.rule("to-internet", family(vpc.IPv6), verdict(expr.VerdictReturn))
	r.rule("to-internet", source(vpc.IPv4, 0), in("public"), verdict(expr.VerdictReturn))
	r.drop("to-internet", expr.MetaKeyIIFNAME, dropUnroutable)

	p.toPort(r)
	p.groups(r)
}

// toPort is the destination check: a port takes what is for an address it holds.
// Whatever else comes by a route table only one without the check takes.
func (p *plan) toPort(r *ruleset) {
	const here = "to-port"
	for _, f := range families() {
		for _, bits := range p.lengths(f) {
			name := sized("held", f, bits)
			held := r.declare(name, plainSet, nftables.TypeIFName, addrType(f))
			for device, l := range p.links {
				for _, h := range holdings(l.port) {
					if vpc.FamilyOf(h.Addr()) == f && h.Bits() == bits {
						held.elements[deviceKey(device)+addrKey(h.Addr())] = ""
					}
				}
			}
			r.rule(here, family(f), device(expr.MetaKeyOIFNAME), destination(f, 4), masked(f, bits, 4), in(name), verdict(expr.VerdictReturn))
		}
	}
	r.rule(here, device(expr.MetaKeyOIFNAME), in("forwarders"), verdict(expr.VerdictReturn))
	r.drop(here, expr.MetaKeyOIFNAME, dropMisrouted)
}

// input judges what is meant for the fabric's own addresses.
func (p *plan) input(r *ruleset) {
	const here = "to-fabric"
	r.base(here, *nftables.ChainHookInput, 0)
	r.rule(here, deviceIs(expr.MetaKeyIIFNAME, "lo"), verdict(expr.VerdictAccept))
	r.rule(here, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))
	for _, f := range families() {
		services := r.declare("services-"+f.String(), plainSet, addrType(f), nftables.TypeInetProto, nftables.TypeInetService)
		for _, s := range p.state.Services {
			if vpc.FamilyOf(s.Address) == f {
				addServices(services, s)
			}
		}
		r.rule(here, family(f), destination(f, 0), protocol(addrWords(f)), destinationPort(addrWords(f)+1),
			in("services-"+f.String()), verdict(expr.VerdictAccept))
		gateways := r.declare("gateways-"+f.String(), plainSet, addrType(f))
		for _, a := range p.gateways {
			if vpc.FamilyOf(a) == f {
				gateways.elements[addrKey(a)] = ""
			}
		}
		r.rule(here, icmp(f, echoRequest(f)), destination(f, 0), in("gateways-"+f.String()), verdict(expr.VerdictAccept))
	}
	r.sets["gateways-ipv6"].elements[addrKey(linkLocal(1))] = ""
	for kind := range neighbourDiscovery() {
		r.rule(here, icmp(vpc.IPv6, kind), verdict(expr.VerdictAccept))
	}
	// Listener reports and the like: nobody's mistake.
	r.rule(here, destinationIn(netip.MustParsePrefix("ff00::/8")), verdict(expr.VerdictDrop))
	r.drop(here, expr.MetaKeyIIFNAME, dropService)
}

func addServices(to *set, s Service) {
	for _, port := range s.TCP {
		to.elements[serviceKey(s.Address, protocolTCP, port)] = ""
	}
	for _, port := range s.UDP {
		to.elements[serviceKey(s.Address, protocolUDP, port)] = ""
	}
}

// arp is the table for ARP: a sender must be the port's MAC with one of its
// addresses, or with none while it looks for duplicates.
func (p *plan) arp() *ruleset {
	r := newRuleset(nftables.TableFamilyARP)
	p.sources(r)
	for _, unused := range []string{"forwarders", "marks"} {
		delete(r.sets, unused)
	}
	for _, bits := range p.lengths(vpc.IPv6) {
		delete(r.sets, sized("legit", vpc.IPv6, bits))
	}
	spoofed := r.declare(dropSpoofed, countingSet, nftables.TypeIFName)
	for name := range p.links {
		spoofed.elements[deviceKey(name)] = ""
	}
	const here = "from-port"
	r.base(here, arpInput, 0)
	r.rule(here, deviceIs(expr.MetaKeyIIFNAME, gatewayDevice), verdict(expr.VerdictAccept))
	for _, bits := range p.lengths(vpc.IPv4) {
		r.rule(here, device(expr.MetaKeyIIFNAME), arpSenderMAC(4), arpSender(6), masked(vpc.IPv4, bits, 6),
			in(sized("legit", vpc.IPv4, bits)), verdict(expr.VerdictAccept))
	}
	r.rule(here, device(expr.MetaKeyIIFNAME), arpSenderMAC(4), in("unchecked"), verdict(expr.VerdictAccept))
	r.rule(here, device(expr.MetaKeyIIFNAME), arpSenderMAC(4), in("own"), arpProbe(), verdict(expr.VerdictAccept))
	r.drop(here, expr.MetaKeyIIFNAME, dropSpoofed)
	return r
}
