package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
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

// groupRules are the rules of the security groups: for each direction, a map from device
// to the chain of its set of groups, and the members of every group that a rule
// references.
type groupRules struct {
	*ruleset
	plan *plan
}

// build adds the rules to the table.
func (g *groupRules) build() {
	byID := map[vpc.SecurityGroupID]Group{}
	for _, group := range g.plan.state.Groups {
		byID[group.ID] = group
	}
	egress, ingress := g.set("egress", nftables.TypeIfname), g.set("ingress", nftables.TypeIfname)
	for _, s := range []*nftables.Set{egress, ingress} {
		s.Value = []nftables.Type{nftables.TypeVerdict}
	}
	for name, l := range g.plan.links {
		ids := slices.Clone(l.port.Groups)
		slices.Sort(ids)
		ids = slices.Compact(ids)
		out, in := "egress-"+setName(ids), "ingress-"+setName(ids)
		device := nftables.Ifname(name)
		egress.Elements = append(egress.Elements, nftables.Element{Key: device, Verdict: jumpTo(out)})
		ingress.Elements = append(ingress.Elements, nftables.Element{Key: device, Verdict: jumpTo(in)})
		if _, made := g.chains[out]; made {
			continue
		}
		for _, id := range ids {
			for _, rule := range byID[id].Egress {
				g.allow(out, rule, destination)
			}
			for _, rule := range byID[id].Ingress {
				g.allow(in, rule, source)
			}
		}
		g.drop(out, nftables.Iifname, dropEgress)
		g.drop(in, nftables.Oifname, dropIngress)
	}
	g.members()
}

// setName is the name of a set of groups, short enough for the kernel.
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

// allow adds one rule to a chain; field loads the peer's address.
func (g *groupRules) allow(chain string, rule Rule, field func(vpc.Family) nftables.Field) {
	for _, f := range families() {
		what, possible := traffic(rule, f)
		if !possible {
			continue
		}
		pass := func(peer nftables.Expr) {
			g.rule(chain, slices.Concat([]nftables.Expr{peer}, what, []nftables.Expr{verdict(nftables.Return)})...)
		}
		if rule.Group == "" {
			if vpc.FamilyOf(rule.Peer.Addr()) == f {
				pass(within(field(f), rule.Peer))
			}
			continue
		}
		for _, bits := range g.plan.lengths(f) {
			name := memberSet(rule.Group, f, bits)
			g.set(name, addrType(f))
			pass(nftables.Lookup{Key: nftables.Key{nftables.Bits(field(f), bits)}, Set: name})
		}
	}
}

func memberSet(id vpc.SecurityGroupID, f vpc.Family, bits int) string {
	return sized("members-"+string(id), f, bits)
}

// members fills the address sets of the groups that rules reference.
func (g *groupRules) members() {
	for _, l := range g.plan.links {
		for _, id := range l.port.Groups {
			for _, held := range holdings(l.port) {
				s, referred := g.sets[memberSet(id, vpc.FamilyOf(held.Addr()), held.Bits())]
				if referred {
					add(s, nftables.Addr(held.Addr()))
				}
			}
		}
	}
}

// traffic matches a rule's protocol and ports. An ICMP rule of one
// family matches no packet of the other.
func traffic(rule Rule, f vpc.Family) (match []nftables.Expr, possible bool) {
	all := rule.From == -1 && rule.To == -1
	switch rule.Protocol {
	case protocolAll:
		return nil, true
	case protocolTCP, protocolUDP, protocolSCTP:
		if all || rule.From <= 0 && rule.To >= 65535 {
			return []nftables.Expr{protocolIs(rule.Protocol)}, true
		}
		return []nftables.Expr{protocolIs(rule.Protocol), portBetween(rule.From, rule.To)}, true
	case protocolICMP, protocolICMPv6:
		if (rule.Protocol == protocolICMP) != (f == vpc.IPv4) {
			return nil, false
		}
		match = []nftables.Expr{protocolIs(rule.Protocol)}
		if rule.From != -1 {
			match = append(match, icmp(f, uint8(rule.From)))
		}
		if rule.To != -1 {
			match = append(match, icmpCode(f, uint8(rule.To)))
		}
		return match, true
	}
	return []nftables.Expr{protocolIs(rule.Protocol)}, true
}
