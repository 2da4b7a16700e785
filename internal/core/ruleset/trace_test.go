package ruleset

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Packet is a packet as it comes to a node.
type Packet struct {
	InLink string // "lo" for what the node sends to itself
	MAC    vpc.MAC
	Src    netip.Addr
	Dst    netip.Addr
	TCP    bool
	// ARP, with Src and Sender, makes it an ARP message.
	ARP    bool
	Sender vpc.MAC // the hardware address an ARP message names
	// Reply packets belong to a connection opened from the other side.
	Reply bool
	// Mark that it has from kube-proxy.
	Mark uint32
	// ConnMark is the connection's mark before the packet.
	ConnMark uint32
}

// Node is what decides about a packet besides the ruleset.
type Node struct {
	// Local addresses, by the link that has them.
	Local map[string][]netip.Addr
	// Groups of links; 0 for those it does not name.
	Groups map[string]uint32
	// DNAT translates destinations at priority −100, as kube-proxy does.
	DNAT map[netip.Addr]netip.Addr
	// Route names the link a forwarded packet leaves by, given its mark.
	Route func(dst netip.Addr, mark uint32) string
	// Policy is the pinned program's verdict of a packet between these addresses.
	Policy func(src, dst netip.Addr) bool
}

// Outcome is where a packet ends.
type Outcome string

// Outcomes.
const (
	Delivered Outcome = "delivered" // to the node itself
	Forwarded Outcome = "forwarded"
	Dropped   Outcome = "dropped"
	Reset     Outcome = "reset"
	Refused   Outcome = "refused"
)

// Fate is the end of a packet and what was done to it.
type Fate struct {
	Outcome  Outcome
	Src      netip.Addr // as it leaves
	Dst      netip.Addr
	OutLink  string
	Mark     uint32
	ConnMark uint32
	By       string   // the rule that ended it: "chain: rule"
	Why      []string // every rule that matched, in order
}

// Trace follows a packet through the ruleset in memory, so that tests can state the
// fates of packets. It returns an error for an expression it cannot evaluate.
func (rs Ruleset) Trace(n Node, p Packet) (Fate, error) {
	t := tracer{rs: rs, node: n, p: p, f: Fate{Src: p.Src, Dst: p.Dst, Mark: p.Mark, ConnMark: p.ConnMark}}
	if p.ARP {
		return t.end(t.hooks(nftables.ARP, nftables.Input), Delivered)
	}
	if done := t.prerouting(); done || t.err != nil {
		return t.f, t.err
	}
	if t.isLocal(t.f.Dst, "") {
		return t.end(t.hooks(nftables.Inet, nftables.Input), Delivered)
	}
	t.f.OutLink = n.Route(t.f.Dst, t.f.Mark)
	if t.hooks(nftables.Inet, nftables.Forward) || t.hooks(nftables.Inet, nftables.Postrouting) {
		return t.f, t.err
	}
	return t.end(false, Forwarded)
}

type tracer struct {
	rs   Ruleset
	node Node
	p    Packet
	f    Fate
	err  error
}

func (t *tracer) end(done bool, otherwise Outcome) (Fate, error) {
	if !done {
		t.f.Outcome = otherwise
	}
	return t.f, t.err
}

// dnatPriority is where kube-proxy translates destinations.
const dnatPriority = -100

func (t *tracer) prerouting() bool {
	translated := false
	for _, c := range t.at(nftables.Inet, nftables.Prerouting) {
		if !translated && c.Hook.Priority > dnatPriority {
			t.translate()
			translated = true
		}
		if t.base(nftables.Inet, c) {
			return true
		}
	}
	if !translated {
		t.translate()
	}
	return false
}

func (t *tracer) translate() {
	if to, ok := t.node.DNAT[t.f.Dst]; ok && !t.p.Reply {
		t.f.Dst = to
	}
}

// at returns the base chains of a hook, first to run first.
func (t *tracer) at(f nftables.Family, point nftables.Point) []nftables.Chain {
	var list []nftables.Chain
	for _, c := range t.rs.table(f).Chains {
		if c.Hook != nil && c.Hook.Point == point {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b nftables.Chain) int { return a.Hook.Priority - b.Hook.Priority })
	return list
}

// hooks runs every base chain of a hook and reports whether the packet ended.
func (t *tracer) hooks(f nftables.Family, point nftables.Point) bool {
	for _, c := range t.at(f, point) {
		if t.base(f, c) {
			return true
		}
	}
	return t.err != nil
}

func (t *tracer) base(f nftables.Family, c nftables.Chain) bool {
	if c.Hook.Type == nftables.NAT && t.p.Reply {
		return false // NAT chains see the first packet of a connection only
	}
	return t.run(f, c)
}

// run runs a chain and reports whether the packet ended in it.
func (t *tracer) run(f nftables.Family, c nftables.Chain) bool {
	for _, r := range c.Rules {
		where := c.Name + ": " + r.String()
		v, matched := t.rule(f, r)
		if t.err != nil {
			t.err = fmt.Errorf("%s: %w", where, t.err)
			return true
		}
		if matched {
			t.f.Why = append(t.f.Why, where)
		}
		if matched && v.kind == nftables.Jump {
			if t.jump(f, v.chain, where) {
				return true
			}
			continue
		}
		if matched && v != (end{}) {
			return t.verdict(f, v, where)
		}
	}
	return false
}

func (t *tracer) verdict(f nftables.Family, v end, where string) bool {
	switch v.kind {
	case nftables.Return, nftables.Accept:
		return false
	case nftables.Goto:
		return t.jump(f, v.chain, where)
	default:
		t.f.Outcome, t.f.By = v.outcome, where
		return true
	}
}

func (t *tracer) jump(f nftables.Family, chain, where string) bool {
	next := t.rs.table(f).Chain(chain)
	if next == nil {
		t.err = fmt.Errorf("%s: there is no such chain", where)
		return true
	}
	return t.run(f, *next)
}

// end is what a rule leads to: a verdict, the outcome of the packet, or neither.
type end struct {
	kind    nftables.VerdictKind
	chain   string
	outcome Outcome
}

// rule evaluates the expressions of a rule. It reports whether all of them matched.
func (t *tracer) rule(f nftables.Family, r nftables.Rule) (end, bool) {
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case nftables.Counter:
		case nftables.Match:
			if !t.match(e) {
				return end{}, false
			}
		case nftables.Lookup:
			if t.lookup(f, e) == e.Not {
				return end{}, false
			}
		case nftables.BPF:
			if !t.node.Policy(t.f.Src, t.f.Dst) {
				return end{}, false
			}
		case nftables.SetBits:
			if e.Field == nftables.CtMark {
				t.f.ConnMark |= e.Bits
			} else {
				t.f.Mark = t.f.Mark&^e.Clear | e.Bits
			}
		case nftables.SNAT:
			t.f.Src = e.To
			return end{kind: nftables.Accept}, true
		case nftables.Reject:
			if e.With == nftables.TCPReset {
				return end{outcome: Reset}, true
			}
			return end{outcome: Refused}, true
		case nftables.Verdict:
			if e.Kind == nftables.Drop {
				return end{outcome: Dropped}, true
			}
			return end{kind: e.Kind, chain: e.Chain}, true
		default:
			t.err = fmt.Errorf("expression %T cannot be traced", e)
			return end{}, false
		}
	}
	return end{}, true
}

// match compares a field; a packet without the field does not match.
func (t *tracer) match(m nftables.Match) bool {
	have, ok := t.field(m.Field)
	if !ok {
		return false
	}
	if m.Mask != "" {
		have = have.And(m.Mask)
	}
	switch m.Op {
	case nftables.Equal:
		return have == m.Value
	case nftables.NotEqual:
		return have != m.Value
	default:
		t.err = fmt.Errorf("%s cannot be traced", m)
		return false
	}
}

// lookup reports whether the packet's key is in the set. A packet without one of the
// fields matches neither the lookup nor its opposite.
func (t *tracer) lookup(f nftables.Family, l nftables.Lookup) bool {
	set := t.rs.table(f).Set(l.Set)
	if set == nil {
		t.err = fmt.Errorf("there is no set %s", l.Set)
		return l.Not
	}
	parts := make([]nftables.Data, len(l.Key))
	for i, o := range l.Key {
		part, ok := t.field(o.Field)
		if !ok {
			return l.Not
		}
		parts[i] = part
	}
	key := nftables.Concat(parts...)
	return slices.ContainsFunc(set.Elements, func(e nftables.Element) bool {
		if set.Interval {
			return e.Key <= key && key <= e.Last
		}
		return e.Key == key
	})
}

// field is the packet's value of a field, false if it has none.
func (t *tracer) field(f nftables.Field) (nftables.Data, bool) {
	switch f {
	case nftables.Iifname:
		return nftables.Ifname(t.p.InLink), true
	case nftables.Iifgroup:
		return nftables.Native(t.node.Groups[t.p.InLink]), true
	case nftables.Oifgroup:
		return nftables.Native(t.node.Groups[t.f.OutLink]), true
	case nftables.L4Proto:
		if t.p.TCP {
			return nftables.Proto(nftables.TCP), true
		}
		return nftables.Proto(nftables.UDP), true
	case nftables.EtherSaddr:
		return nftables.Ether(t.p.MAC), true
	case nftables.ARPSaddrEther:
		return nftables.Ether(t.p.Sender), true
	case nftables.CtDirection:
		if t.p.Reply {
			return nftables.CtReply(), true
		}
		return nftables.CtOriginal(), true
	case nftables.MetaMark:
		return nftables.Native(t.f.Mark), true
	case nftables.CtMark:
		return nftables.Native(t.f.ConnMark), true
	case nftables.FibSaddrType:
		return t.addressType(t.f.Src, ""), true
	case nftables.FibDaddrType:
		return t.addressType(t.f.Dst, ""), true
	case nftables.FibDaddrIifType:
		return t.addressType(t.f.Dst, t.p.InLink), true
	default:
		a, v4 := t.address(f)
		return nftables.Addr(a), a.IsValid() && a.Is4() == v4
	}
}

// addressType is Local for an address of the node, on the link if one is named.
func (t *tracer) addressType(a netip.Addr, link string) nftables.Data {
	if t.isLocal(a, link) {
		return nftables.Local()
	}
	const unicast = 1 // RTN_UNICAST
	return nftables.Native(unicast)
}

func (t *tracer) isLocal(a netip.Addr, link string) bool {
	for name, list := range t.node.Local {
		if (link == "" || link == name) && slices.Contains(list, a) {
			return true
		}
	}
	return false
}

// address is the packet's address in a field, and whether the field is of IPv4.
func (t *tracer) address(f nftables.Field) (a netip.Addr, v4 bool) {
	switch f {
	case nftables.IPSaddr, nftables.ARPSaddrIP:
		return t.f.Src, true
	case nftables.IPDaddr:
		return t.f.Dst, true
	case nftables.IP6Saddr:
		return t.f.Src, false
	case nftables.IP6Daddr:
		return t.f.Dst, false
	default:
		t.err = fmt.Errorf("field %s cannot be traced", f)
		return netip.Addr{}, false
	}
}
