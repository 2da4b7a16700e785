package nftables

import "net/netip"

// Rule is a list of expressions, evaluated in order. One that does not match ends
// the rule for the packet.
type Rule struct {
	Exprs   []Expr
	Comment string
}

// NewRule returns a rule without a comment.
func NewRule(exprs ...Expr) Rule { return Rule{Exprs: exprs} }

// Commented returns the rule with a comment.
func (r Rule) Commented(text string) Rule {
	r.Comment = text
	return r
}

// Expr is one of Match, Lookup, BPF, VerdictMap, SetBits, SetFromMap, Counter, Verdict,
// Reject, SNAT, DNAT and Unknown.
type Expr interface {
	// String is the expression in nft(8)'s syntax. Expressions that print the same
	// are the same.
	String() string
}

// Op is a comparison.
type Op uint8

// Comparisons.
const (
	Equal Op = iota
	NotEqual
	Within // from Match.Value to Match.Last, both included
)

// Match compares an operand with a value. A packet without the field does not match.
type Match struct {
	Operand
	Op          Op
	Value, Last Data
}

// Operand is a field, of which Mask keeps bits. The empty mask keeps all.
type Operand struct {
	Field Field
	Mask  Data
}

// Bits is the first bits of an address field.
func Bits(f Field, bits int) Operand {
	size := f.Type().Size()
	if bits == size*8 {
		return Operand{Field: f}
	}
	return Operand{f, prefixMask(bits, size)}
}

// Eq matches a field that has a value.
func Eq(f Field, v Data) Match { return Match{Operand: Operand{Field: f}, Value: v} }

// Ne matches a field that has another value.
func Ne(f Field, v Data) Match { return Match{Operand: Operand{Field: f}, Op: NotEqual, Value: v} }

// In matches an address field within a prefix.
func In(f Field, p netip.Prefix) Match {
	return Match{Operand: Bits(f, p.Bits()), Value: Addr(p.Masked().Addr())}
}

// Between matches a field from one value to another, both included. Both are in
// network order.
func Between(f Field, first, last Data) Match {
	return Match{Operand: Operand{Field: f}, Op: Within, Value: first, Last: last}
}

// AllBits matches a mark that has all of the bits.
func AllBits(f Field, bits uint32) Match {
	return Match{Operand: Operand{f, Native(bits)}, Value: Native(bits)}
}

// AnyBits matches a mark or state that has one of the bits.
func AnyBits(f Field, bits uint32) Match {
	return Match{Operand: Operand{f, Native(bits)}, Op: NotEqual, Value: Native(0)}
}

// Routed matches if the routes of the packet's mark lead to its destination.
func Routed(yes bool) Match {
	if yes {
		return Eq(FibRouted, Native(1))
	}
	return Eq(FibRouted, Native(0))
}

// Key is a concatenation of operands that is looked up.
type Key []Operand

// KeyOf concatenates whole fields.
func KeyOf(fields ...Field) Key {
	k := make(Key, len(fields))
	for i, f := range fields {
		k[i] = Operand{Field: f}
	}
	return k
}

// Lookup matches if the key is in a set, or with Not if it is not.
type Lookup struct {
	Key Key
	Set string
	Not bool
}

// BPF matches if a program of type SOCKET_FILTER returns other than 0 for the packet, of
// which it sees the network header first. The kernel opens the program's pin when the rule is
// added, and keeps that program: another one needs another path. It is the match bpf of
// xtables, which nft(8) prints without the path.
type BPF struct {
	Path string // at most 511 bytes
}

// VerdictMap ends the rule with the verdict that a map has for the key. Without an
// entry the packet does not match.
type VerdictMap struct {
	Key Key
	Map string
}

// SetBits sets bits of MetaMark or CtMark, clears others, and leaves the rest.
type SetBits struct {
	Field Field
	Bits  uint32 // not 0
	Clear uint32 // none of Bits
}

// SetFromMap sets MetaMark or CtMark to what a map has for the key. Without an entry
// the packet does not match.
type SetFromMap struct {
	Field Field
	Key   Key
	Map   string
}

// Counter counts packets. The count is no part of the configuration.
type Counter struct{}

// VerdictKind is what becomes of a packet.
type VerdictKind string

// Verdicts. Jump and Goto name a chain; after Jump, the end of that chain leads back.
const (
	Accept VerdictKind = "accept"
	Drop   VerdictKind = "drop"
	Return VerdictKind = "return"
	Jump   VerdictKind = "jump"
	Goto   VerdictKind = "goto"
)

// Verdict ends a rule.
type Verdict struct {
	Kind  VerdictKind
	Chain string
}

// Rejection is how the sender of a rejected packet is notified.
type Rejection string

// Rejections.
const (
	TCPReset        Rejection = "tcp reset"
	AdminProhibited Rejection = "icmpx admin-prohibited" // ICMP or ICMPv6
	PortUnreachable Rejection = "icmpx port-unreachable" // ICMP or ICMPv6
)

// Reject drops a packet and notifies its sender.
type Reject struct{ With Rejection }

// SNAT gives a connection another source address. It belongs in chains of type NAT,
// which see the first packet of a connection only.
type SNAT struct {
	To netip.Addr
	// Random chooses the source port by a hash, FullyRandom by a random number.
	// With neither, the port stays where it is free.
	Random, FullyRandom bool
}

// DNAT gives a connection another destination address. It belongs in chains of type NAT.
type DNAT struct{ To netip.Addr }

// Unknown is an expression that this package does not describe. It is read from the
// kernel and never written, so that a rule with one is never a wanted rule.
type Unknown struct{ Name string }
