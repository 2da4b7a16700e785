package nftables

// Field is a property of a packet that a rule loads.
type Field uint8

// Fields.
const (
	NoField         Field = iota
	Iifname               // name of the device a packet came by
	Oifname               // name of the device it leaves by
	Iifgroup              // group of the device it came by
	Oifgroup              // group of the device it leaves by
	Iiftype               // hardware type of the device it came by (ARPHRD_*)
	NFProto               // family of the packet
	L4Proto               // IP protocol after the extension headers
	MetaMark              // mark of the packet
	EtherSaddr            // source of the Ethernet frame
	IPSaddr               // source of an IPv4 packet
	IPDaddr               // destination of an IPv4 packet
	IP6Saddr              // source of an IPv6 packet
	IP6Daddr              // destination of an IPv6 packet
	ARPSaddrEther         // hardware address of the sender in an ARP message
	ARPSaddrIP            // address of the sender in an ARP message
	ThDport               // destination port of any transport protocol
	ICMPType              // type of an ICMP message
	ICMPCode              // code of an ICMP message
	ICMPv6Type            // type of an ICMPv6 message
	ICMPv6Code            // code of an ICMPv6 message
	CtDirection           // direction within the connection
	CtState               // state of the connection, one bit
	CtMark                // mark of the connection
	FibSaddrType          // kind of the source (RTN_*)
	FibDaddrType          // kind of the destination (RTN_*)
	FibDaddrIifType       // kind of the destination on the device the packet came by
	FibRouted             // whether the routes of the packet's mark lead to the destination
	fieldCount
)

// Fields lists all fields.
func Fields() []Field {
	all := make([]Field, 0, fieldCount-1)
	for f := NoField + 1; f < fieldCount; f++ {
		all = append(all, f)
	}
	return all
}

// String is the field in nft(8)'s syntax.
func (f Field) String() string {
	return [fieldCount]string{
		Iifname: "iifname", Oifname: "oifname", Iifgroup: "iifgroup", Oifgroup: "oifgroup", Iiftype: "iiftype",
		NFProto: "meta nfproto", L4Proto: "meta l4proto", MetaMark: "meta mark",
		EtherSaddr: "ether saddr", IPSaddr: "ip saddr", IPDaddr: "ip daddr", IP6Saddr: "ip6 saddr", IP6Daddr: "ip6 daddr",
		ARPSaddrEther: "arp saddr ether", ARPSaddrIP: "arp saddr ip", ThDport: "th dport",
		ICMPType: "icmp type", ICMPCode: "icmp code", ICMPv6Type: "icmpv6 type", ICMPv6Code: "icmpv6 code",
		CtDirection: "ct direction", CtState: "ct state", CtMark: "ct mark",
		FibSaddrType: "fib saddr type", FibDaddrType: "fib daddr type", FibDaddrIifType: "fib daddr . iif type", FibRouted: "fib daddr . mark oif",
	}[f]
}

// Type is the type of the field's values.
func (f Field) Type() Type {
	return [fieldCount]Type{
		Iifname: TypeIfname, Oifname: TypeIfname, Iifgroup: TypeDevgroup, Oifgroup: TypeDevgroup, Iiftype: TypeHardware,
		NFProto: TypeNFProto, L4Proto: TypeProto, MetaMark: TypeMark,
		EtherSaddr: TypeEther, IPSaddr: TypeIPv4, IPDaddr: TypeIPv4, IP6Saddr: TypeIPv6, IP6Daddr: TypeIPv6,
		ARPSaddrEther: TypeEther, ARPSaddrIP: TypeIPv4, ThDport: TypePort,
		ICMPType: TypeICMP, ICMPCode: TypeICMPCode, ICMPv6Type: TypeICMPv6, ICMPv6Code: TypeICMPv6Code,
		CtDirection: TypeCtDirection, CtState: TypeCtState, CtMark: TypeMark,
		FibSaddrType: TypeFibAddr, FibDaddrType: TypeFibAddr, FibDaddrIifType: TypeFibAddr, FibRouted: TypeBoolean,
	}[f]
}

// Needs are the matches that make sure a packet has the field. They are implied: a
// rule that names the field does not name them, and the text form leaves them out.
func (f Field) Needs() []Match {
	switch f {
	case EtherSaddr:
		return []Match{Eq(Iiftype, EtherHardware())}
	case IPSaddr, IPDaddr:
		return []Match{Eq(NFProto, NFProtoIPv4())}
	case IP6Saddr, IP6Daddr:
		return []Match{Eq(NFProto, NFProtoIPv6())}
	case ICMPType, ICMPCode:
		return []Match{Eq(NFProto, NFProtoIPv4()), Eq(L4Proto, Proto(ICMP))}
	case ICMPv6Type, ICMPv6Code:
		return []Match{Eq(NFProto, NFProtoIPv6()), Eq(L4Proto, Proto(ICMPv6))}
	default:
		return nil
	}
}

// Needs are the implied matches of all fields of the key, in order.
func (k Key) Needs() (all []Match) {
	for _, o := range k {
		all = append(all, o.Field.Needs()...)
	}
	return all
}
