package ruleset

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Packet is what Trace follows: one packet as it comes to a node.
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
	// ConnMark is the connection's mark before the packet.
	ConnMark uint32
}

// Node is what decides about a packet besides our rules.
type Node struct {
	// Local addresses, by the link that has them.
	Local map[string][]netip.Addr
	// Groups of links; 0 where none is said.
	Groups map[string]uint32
	// DNAT translates destinations at priority −100, as kube-proxy does.
	DNAT map[netip.Addr]netip.Addr
	// Route names the link a forwarded packet leaves by, given its mark.
	Route func(dst netip.Addr, mark uint32) string
}

// Outcome is what became of a packet.
type Outcome string

// Outcomes.
const (
	Delivered Outcome = "delivered" // to the node itself
	Forwarded Outcome = "forwarded"
	Dropped   Outcome = "dropped"
	Reset     Outcome = "reset"
	Refused   Outcome = "refused"
)

// Fate is the end of a packet's way.
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

// Trace follows a packet through the ruleset in memory. It is a second reading of
// the same values, by which tests state fates of packets. It errs on a rule it does
// not know.
func (rs Ruleset) Trace(n Node, p Packet) (Fate, error) {
	t := tracer{rs: rs, node: n, p: p, f: Fate{Src: p.Src, Dst: p.Dst, ConnMark: p.ConnMark}}
	if p.ARP {
		return t.end(t.hooks(ARP, Input), Delivered)
	}
	if done := t.prerouting(); done || t.err != nil {
		return t.f, t.err
	}
	if t.isLocal(t.f.Dst, "") {
		return t.end(t.hooks(Inet, Input), Delivered)
	}
	t.f.OutLink = n.Route(t.f.Dst, t.f.Mark)
	if t.hooks(Inet, Forward) || t.hooks(Inet, Postrouting) {
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
	for _, c := range t.at(Inet, Prerouting) {
		if !translated && c.Hook.Priority > dnatPriority {
			t.translate()
			translated = true
		}
		if t.base(Inet, c) {
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
func (t *tracer) at(f Family, point Point) []Chain {
	var list []Chain
	for _, table := range t.rs.Tables {
		for _, c := range table.Chains {
			if table.Family == f && c.Hook != nil && c.Hook.Point == point {
				list = append(list, c)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Chain) int { return a.Hook.Priority - b.Hook.Priority })
	return list
}

// hooks runs every base chain of a hook and reports whether the packet ended.
func (t *tracer) hooks(f Family, point Point) bool {
	for _, c := range t.at(f, point) {
		if t.base(f, c) {
			return true
		}
	}
	return t.err != nil
}

func (t *tracer) base(f Family, c Chain) bool {
	if c.Hook.Type == NAT && t.p.Reply {
		return false // NAT chains see the first packet of a connection only
	}
	return t.run(f, c)
}

// run runs a chain and reports whether the packet ended in it.
func (t *tracer) run(f Family, c Chain) bool {
	for _, r := range c.Rules {
		matched, err := t.matches(f, r)
		if err != nil {
			t.err = fmt.Errorf("chain %s: rule %q: %w", c.Name, r, err)
			return true
		}
		if !matched {
			continue
		}
		where := c.Name + ": " + r.String()
		t.f.Why = append(t.f.Why, where)
		switch s := r.Then.(type) {
		case Return:
			return false
		case Goto:
			next, err := t.chain(f, s.Chain)
			if err != nil {
				t.err = err
				return true
			}
			return t.run(f, next)
		case Drop:
			return t.ended(Dropped, where)
		case Reject:
			if s.Reset {
				return t.ended(Reset, where)
			}
			return t.ended(Refused, where)
		case MarkConn:
			t.f.ConnMark |= s.Bits
		case MarkPacket:
			t.f.Mark |= s.Bits
		case SNAT:
			t.f.Src = s.To
			return false
		default:
			t.err = fmt.Errorf("chain %s: statement %T is not known here", c.Name, s)
			return true
		}
	}
	return false
}

func (t *tracer) ended(o Outcome, by string) bool {
	t.f.Outcome, t.f.By = o, by
	return true
}

func (t *tracer) chain(f Family, name string) (Chain, error) {
	for _, table := range t.rs.Tables {
		for _, c := range table.Chains {
			if table.Family == f && c.Name == name {
				return c, nil
			}
		}
	}
	return Chain{}, fmt.Errorf("table %s has no chain %s", f, name)
}

func (t *tracer) matches(f Family, r Rule) (bool, error) {
	for _, c := range r.If {
		ok, err := t.meets(f, c)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (t *tracer) meets(f Family, c Condition) (bool, error) {
	switch c := c.(type) {
	case Member:
		return t.member(f, c)
	case InGroup:
		return t.node.Groups[t.p.InLink] == c.Group, nil
	case OutGroup:
		return t.node.Groups[t.f.OutLink] == c.Group, nil
	case LinkIs:
		return (t.p.InLink == c.Name) != c.Not, nil
	case AddressIs:
		a, ok := t.address(c.Field)
		return ok && a == c.Addr, nil
	case LocalDestination:
		on := ""
		if c.OnLink {
			on = t.p.InLink
		}
		return t.isLocal(t.f.Dst, on), nil
	case Original:
		return !t.p.Reply, nil
	case ConnMark:
		return t.f.ConnMark&c.Bits == c.Bits, nil
	case TCP:
		return t.p.TCP, nil
	default:
		return false, fmt.Errorf("condition %T is not known here", c)
	}
}

func (t *tracer) isLocal(a netip.Addr, link string) bool {
	for name, list := range t.node.Local {
		if (link == "" || link == name) && slices.Contains(list, a) {
			return true
		}
	}
	return false
}

// address returns a field's address, false if the packet has no such field.
func (t *tracer) address(f Field) (netip.Addr, bool) {
	a, v4 := t.f.Src, true
	switch f {
	case IPv4Dst:
		a = t.f.Dst
	case IPv6Src:
		v4 = false
	case IPv6Dst:
		a, v4 = t.f.Dst, false
	case IPv4Src, ARPIP:
	default:
		return netip.Addr{}, false
	}
	return a, a.Is4() == v4
}

// member looks the packet up as an element.
func (t *tracer) member(f Family, m Member) (bool, error) {
	set := t.rs.set(f, m.Set)
	if set == nil {
		return false, fmt.Errorf("table %s has no set %s", f, m.Set)
	}
	key := Element{Family: f, Set: m.Set}
	for _, field := range m.Fields {
		switch field {
		case InLink:
			key.Link = t.p.InLink
		case EtherSrc:
			key.MAC = t.p.MAC
		case ARPEther:
			key.MAC = t.p.Sender
		default:
			a, ok := t.address(field)
			if !ok {
				return false, nil // a condition on a field that is not there is not met
			}
			key.Addr = a
		}
	}
	in := slices.ContainsFunc(set.Elements, func(e Element) bool {
		if set.Interval {
			return e.Addr.Compare(key.Addr) <= 0 && key.Addr.Compare(e.To) <= 0
		}
		return e == key
	})
	return in != m.Not, nil
}
