package ruleset

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// String prints the ruleset as nft(8) reads it.
func (rs Ruleset) String() string {
	var b strings.Builder
	for i, t := range rs.Tables {
		if i > 0 {
			b.WriteByte('\n')
		}
		t.print(&b)
	}
	return b.String()
}

func (t Table) print(b *strings.Builder) {
	fmt.Fprintf(b, "table %s %s {\n", t.Family, hostnet.Table)
	for _, s := range t.Sets {
		s.print(b)
	}
	for _, c := range t.Chains {
		c.print(b)
	}
	b.WriteString("}\n")
}

func (s Set) print(b *strings.Builder) {
	names := make([]string, len(s.Key))
	for i, k := range s.Key {
		names[i] = [...]string{"ifname", "ether_addr", "ipv4_addr", "ipv6_addr"}[k]
	}
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.Name, strings.Join(names, " . "))
	if s.Interval {
		b.WriteString("\t\tflags interval\n")
	}
	if len(s.Elements) > 0 {
		list := make([]string, len(s.Elements))
		for i, e := range s.Elements {
			list[i] = e.text(s)
		}
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(list, ",\n\t\t\t     "))
	}
	b.WriteString("\t}\n")
}

func (e Element) text(s Set) string {
	if s.Interval {
		return rangeText(e.Addr, e.To)
	}
	parts := make([]string, len(s.Key))
	for i, k := range s.Key {
		switch k {
		case KeyLink:
			parts[i] = fmt.Sprintf("%q", e.Link)
		case KeyMAC:
			parts[i] = e.MAC.String()
		case KeyIPv4, KeyIPv6:
			parts[i] = e.Addr.String()
		}
	}
	return strings.Join(parts, " . ")
}

// String is the element with its set, for logs.
func (e Element) String() string {
	var parts []string
	if e.Link != "" {
		parts = append(parts, e.Link)
	}
	if e.MAC != [6]byte{} {
		parts = append(parts, e.MAC.String())
	}
	if e.To.IsValid() {
		parts = append(parts, rangeText(e.Addr, e.To))
	} else if e.Addr.IsValid() {
		parts = append(parts, e.Addr.String())
	}
	return fmt.Sprintf("%s %s: %s", e.Family, e.Set, strings.Join(parts, " . "))
}

// rangeText is a prefix where the range is one.
func rangeText(first, last netip.Addr) string {
	for bits := range first.BitLen() + 1 {
		p := netip.PrefixFrom(first, bits)
		if p.Masked().Addr() == first && vpc.Last(p) == last {
			return p.String()
		}
	}
	return first.String() + "-" + last.String()
}

func (c Chain) print(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if h := c.Hook; h != nil {
		fmt.Fprintf(b, "\t\ttype %s hook %s priority %d; policy accept;\n", h.Type, h.Point, h.Priority)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}

// String is the rule as nft(8) reads it.
func (r Rule) String() string {
	var words []string
	for _, c := range r.If {
		words = append(words, conditionText(c))
	}
	if r.Count {
		words = append(words, "counter")
	}
	words = append(words, statementText(r.Then))
	if r.Comment != "" {
		words = append(words, fmt.Sprintf("comment %q", r.Comment))
	}
	return strings.Join(words, " ")
}

func (f Field) String() string {
	return [...]string{"iifname", "ether saddr", "ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr", "arp saddr ether", "arp saddr ip"}[f]
}

func conditionText(c Condition) string {
	not := func(n bool) string {
		if n {
			return "!= "
		}
		return ""
	}
	switch c := c.(type) {
	case Member:
		names := make([]string, len(c.Fields))
		for i, f := range c.Fields {
			names[i] = f.String()
		}
		return fmt.Sprintf("%s %s@%s", strings.Join(names, " . "), not(c.Not), c.Set)
	case InGroup:
		return fmt.Sprintf("iifgroup %d", c.Group)
	case OutGroup:
		return fmt.Sprintf("oifgroup %d", c.Group)
	case LinkIs:
		return fmt.Sprintf("iifname %s%q", not(c.Not), c.Name)
	case AddressIs:
		return fmt.Sprintf("%s %s", c.Field, c.Addr)
	case LocalDestination:
		if c.OnLink {
			return "fib daddr . iif type local"
		}
		return "fib daddr type local"
	case Original:
		return "ct direction original"
	case ConnMark:
		return fmt.Sprintf("ct mark & 0x%08x == 0x%08x", c.Bits, c.Bits)
	case TCP:
		return "meta l4proto tcp"
	default:
		return fmt.Sprintf("<%T>", c)
	}
}

func statementText(s Statement) string {
	switch s := s.(type) {
	case Drop:
		return "drop"
	case Return:
		return "return"
	case Goto:
		return "goto " + s.Chain
	case MarkConn:
		return fmt.Sprintf("ct mark set ct mark | 0x%08x", s.Bits)
	case MarkPacket:
		return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bits)
	case Reject:
		if s.Reset {
			return "reject with tcp reset"
		}
		return "reject with icmpx admin-prohibited"
	case SNAT:
		switch s.Random {
		case RandomFully:
			return fmt.Sprintf("snat ip to %s fully-random", s.To)
		case RandomHash:
			return fmt.Sprintf("snat ip to %s random", s.To)
		default:
			return fmt.Sprintf("snat ip to %s", s.To)
		}
	default:
		return fmt.Sprintf("<%T>", s)
	}
}
