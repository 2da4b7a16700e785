// Package ruleset is our nftables configuration as values: which packets of pods
// are dropped, marked or translated. It compiles a node's settings and pods into
// tables, prints them as nft(8) reads them, and says which set elements one pod
// needs. Its tests trace packets through them in memory.
//
// It decides and touches nothing; edge/nft makes the kernel agree. Chains are
// static and know no pod; pods are elements of sets, so that adding one is one
// small message.
package ruleset

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Ruleset is everything we have in nftables.
type Ruleset struct {
	Tables []Table
}

// Family is an nftables address family.
type Family string

// Families in use. Packets of both IP versions pass inet; ARP passes neither.
const (
	Inet Family = "inet"
	ARP  Family = "arp"
)

// Table is a table of ours; it is called hostnet.Table in every family.
type Table struct {
	Family Family
	Sets   []Set
	Chains []Chain
}

// KeyType is the type of one part of a set's key.
type KeyType uint8

// Key types.
const (
	KeyLink KeyType = iota // ifname
	KeyMAC                 // ether_addr
	KeyIPv4                // ipv4_addr
	KeyIPv6                // ipv6_addr
)

// Set is a named set. Elements come in the order of Compile; the kernel's has none.
type Set struct {
	Name     string
	Key      []KeyType // more than one: a concatenation
	Interval bool      // elements are address ranges
	Elements []Element
}

// Element is a member of a set. Which fields count follows from the set's key; it
// is comparable.
type Element struct {
	Family Family // of the set's table
	Set    string
	Link   string
	MAC    vpc.MAC
	Addr   netip.Addr
	// To is the last address of a range that begins with Addr, in sets of
	// intervals.
	To netip.Addr
}

// Chain is a chain; with a Hook it is a base chain, whose policy is accept.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// ChainType is what a base chain may do.
type ChainType string

// Chain types.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
)

// Point is where in the stack a base chain sits.
type Point string

// Hook points.
const (
	Prerouting  Point = "prerouting"
	Input       Point = "input"
	Forward     Point = "forward"
	Postrouting Point = "postrouting"
)

// Hook ties a base chain to the stack.
type Hook struct {
	Type     ChainType
	Point    Point
	Priority int // one of hostnet.Prio*
}

// Rule does Then to packets that meet every condition.
type Rule struct {
	If   []Condition
	Then Statement
	// Count makes the rule count packets: each rule that drops does.
	Count   bool
	Comment string
}

// Field is a part of a packet.
type Field uint8

// Fields. Naming an IPv4 field implies an IPv4 packet, and so on.
const (
	InLink   Field = iota // iifname
	EtherSrc              // ether saddr
	IPv4Src               // ip saddr
	IPv4Dst               // ip daddr
	IPv6Src               // ip6 saddr
	IPv6Dst               // ip6 daddr
	ARPEther              // arp saddr ether: the sender the message names
	ARPIP                 // arp saddr ip
)

// Condition is one of Member, InGroup, OutGroup, LinkIs, AddressIs, LocalDestination, Original,
// ConnMark and TCP.
type Condition interface{ condition() }

// Member looks the fields up in a set.
type Member struct {
	Fields []Field
	Set    string
	Not    bool
}

// InGroup compares the group of the link a packet came by. Pod links are in
// theirs from birth, so that a rule about pods needs no list of them: what no
// element allows, a pod may not do.
type InGroup struct{ Group uint32 }

// OutGroup compares the group of the link a packet leaves by.
type OutGroup struct{ Group uint32 }

// LinkIs compares the incoming link's name.
type LinkIs struct {
	Name string
	Not  bool
}

// AddressIs compares an address field.
type AddressIs struct {
	Field Field
	Addr  netip.Addr
}

// LocalDestination is met by packets to an address of the node; with OnLink, of
// the link they came by.
type LocalDestination struct{ OnLink bool }

// Original is met by packets in the direction that opened their connection.
type Original struct{}

// ConnMark is met when the connection carries all of Bits.
type ConnMark struct{ Bits uint32 }

// TCP is met by TCP segments.
type TCP struct{}

func (Member) condition()           {}
func (InGroup) condition()          {}
func (OutGroup) condition()         {}
func (LinkIs) condition()           {}
func (AddressIs) condition()        {}
func (LocalDestination) condition() {}
func (Original) condition()         {}
func (ConnMark) condition()         {}
func (TCP) condition()              {}

// Statement is one of Drop, Return, Goto, MarkConn, MarkPacket, Reject and SNAT.
type Statement interface{ statement() }

// Drop ends the packet without a word.
type Drop struct{}

// Return leaves the chain; from a base chain, or one reached by Goto from it,
// the packet goes on its way.
type Return struct{}

// Goto continues in another chain.
type Goto struct{ Chain string }

// MarkConn sets Bits in the connection's mark and leaves the others.
type MarkConn struct{ Bits uint32 }

// MarkPacket sets Bits in the packet's mark and leaves the others.
type MarkPacket struct{ Bits uint32 }

// Reject ends the packet and tells its sender: a TCP reset, or ICMP
// "administratively prohibited".
type Reject struct{ Reset bool }

// SNAT gives the connection another source address.
type SNAT struct {
	To     netip.Addr
	Random Randomize
}

func (Drop) statement()       {}
func (Return) statement()     {}
func (Goto) statement()       {}
func (MarkConn) statement()   {}
func (MarkPacket) statement() {}
func (Reject) statement()     {}
func (SNAT) statement()       {}

// Randomize is how SNAT chooses the source port, in the words of AWS's setting
// AWS_VPC_K8S_CNI_RANDOMIZESNAT.
type Randomize string

// Ways to choose a port. RandomFully is the default: without it, two nodes of
// the kernel's choosing collide on the same port and lose a connection.
const (
	RandomFully Randomize = "prng"
	RandomHash  Randomize = "hashrandom"
	RandomNone  Randomize = "none"
)
