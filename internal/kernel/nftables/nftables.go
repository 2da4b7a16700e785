// Package nftables describes nftables configuration as plain values: tables with
// their sets, maps, chains and rules. It prints them in nft(8)'s syntax and computes
// the smallest list of changes that turns one table into another.
//
// It is pure: it opens no socket and decides nothing about packets. Producers of
// rules (core/ruleset, sim/fabric) build the values; package nfnetlink writes them to
// the kernel and reads them back as the same values.
//
// The vocabulary is that of nft(8); the constants are those of the kernel's
// include/uapi/linux/netfilter/nf_tables.h and of nftables' include/datatype.h.
package nftables

import (
	"cmp"
	"slices"
)

// Family is an address family of tables.
type Family string

// Families. A packet of either IP version passes tables of inet; ARP passes neither.
const (
	IPv4 Family = "ip"
	IPv6 Family = "ip6"
	Inet Family = "inet"
	ARP  Family = "arp"
)

// TableName identifies a table within a network namespace.
type TableName struct {
	Family Family
	Name   string
}

// Table is a table with all that is in it. Sets and chains come in any order, each
// name once.
type Table struct {
	TableName
	// Dormant tables are not consulted. Diff wakes a table that should not be dormant.
	Dormant bool
	Sets    []Set
	Chains  []Chain
}

// Set returns the set of a name, nil if there is none.
func (t *Table) Set(name string) *Set {
	i := slices.IndexFunc(t.Sets, func(s Set) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Sets[i]
}

// Chain returns the chain of a name, nil if there is none.
func (t *Table) Chain(name string) *Chain {
	i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Chains[i]
}

// Set is a set or, with Value, a map. Key and Value are concatenations of up to five
// types.
type Set struct {
	Name string
	Key  []Type
	// Value makes it a map; {TypeVerdict} makes it a verdict map.
	Value []Type
	// Interval makes every element a range, from Element.Key to Element.Last.
	Interval bool
	// Counter makes every element count the packets that matched it.
	Counter bool
	// Foreign is a property that this package does not describe. It is read from the
	// kernel and never written.
	Foreign string
	// Elements in any order. One that occurs twice is in the set once.
	Elements []Element
}

// SameType reports whether two sets differ in their elements at most.
func (s Set) SameType(o Set) bool {
	return slices.Equal(s.Key, o.Key) && slices.Equal(s.Value, o.Value) &&
		s.Interval == o.Interval && s.Counter == o.Counter && s.Foreign == o.Foreign
}

// With returns the set with other elements.
func (s Set) With(elements ...Element) Set {
	s.Elements = elements
	return s
}

// Element is a member of a set or an entry of a map. It is comparable.
type Element struct {
	Key     Data
	Last    Data    // of a range that begins with Key, in sets of intervals
	Value   Data    // in maps of data
	Verdict Verdict // in verdict maps
}

func compareElements(a, b Element) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Last, b.Last))
}

// Chain is a list of rules. With a Hook it is a base chain, which the kernel enters
// by itself; without one it is reached by jumps.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// SameHook reports whether two chains are entered at the same place.
func (c Chain) SameHook(o Chain) bool {
	if c.Hook == nil || o.Hook == nil {
		return c.Hook == o.Hook
	}
	a, b := *c.Hook, *o.Hook
	a.Policy, b.Policy = "", ""
	return a == b
}

// SamePolicy reports whether two chains do the same with a packet at their end.
func (c Chain) SamePolicy(o Chain) bool {
	return c.Hook == nil || o.Hook == nil || c.Hook.Policy.orAccept() == o.Hook.Policy.orAccept()
}

// ChainType says what a base chain may do.
type ChainType string

// Chain types.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
	Route  ChainType = "route"
)

// Point is a place in the network stack.
type Point string

// Points. ARP has Input and Output only.
const (
	Prerouting  Point = "prerouting"
	Input       Point = "input"
	Forward     Point = "forward"
	Output      Point = "output"
	Postrouting Point = "postrouting"
)

// Policy is what a base chain does with a packet that reaches its end.
type Policy string

// Policies. The empty policy is PolicyAccept.
const (
	PolicyAccept Policy = "accept"
	PolicyDrop   Policy = "drop"
)

func (p Policy) orAccept() Policy { return cmp.Or(p, PolicyAccept) }

// Hook places a base chain in the stack. Chains of one Point run by Priority, lowest
// first.
type Hook struct {
	Type     ChainType
	Point    Point
	Priority int
	Policy   Policy
}
