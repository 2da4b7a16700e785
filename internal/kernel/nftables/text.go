package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// String prints the table as nft(8) reads it, with sets and chains in their order
// and elements sorted.
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s {\n", t.TableName)
	if t.Dormant {
		b.WriteString("\tflags dormant\n")
	}
	for _, s := range t.Sets {
		s.print(&b)
	}
	for _, c := range t.Chains {
		c.print(&b)
	}
	b.WriteString("}\n")
	return b.String()
}

// String is the family and the name.
func (n TableName) String() string { return string(n.Family) + " " + n.Name }

func (s Set) print(b *strings.Builder) {
	fmt.Fprintf(b, "\t%s %s {\n\t\ttype %s\n", s.kind(), s.Name, s.typeText())
	if s.Interval {
		b.WriteString("\t\tflags interval\n")
	}
	if s.Counter {
		b.WriteString("\t\tcounter\n")
	}
	if s.Foreign != "" {
		fmt.Fprintf(b, "\t\t# %s\n", s.Foreign)
	}
	if len(s.Elements) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(s.elementTexts(), ",\n\t\t\t     "))
	}
	b.WriteString("\t}\n")
}

func (s Set) kind() string {
	if s.Value != nil {
		return "map"
	}
	return "set"
}

func (s Set) typeText() string {
	if s.Value == nil {
		return typeNames(s.Key)
	}
	return typeNames(s.Key) + " : " + typeNames(s.Value)
}

func typeNames(types []Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.String()
	}
	return strings.Join(names, " . ")
}

// elementTexts are the elements, sorted by key.
func (s Set) elementTexts() []string {
	sorted := slices.SortedFunc(slices.Values(s.Elements), compareElements)
	texts := make([]string, len(sorted))
	for i, e := range sorted {
		texts[i] = s.elementText(e)
	}
	return texts
}

// elementText prints an element of the set.
func (s Set) elementText(e Element) string {
	text := e.Key.text(s.Key...)
	if s.Interval {
		text = rangeText(e.Key, e.Last, s.Key)
	}
	switch {
	case e.Verdict != Verdict{}:
		return text + " : " + e.Verdict.String()
	case e.Value != "":
		return text + " : " + e.Value.text(s.Value...)
	default:
		return text
	}
}

func (c Chain) print(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.Name)
	if c.Hook != nil {
		fmt.Fprintf(b, "\t\t%s\n", c.Hook)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
}

func (h Hook) String() string {
	return fmt.Sprintf("type %s hook %s priority %d; policy %s;", h.Type, h.Point, h.Priority, h.Policy.orAccept())
}

// String is the rule as nft(8) reads it. Rules that print the same are the same.
func (r Rule) String() string {
	words := make([]string, 0, len(r.Exprs)+1)
	for _, e := range r.Exprs {
		words = append(words, e.String())
	}
	if r.Comment != "" {
		words = append(words, fmt.Sprintf("comment %q", r.Comment))
	}
	return strings.Join(words, " ")
}

func (m Match) String() string {
	types := m.Field.Type()
	value := m.Value.text(types)
	switch {
	case m.Op == Within:
		return fmt.Sprintf("%s %s-%s", m.Operand, value, m.Last.text(types))
	case m.Field == CtState && m.Op == NotEqual && m.Value == Native(0):
		return fmt.Sprintf("%s %s", m.Field, m.Mask.text(types))
	case m.isPrefix():
		bits, _ := maskLength(m.Mask)
		return fmt.Sprintf("%s %s%s/%d", m.Field, m.Op, value, bits)
	case m.Mask != "" && m.Op == Equal:
		return fmt.Sprintf("%s == %s", m.Operand, value)
	default:
		return fmt.Sprintf("%s %s%s", m.Operand, m.Op, value)
	}
}

func (m Match) isPrefix() bool {
	t := m.Field.Type()
	_, ok := maskLength(m.Mask)
	return ok && m.Mask != "" && (t == TypeIPv4 || t == TypeIPv6) && m.Op != Within && m.Value.And(m.Mask) == m.Value
}

// String is the operator as it stands before a value.
func (o Op) String() string {
	if o == NotEqual {
		return "!= "
	}
	return ""
}

func (o Operand) String() string {
	if o.Mask == "" {
		return o.Field.String()
	}
	return fmt.Sprintf("%s & %s", o.Field, o.Mask.text(o.Field.Type()))
}

func (k Key) String() string {
	names := make([]string, len(k))
	for i, o := range k {
		names[i] = o.String()
	}
	return strings.Join(names, " . ")
}

func (l Lookup) String() string {
	not := ""
	if l.Not {
		not = "!= "
	}
	return fmt.Sprintf("%s %s@%s", l.Key, not, l.Set)
}

func (b BPF) String() string { return fmt.Sprintf("xt match bpf %q", b.Path) }

func (v VerdictMap) String() string { return fmt.Sprintf("%s vmap @%s", v.Key, v.Map) }

func (s SetBits) String() string {
	if s.Clear != 0 {
		return fmt.Sprintf("%s set %s & 0x%08x | 0x%08x", s.Field, s.Field, ^s.Clear, s.Bits)
	}
	return fmt.Sprintf("%s set %s | 0x%08x", s.Field, s.Field, s.Bits)
}

func (s SetFromMap) String() string { return fmt.Sprintf("%s set %s map @%s", s.Field, s.Key, s.Map) }

func (Counter) String() string { return "counter" }

func (v Verdict) String() string {
	if v.Chain == "" {
		return string(v.Kind)
	}
	return string(v.Kind) + " " + v.Chain
}

func (r Reject) String() string { return "reject with " + string(r.With) }

func (s SNAT) String() string {
	text := fmt.Sprintf("snat %s to %s", familyOf(s.To), s.To)
	switch {
	case s.FullyRandom && s.Random:
		return text + " random,fully-random"
	case s.FullyRandom:
		return text + " fully-random"
	case s.Random:
		return text + " random"
	default:
		return text
	}
}

func (d DNAT) String() string { return fmt.Sprintf("dnat %s to %s", familyOf(d.To), d.To) }

// familyOf is the family of a translation to an address.
func familyOf(to netip.Addr) string {
	if to.Is6() {
		return "ip6"
	}
	return "ip"
}

func (u Unknown) String() string { return "# unknown: " + u.Name }

// String is the type's name in nft(8)'s syntax.
func (t Type) String() string {
	switch t {
	case TypeVerdict:
		return "verdict"
	case TypeIPv4:
		return "ipv4_addr"
	case TypeIPv6:
		return "ipv6_addr"
	case TypeEther:
		return "ether_addr"
	case TypeProto:
		return "inet_proto"
	case TypePort:
		return "inet_service"
	case TypeMark:
		return "mark"
	case TypeIfname:
		return "ifname"
	default:
		return fmt.Sprintf("type#%d", uint8(t))
	}
}

// text prints a value of the types, or its bytes if it is not of them.
func (d Data) text(types ...Type) string {
	parts, ok := d.split(types...)
	if !ok {
		return d.hex()
	}
	words := make([]string, len(parts))
	for i, p := range parts {
		words[i] = p.textOf(types[i])
	}
	return strings.Join(words, " . ")
}

func (d Data) hex() string { return fmt.Sprintf("0x%x", string(d)) }

// textOf prints a value of one type; it has the size of the type.
func (d Data) textOf(t Type) string {
	b := []byte(d)
	switch t {
	case TypeIfname:
		return fmt.Sprintf("%q", strings.TrimRight(string(d), "\x00"))
	case TypeEther:
		return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5])
	case TypeIPv4, TypeIPv6:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case TypePort:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case TypeMark:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	case TypeDevgroup:
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	case TypeICMP, TypeICMPv6, TypeICMPCode, TypeICMPv6Code:
		return fmt.Sprint(b[0])
	default:
		return d.named(t)
	}
}

// named prints a value of a type that has names for its values.
func (d Data) named(t Type) string {
	names := map[Data]string{}
	switch t {
	case TypeProto:
		names = map[Data]string{Proto(ICMP): "icmp", Proto(TCP): "tcp", Proto(UDP): "udp", Proto(ICMPv6): "ipv6-icmp", Proto(SCTP): "sctp"}
	case TypeNFProto:
		names = map[Data]string{NFProtoIPv4(): "ipv4", NFProtoIPv6(): "ipv6"}
	case TypeCtDirection:
		names = map[Data]string{CtOriginal(): "original", CtReply(): "reply"}
	case TypeFibAddr:
		names = map[Data]string{Local(): "local"}
	case TypeBoolean:
		names = map[Data]string{Native(0): "missing", Native(1): "exists"}
	case TypeHardware:
		names = map[Data]string{EtherHardware(): "ether"}
	case TypeCtState:
		return ctStateText(binary.NativeEndian.Uint32([]byte(d)))
	default:
	}
	if name, ok := names[d]; ok {
		return name
	}
	if len(d) == 1 {
		return fmt.Sprint(d[0])
	}
	return d.hex()
}

// ctStateText prints the bits of a connection's state.
func ctStateText(bits uint32) string {
	var names []string
	for i, name := range []string{"invalid", "established", "related", "new"} {
		if bits&(1<<i) != 0 {
			names = append(names, name)
			bits &^= 1 << i
		}
	}
	if bits != 0 {
		names = append(names, fmt.Sprintf("0x%x", bits))
	}
	return strings.Join(names, ",")
}

// rangeText prints a range, as a prefix where it is one.
func rangeText(first, last Data, types []Type) string {
	a, okA := first.split(types...)
	b, okB := last.split(types...)
	if !okA || !okB {
		return first.hex() + "-" + last.hex()
	}
	words := make([]string, len(types))
	for i, t := range types {
		words[i] = a[i].textOf(t)
		bits, prefix := prefixLength(a[i], b[i])
		switch {
		case a[i] == b[i] && len(types) > 1:
		case prefix && (t == TypeIPv4 || t == TypeIPv6):
			words[i] += fmt.Sprintf("/%d", bits)
		case a[i] != b[i]:
			words[i] += "-" + b[i].textOf(t)
		}
	}
	return strings.Join(words, " . ")
}
