package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

func addrBits(f vpc.Family) int { return addrType(f).Size() * 8 }

func addrType(f vpc.Family) nftables.Type {
	if f == vpc.IPv4 {
		return nftables.TypeIPv4
	}
	return nftables.TypeIPv6
}

func source(f vpc.Family) nftables.Field {
	if f == vpc.IPv4 {
		return nftables.IPSaddr
	}
	return nftables.IP6Saddr
}

func destination(f vpc.Family) nftables.Field {
	if f == vpc.IPv4 {
		return nftables.IPDaddr
	}
	return nftables.IP6Daddr
}

// in matches if the fields are in a set.
func in(set string, fields ...nftables.Field) nftables.Lookup {
	return nftables.Lookup{Key: nftables.KeyOf(fields...), Set: set}
}

func deviceIs(f nftables.Field, name string) nftables.Match {
	return nftables.Eq(f, nftables.Ifname(name))
}

func family(f vpc.Family) nftables.Match {
	if f == vpc.IPv4 {
		return nftables.Eq(nftables.NFProto, nftables.NFProtoIPv4())
	}
	return nftables.Eq(nftables.NFProto, nftables.NFProtoIPv6())
}

// within matches an address field against a prefix; a prefix of length 0 matches the
// family.
func within(field nftables.Field, p netip.Prefix) nftables.Match {
	if p.Bits() == 0 {
		return family(vpc.FamilyOf(p.Addr()))
	}
	return nftables.In(field, p)
}

func protocolIs(number int) nftables.Match {
	return nftables.Eq(nftables.L4Proto, nftables.Proto(uint8(number)))
}

func portBetween(from, to int) nftables.Match {
	return nftables.Between(nftables.ThDport, nftables.Port(uint16(from)), nftables.Port(uint16(to)))
}

// icmp matches the family's ICMP messages of a type.
func icmp(f vpc.Family, kind uint8) nftables.Match {
	if f == vpc.IPv4 {
		return nftables.Eq(nftables.ICMPType, nftables.Proto(kind))
	}
	return nftables.Eq(nftables.ICMPv6Type, nftables.Proto(kind))
}

// icmpCode matches the family's ICMP messages of a code.
func icmpCode(f vpc.Family, code uint8) nftables.Match {
	if f == vpc.IPv4 {
		return nftables.Eq(nftables.ICMPCode, nftables.Proto(code))
	}
	return nftables.Eq(nftables.ICMPv6Code, nftables.Proto(code))
}

func echoRequest(f vpc.Family) uint8 {
	if f == vpc.IPv4 {
		return 8
	}
	return 128
}

// neighbourDiscovery are the ICMPv6 types of RFC 4861, redirect excepted.
func neighbourDiscovery() []uint8 { return []uint8{133, 134, solicitation, advertisement} }

func verdict(k nftables.VerdictKind) nftables.Verdict { return nftables.Verdict{Kind: k} }

func gotoChain(name string) nftables.Verdict {
	return nftables.Verdict{Kind: nftables.Goto, Chain: name}
}

func jumpTo(name string) nftables.Verdict {
	return nftables.Verdict{Kind: nftables.Jump, Chain: name}
}
