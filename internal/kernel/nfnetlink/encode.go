package nfnetlink

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// load is what brings a field into registers.
type load struct {
	by             loader
	key            uint32 // of meta and ct; the header of a payload; the result of fib
	offset, length uint32 // of a payload, in bytes
	flags          uint32 // of fib
}

type loader uint8

const (
	none loader = iota
	byMeta
	byCt
	byPayload
	byFib
)

// loadOf returns what loads a field; the offsets are those of the protocols' headers.
func loadOf(f nftables.Field) load {
	meta := func(key expr.MetaKey) load { return load{by: byMeta, key: uint32(key)} }
	ct := func(key expr.CtKey) load { return load{by: byCt, key: uint32(key)} }
	header := func(base expr.PayloadBase, offset, length uint32) load {
		return load{by: byPayload, key: uint32(base), offset: offset, length: length}
	}
	const link, network, transport = expr.PayloadBaseLLHeader, expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	loads := [...]load{
		nftables.Iifname: meta(expr.MetaKeyIIFNAME), nftables.Oifname: meta(expr.MetaKeyOIFNAME),
		nftables.Iifgroup: meta(expr.MetaKeyIIFGROUP), nftables.Oifgroup: meta(expr.MetaKeyOIFGROUP),
		nftables.Iiftype: meta(expr.MetaKeyIIFTYPE), nftables.NFProto: meta(expr.MetaKeyNFPROTO),
		nftables.L4Proto: meta(expr.MetaKeyL4PROTO), nftables.MetaMark: meta(expr.MetaKeyMARK),
		nftables.EtherSaddr: header(link, 6, 6),
		nftables.IPSaddr:    header(network, 12, 4), nftables.IPDaddr: header(network, 16, 4),
		nftables.IP6Saddr: header(network, 8, 16), nftables.IP6Daddr: header(network, 24, 16),
		nftables.ARPSaddrEther: header(network, 8, 6), nftables.ARPSaddrIP: header(network, 14, 4),
		nftables.ThDport:  header(transport, 2, 2),
		nftables.ICMPType: header(transport, 0, 1), nftables.ICMPCode: header(transport, 1, 1),
		nftables.ICMPv6Type: header(transport, 0, 1), nftables.ICMPv6Code: header(transport, 1, 1),
		nftables.CtDirection: ct(expr.CtKeyDIRECTION), nftables.CtState: ct(expr.CtKeySTATE), nftables.CtMark: ct(expr.CtKeyMARK),
		nftables.FibSaddrType:    {by: byFib, key: unix.NFT_FIB_RESULT_ADDRTYPE, flags: unix.NFTA_FIB_F_SADDR},
		nftables.FibDaddrType:    {by: byFib, key: unix.NFT_FIB_RESULT_ADDRTYPE, flags: unix.NFTA_FIB_F_DADDR},
		nftables.FibDaddrIifType: {by: byFib, key: unix.NFT_FIB_RESULT_ADDRTYPE, flags: unix.NFTA_FIB_F_DADDR | unix.NFTA_FIB_F_IIF},
		nftables.FibRouted:       {by: byFib, key: unix.NFT_FIB_RESULT_OIF, flags: unix.NFTA_FIB_F_DADDR | unix.NFTA_FIB_F_MARK | unix.NFTA_FIB_F_PRESENT},
	}
	return loads[f]
}

// into is the load as an expression.
func (l load) into(register uint32) expr.Any {
	switch l.by {
	case byMeta:
		return &expr.Meta{Key: expr.MetaKey(l.key), Register: register}
	case byCt:
		return &expr.Ct{Key: expr.CtKey(l.key), Register: register}
	case byPayload:
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBase(l.key), Offset: l.offset, Len: l.length}
	default:
		return &expr.Fib{
			Register:  register,
			FlagSADDR: l.flags&unix.NFTA_FIB_F_SADDR != 0, FlagDADDR: l.flags&unix.NFTA_FIB_F_DADDR != 0, FlagIIF: l.flags&unix.NFTA_FIB_F_IIF != 0,
			FlagMARK: l.flags&unix.NFTA_FIB_F_MARK != 0, FlagPRESENT: l.flags&unix.NFTA_FIB_F_PRESENT != 0,
			ResultADDRTYPE: l.key == unix.NFT_FIB_RESULT_ADDRTYPE, ResultOIF: l.key == unix.NFT_FIB_RESULT_OIF,
		}
	}
}

// Registers hold four bytes each. The kernel reports one at a boundary of sixteen
// bytes by its old number, and takes either, so they are sent as they are reported.
const wordsPerOldRegister = 4

func register(word int) uint32 {
	if word%wordsPerOldRegister == 0 {
		return uint32(unix.NFT_REG_1 + word/wordsPerOldRegister)
	}
	return uint32(unix.NFT_REG32_00 + word)
}

func wordOf(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return int(register) - unix.NFT_REG32_00
	}
	return (int(register) - unix.NFT_REG_1) * wordsPerOldRegister
}

// words is how many registers a field takes.
func words(f nftables.Field) int {
	const bytesPerWord = 4
	return (f.Type().Size() + bytesPerWord - 1) / bytesPerWord
}

// encodeRule translates a rule for the kernel.
func encodeRule(r nftables.Rule) ([]expr.Any, error) {
	var code []expr.Any
	for _, e := range r.Exprs {
		part, err := encode(e)
		if err != nil {
			return nil, err
		}
		code = append(code, part...)
	}
	return code, nil
}

func encode(e nftables.Expr) ([]expr.Any, error) {
	switch e := e.(type) {
	case nftables.Match:
		return encodeMatch(e), nil
	case nftables.Lookup:
		return append(encodeKey(e.Key), &expr.Lookup{SourceRegister: register(0), SetName: e.Set, Invert: e.Not}), nil
	case nftables.BPF:
		return encodeBPF(e)
	case nftables.VerdictMap:
		return append(encodeKey(e.Key), &expr.Lookup{SourceRegister: register(0), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: e.Map}), nil
	case nftables.SetFromMap:
		code := append(encodeKey(e.Key), &expr.Lookup{SourceRegister: register(0), DestRegister: register(0), IsDestRegSet: true, SetName: e.Map})
		return encodeStore(e.Field, code)
	case nftables.SetBits:
		r := register(0)
		return encodeStore(e.Field, []expr.Any{
			loadOf(e.Field).into(r),
			&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: native(^(e.Bits | e.Clear)), Xor: native(e.Bits)},
		})
	case nftables.Counter:
		return []expr.Any{&expr.Counter{}}, nil
	case nftables.Verdict:
		kind, ok := verdictOf(e.Kind)
		if !ok {
			return nil, fmt.Errorf("verdict %q is not supported", e.Kind)
		}
		return []expr.Any{&expr.Verdict{Kind: kind, Chain: e.Chain}}, nil
	case nftables.Reject:
		return encodeReject(e)
	case nftables.SNAT:
		return encodeSNAT(e), nil
	case nftables.DNAT:
		return encodeDNAT(e), nil
	default:
		return nil, fmt.Errorf("expression %q is not supported", e)
	}
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// encodeNeeds checks that the packet has the fields of a key.
func encodeNeeds(k nftables.Key) (code []expr.Any) {
	for _, m := range k.Needs() {
		code = append(code, encodeMatch(m)...)
	}
	return code
}

func encodeMatch(m nftables.Match) []expr.Any {
	r := register(0)
	code := append(encodeNeeds(nftables.Key{m.Operand}), loadOperand(m.Operand, 0)...)
	compare := func(op expr.CmpOp, value nftables.Data) {
		code = append(code, &expr.Cmp{Op: op, Register: r, Data: []byte(value)})
	}
	switch m.Op {
	case nftables.NotEqual:
		compare(expr.CmpOpNeq, m.Value)
	case nftables.Within:
		compare(expr.CmpOpGte, m.Value)
		compare(expr.CmpOpLte, m.Last)
	default:
		compare(expr.CmpOpEq, m.Value)
	}
	return code
}

// loadOperand loads an operand into the registers from a word on.
func loadOperand(o nftables.Operand, word int) []expr.Any {
	r := register(word)
	code := []expr.Any{loadOf(o.Field).into(r)}
	if o.Mask != "" {
		code = append(code, &expr.Bitwise{
			SourceRegister: r, DestRegister: r, Len: uint32(len(o.Mask)), Mask: []byte(o.Mask), Xor: make([]byte, len(o.Mask)),
		})
	}
	return code
}

// encodeKey loads operands side by side, after the checks that the packet has them.
func encodeKey(k nftables.Key) []expr.Any {
	code := encodeNeeds(k)
	word := 0
	for _, o := range k {
		code = append(code, loadOperand(o, word)...)
		word += words(o.Field)
	}
	return code
}

// encodeStore stores the first register in a mark.
func encodeStore(f nftables.Field, code []expr.Any) ([]expr.Any, error) {
	switch f {
	case nftables.MetaMark:
		return append(code, &expr.Meta{Key: expr.MetaKeyMARK, Register: register(0), SourceRegister: true}), nil
	case nftables.CtMark:
		return append(code, &expr.Ct{Key: expr.CtKeyMARK, Register: register(0), SourceRegister: true}), nil
	default:
		return nil, fmt.Errorf("setting %s is not supported", f)
	}
}

func encodeReject(r nftables.Reject) ([]expr.Any, error) {
	switch r.With {
	case nftables.TCPReset:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}, nil
	case nftables.PortUnreachable:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}, nil
	case nftables.AdminProhibited:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}, nil
	default:
		return nil, fmt.Errorf("rejection %q is not supported", r.With)
	}
}

func encodeSNAT(s nftables.SNAT) []expr.Any {
	return encodeNAT(s.To, expr.NAT{Type: expr.NATTypeSourceNAT, Random: s.Random, FullyRandom: s.FullyRandom})
}

func encodeDNAT(d nftables.DNAT) []expr.Any {
	return encodeNAT(d.To, expr.NAT{Type: expr.NATTypeDestNAT})
}

// encodeNAT translates to one address.
func encodeNAT(to netip.Addr, nat expr.NAT) []expr.Any {
	r := register(0)
	nat.Family, nat.RegAddrMin, nat.RegAddrMax = unix.NFPROTO_IPV4, r, r
	if to.Is6() {
		nat.Family = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Immediate{Register: r, Data: to.AsSlice()}, &nat}
}
