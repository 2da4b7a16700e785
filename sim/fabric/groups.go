package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Transport protocols, by IP number.
const (
	protocolAll    = -1
	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58
	protocolSCTP   = 132
)

// groups adds what the security groups allow: a map from device to a chain per
// set of groups, each way, and the members of every group that a rule names.
func (p *plan) groups(r *ruleset) {
	byID := map[vpc.SecurityGroupID]Group{}
	for _, g := range p.state.Groups {
		byID[g.ID] = g
	}
	egress := r.declare("egress", verdictMap, nftables.TypeIFName)
	ingress := r.declare("ingress", verdictMap, nftables.TypeIFName)
	for name, l := range p.links {
		ids := slices.Clone(l.port.Groups)
		slices.Sort(ids)
		ids = slices.Compact(ids)
		out, in := "egress-"+setName(ids), "ingress-"+setName(ids)
		egress.elements[deviceKey(name)] = out
		ingress.elements[deviceKey(name)] = in
		if _, made := r.chains[out]; made {
			continue
		}
		for _, id := range ids {
			for _, rule := range byID[id].Egress {
				p.allow(r, out, rule, destination)
			}
			for _, rule := range byID[id].Ingress {
				p.allow(r, in, rule, source)
			}
		}
		r.drop(out, expr.MetaKeyIIFNAME, dropEgress)
		r.drop(in, expr.MetaKeyOIFNAME, dropIngress)
	}
	p.members(r)
}

// setName names a set of groups within the kernel's limits.
func setName(ids []vpc.SecurityGroupID) string {
	if len(ids) == 1 {
		return string(ids[0])
	}
	sum := sha256.New()
	for _, id := range ids {
		sum.Write([]byte(id))
		sum.Write([]byte{0})
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// allow adds one rule to a chain; the peer is at the end that field loads.
func (p *plan) allow(r *ruleset, chain string, rule Rule, field func(vpc.Family, int) match) {
	for _, f := range families() {
		what, possible := traffic(rule, f)
		if !possible {
			continue
		}
		pass := verdict(expr.VerdictReturn)
		if rule.Group == "" {
			if vpc.FamilyOf(rule.Peer.Addr()) == f {
				r.rule(chain, within(rule.Peer.Masked(), f, field), what, pass)
			}
			continue
		}
		for _, bits := range p.lengths(f) {
			name := memberSet(rule.Group, f, bits)
			r.declare(name, plainSet, addrType(f))
			r.rule(chain, family(f), field(f, 0), masked(f, bits, 0), in(name), what, pass)
		}
	}
}

func memberSet(id vpc.SecurityGroupID, f vpc.Family, bits int) string {
	return sized("members-"+string(id), f, bits)
}

// members fills the sets of addresses of the groups that rules refer to.
func (p *plan) members(r *ruleset) {
	for _, l := range p.links {
		for _, id := range l.port.Groups {
			for _, held := range holdings(l.port) {
				s, referred := r.sets[memberSet(id, vpc.FamilyOf(held.Addr()), held.Bits())]
				if referred {
					s.elements[addrKey(held.Addr())] = ""
				}
			}
		}
	}
}

// traffic matches a rule's protocol and ports. A rule for one family's ICMP
// matches nothing of the other.
func traffic(rule Rule, f vpc.Family) (match, bool) {
	all := rule.From == -1 && rule.To == -1
	switch rule.Protocol {
	case protocolAll:
		return nil, true
	case protocolTCP, protocolUDP, protocolSCTP:
		if all || rule.From <= 0 && rule.To >= 65535 {
			return protocolIs(rule.Protocol), true
		}
		return slices.Concat(protocolIs(rule.Protocol), portBetween(rule.From, rule.To)), true
	case protocolICMP, protocolICMPv6:
		if (rule.Protocol == protocolICMP) != (f == vpc.IPv4) {
			return nil, false
		}
		m := protocolIs(rule.Protocol)
		if rule.From != -1 {
			m = append(m, transportByte(0, byte(rule.From))...)
		}
		if rule.To != -1 {
			m = append(m, transportByte(1, byte(rule.To))...)
		}
		return m, true
	}
	return protocolIs(rule.Protocol), true
}

// within matches a field against a prefix; one of everything matches the family.
func within(prefix netip.Prefix, f vpc.Family, field func(vpc.Family, int) match) match {
	if prefix.Bits() == 0 {
		return family(f)
	}
	return slices.Concat(family(f), field(f, 0), masked(f, prefix.Bits(), 0), equals(prefix.Addr().AsSlice()))
}
