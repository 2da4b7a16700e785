package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// How a ruleset.Ruleset is said to the kernel.

func familyOf(f ruleset.Family) nftables.TableFamily {
	if f == ruleset.ARP {
		return nftables.TableFamilyARP
	}
	return nftables.TableFamilyINet
}

func tableOf(f ruleset.Family) *nftables.Table {
	return &nftables.Table{Family: familyOf(f), Name: hostnet.Table}
}

func keyType(k ruleset.KeyType) nftables.SetDatatype {
	switch k {
	case ruleset.KeyLink:
		return nftables.TypeIFName
	case ruleset.KeyMAC:
		return nftables.TypeEtherAddr
	case ruleset.KeyIPv4:
		return nftables.TypeIPAddr
	default:
		return nftables.TypeIP6Addr
	}
}

func setOf(t *nftables.Table, s ruleset.Set) (*nftables.Set, error) {
	types := make([]nftables.SetDatatype, len(s.Key))
	for i, k := range s.Key {
		types[i] = keyType(k)
	}
	set := &nftables.Set{Table: t, Name: s.Name, Interval: s.Interval, KeyType: types[0], KeyByteOrder: binaryutil.BigEndian}
	if len(types) > 1 {
		joined, err := nftables.ConcatSetType(types...)
		if err != nil {
			return nil, fmt.Errorf("key of set %s: %w", s.Name, err)
		}
		set.KeyType, set.Concatenation = joined, true
	} else if s.Key[0] == ruleset.KeyLink {
		set.KeyByteOrder = binaryutil.NativeEndian
	}
	return set, nil
}

// ifName is an interface name as the kernel compares it.
func ifName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// elementsOf are the kernel's elements for one of ours: two for a range.
func elementsOf(s ruleset.Set, e ruleset.Element) []nftables.SetElement {
	if s.Interval {
		list := []nftables.SetElement{{Key: e.Addr.AsSlice()}}
		if end := e.To.Next(); end.IsValid() {
			list = append(list, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
		return list
	}
	var key []byte
	for _, k := range s.Key {
		switch k {
		case ruleset.KeyLink:
			key = append(key, ifName(e.Link)...)
		case ruleset.KeyMAC:
			key = append(key, e.MAC[:]...)
		case ruleset.KeyIPv4, ruleset.KeyIPv6:
			key = append(key, e.Addr.AsSlice()...)
		}
		for len(s.Key) > 1 && len(key)%4 != 0 {
			key = append(key, 0)
		}
	}
	return []nftables.SetElement{{Key: key}}
}

// Registers: parts of a key lie side by side in steps of four bytes from the
// first register on. The kernel names one at a 16-byte boundary by the old
// numbering.
const (
	register0 = unix.NFT_REG32_00
	perOld    = 4
)

func register(words int) uint32 {
	if words%perOld == 0 {
		return uint32(unix.NFT_REG_1 + words/perOld)
	}
	return uint32(register0 + words)
}

type fieldCode struct {
	load  func(reg uint32) expr.Any
	words int // registers of four bytes
	needs expr.MetaKey
	value []byte
}

func payload(base expr.PayloadBase, offset, size uint32) func(uint32) expr.Any {
	return func(reg uint32) expr.Any {
		return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: size}
	}
}

func meta(key expr.MetaKey) func(uint32) expr.Any {
	return func(reg uint32) expr.Any { return &expr.Meta{Key: key, Register: reg} }
}

func codeOf(f ruleset.Field) fieldCode {
	v4, v6 := []byte{unix.NFPROTO_IPV4}, []byte{unix.NFPROTO_IPV6}
	switch f {
	case ruleset.InLink:
		return fieldCode{load: meta(expr.MetaKeyIIFNAME), words: 4}
	case ruleset.EtherSrc:
		ethernet := binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)
		return fieldCode{payload(expr.PayloadBaseLLHeader, 6, 6), 2, expr.MetaKeyIIFTYPE, ethernet}
	case ruleset.IPv4Src:
		return fieldCode{payload(expr.PayloadBaseNetworkHeader, 12, 4), 1, expr.MetaKeyNFPROTO, v4}
	case ruleset.IPv4Dst:
		return fieldCode{payload(expr.PayloadBaseNetworkHeader, 16, 4), 1, expr.MetaKeyNFPROTO, v4}
	case ruleset.IPv6Src:
		return fieldCode{payload(expr.PayloadBaseNetworkHeader, 8, 16), 4, expr.MetaKeyNFPROTO, v6}
	case ruleset.IPv6Dst:
		return fieldCode{payload(expr.PayloadBaseNetworkHeader, 24, 16), 4, expr.MetaKeyNFPROTO, v6}
	case ruleset.ARPEther:
		return fieldCode{load: payload(expr.PayloadBaseNetworkHeader, 8, 6), words: 2}
	default: // ruleset.ARPIP
		return fieldCode{load: payload(expr.PayloadBaseNetworkHeader, 14, 4), words: 1}
	}
}

// equal compares what the first register holds.
func equal(value []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: value}
}

// load loads fields side by side, after checks that the packet has them.
func load(fields ...ruleset.Field) []expr.Any {
	var checks, loads []expr.Any
	words := 0
	for _, f := range fields {
		c := codeOf(f)
		if c.value != nil {
			checks = append(checks, meta(c.needs)(unix.NFT_REG_1), equal(c.value))
		}
		loads = append(loads, c.load(register(words)))
		words += c.words
	}
	return append(checks, loads...)
}

// rtnLocal is RTN_LOCAL, what fib says of an address of the node.
const rtnLocal = 2

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func conditionOf(c ruleset.Condition) ([]expr.Any, error) {
	const r = unix.NFT_REG_1
	switch c := c.(type) {
	case ruleset.Member:
		return append(load(c.Fields...), &expr.Lookup{SourceRegister: r, SetName: c.Set, Invert: c.Not}), nil
	case ruleset.InGroup:
		return []expr.Any{meta(expr.MetaKeyIIFGROUP)(r), equal(native(c.Group))}, nil
	case ruleset.OutGroup:
		return []expr.Any{meta(expr.MetaKeyOIFGROUP)(r), equal(native(c.Group))}, nil
	case ruleset.LinkIs:
		op := expr.CmpOpEq
		if c.Not {
			op = expr.CmpOpNeq
		}
		return append(load(ruleset.InLink), &expr.Cmp{Op: op, Register: r, Data: ifName(c.Name)}), nil
	case ruleset.AddressIs:
		return append(load(c.Field), equal(c.Addr.AsSlice())), nil
	case ruleset.LocalDestination:
		return []expr.Any{&expr.Fib{Register: r, ResultADDRTYPE: true, FlagDADDR: true, FlagIIF: c.OnLink}, equal(native(rtnLocal))}, nil
	case ruleset.Original:
		return []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: r}, equal([]byte{0})}, nil
	case ruleset.ConnMark:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeyMARK, Register: r},
			&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: native(c.Bits), Xor: native(0)},
			equal(native(c.Bits)),
		}, nil
	case ruleset.TCP:
		return []expr.Any{meta(expr.MetaKeyL4PROTO)(r), equal([]byte{unix.IPPROTO_TCP})}, nil
	default:
		return nil, fmt.Errorf("condition %T is not known here", c)
	}
}

// orBits sets bits of register 1.
func orBits(bits uint32) expr.Any {
	const r = unix.NFT_REG_1
	return &expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: native(^bits), Xor: native(bits)}
}

func statementOf(s ruleset.Statement) ([]expr.Any, error) {
	const r = unix.NFT_REG_1
	switch s := s.(type) {
	case ruleset.Drop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}, nil
	case ruleset.Return:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}, nil
	case ruleset.Goto:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: s.Chain}}, nil
	case ruleset.MarkConn:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeyMARK, Register: r}, orBits(s.Bits),
			&expr.Ct{Key: expr.CtKeyMARK, Register: r, SourceRegister: true},
		}, nil
	case ruleset.MarkPacket:
		return []expr.Any{
			meta(expr.MetaKeyMARK)(r), orBits(s.Bits),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: r, SourceRegister: true},
		}, nil
	case ruleset.Reject:
		if s.Reset {
			return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}, nil
		}
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}, nil
	case ruleset.SNAT:
		return snat(s), nil
	default:
		return nil, fmt.Errorf("statement %T is not known here", s)
	}
}

func snat(s ruleset.SNAT) []expr.Any {
	const r = unix.NFT_REG_1
	family := uint32(unix.NFPROTO_IPV4)
	if s.To.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Immediate{Register: r, Data: s.To.AsSlice()},
		&expr.NAT{
			Type: expr.NATTypeSourceNAT, Family: family, RegAddrMin: r, RegAddrMax: r,
			Random: s.Random == ruleset.RandomHash, FullyRandom: s.Random == ruleset.RandomFully,
		},
	}
}

// ruleOf is a rule as the kernel takes it; its comment is what nft(8) shows.
func ruleOf(rule ruleset.Rule) ([]expr.Any, []byte, error) {
	var code []expr.Any
	for _, c := range rule.If {
		part, err := conditionOf(c)
		if err != nil {
			return nil, nil, err
		}
		code = append(code, part...)
	}
	if rule.Count {
		code = append(code, &expr.Counter{})
	}
	part, err := statementOf(rule.Then)
	if err != nil {
		return nil, nil, err
	}
	var comment []byte
	if rule.Comment != "" {
		comment = userdata.AppendString(nil, userdata.TypeComment, rule.Comment)
	}
	return append(code, part...), comment, nil
}

func chainOf(t *nftables.Table, c ruleset.Chain) (*nftables.Chain, error) {
	chain := &nftables.Chain{Table: t, Name: c.Name}
	if c.Hook == nil {
		return chain, nil
	}
	policy := nftables.ChainPolicyAccept
	chain.Policy = &policy
	chain.Type = nftables.ChainType(c.Hook.Type)
	chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.Hook.Priority))
	switch c.Hook.Point {
	case ruleset.Prerouting:
		chain.Hooknum = nftables.ChainHookPrerouting
	case ruleset.Input:
		chain.Hooknum = nftables.ChainHookInput
		if t.Family == nftables.TableFamilyARP {
			chain.Hooknum = nftables.ChainHookRef(arpInput)
		}
	case ruleset.Forward:
		chain.Hooknum = nftables.ChainHookForward
	case ruleset.Postrouting:
		chain.Hooknum = nftables.ChainHookPostrouting
	default:
		return nil, fmt.Errorf("hook %q of chain %s is not known here", c.Hook.Point, c.Name)
	}
	return chain, nil
}

// arpInput is NF_ARP_IN: the ARP family counts its hooks from its own zero.
const arpInput = 0
