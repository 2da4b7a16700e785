package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// decoder turns the kernel's expressions into ours. It follows the registers: what a
// field is compared with, or which fields make up a key, is known at the expression
// that uses them.
type decoder struct {
	fields    map[load][]nftables.Field
	out       []nftables.Expr
	registers map[int]content // by the number of four bytes
}

// content of the registers from one on. Exactly one of load, data and from is set.
type content struct {
	load   load
	mask   nftables.Data
	orBits uint32 // set in a mark that was loaded
	clear  uint32 // cleared in it, beside orBits
	low    nftables.Data
	data   []byte               // a constant
	from   *nftables.SetFromMap // what a map has for a key
}

func newDecoder() *decoder {
	d := &decoder{fields: map[load][]nftables.Field{}}
	for _, f := range nftables.Fields() {
		l := loadOf(f)
		d.fields[l] = append(d.fields[l], f)
	}
	return d
}

// rule decodes a rule. One that none of our expressions encodes to is a single
// nftables.Unknown.
func (d *decoder) rule(code []expression) []nftables.Expr {
	d.out, d.registers = nil, map[int]content{}
	for _, e := range code {
		if e.expr == nil || !d.decode(e.expr) {
			return []nftables.Expr{nftables.Unknown{Name: e.name}}
		}
	}
	if len(d.registers) > 0 {
		return []nftables.Expr{nftables.Unknown{Name: "unused load"}}
	}
	return d.out
}

// decode takes one expression. It reports false if it is not one of ours.
func (d *decoder) decode(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Bitwise:
		return d.bitwise(e)
	case *expr.Cmp:
		return d.compare(e)
	case *expr.Lookup:
		return d.lookup(e)
	case *expr.Match:
		b, ok := decodeBPF(e)
		return ok && len(d.registers) == 0 && d.emit(b)
	case *expr.Immediate:
		d.registers[wordOf(e.Register)] = content{data: e.Data}
		return true
	case *expr.NAT:
		return d.nat(e)
	case *expr.Counter:
		return d.emit(nftables.Counter{})
	case *expr.Verdict:
		return d.emit(nftables.Verdict{Kind: verdictName(e.Kind), Chain: e.Chain})
	case *expr.Reject:
		return d.reject(e)
	default:
		return d.loadOrStore(e)
	}
}

// emit ends what the registers were loaded for.
func (d *decoder) emit(e nftables.Expr) bool {
	d.out = append(d.out, e)
	clear(d.registers)
	return true
}

func (d *decoder) loadOrStore(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Meta:
		if e.SourceRegister {
			return e.Key == expr.MetaKeyMARK && d.store(nftables.MetaMark, e.Register)
		}
		return d.load(e.Register, load{by: byMeta, key: uint32(e.Key)})
	case *expr.Ct:
		if e.Register == unix.NFT_REG_VERDICT { // a store: google/nftables does not read its register
			return e.Key == expr.CtKeyMARK && d.store(nftables.CtMark, register(0))
		}
		return d.load(e.Register, load{by: byCt, key: uint32(e.Key)})
	case *expr.Payload:
		if e.OperationType != expr.PayloadLoad {
			return false
		}
		return d.load(e.DestRegister, load{by: byPayload, key: uint32(e.Base), offset: e.Offset, length: e.Len})
	case *expr.Fib:
		return d.load(e.Register, fibLoad(e))
	default:
		return false
	}
}

func fibLoad(e *expr.Fib) load {
	l := load{by: byFib}
	for _, flag := range []struct {
		set bool
		bit uint32
	}{
		{e.FlagSADDR, unix.NFTA_FIB_F_SADDR},
		{e.FlagDADDR, unix.NFTA_FIB_F_DADDR},
		{e.FlagMARK, unix.NFTA_FIB_F_MARK},
		{e.FlagIIF, unix.NFTA_FIB_F_IIF},
		{e.FlagOIF, unix.NFTA_FIB_F_OIF},
		{e.FlagPRESENT, unix.NFTA_FIB_F_PRESENT},
	} {
		if flag.set {
			l.flags |= flag.bit
		}
	}
	switch {
	case e.ResultADDRTYPE:
		l.key = unix.NFT_FIB_RESULT_ADDRTYPE
	case e.ResultOIF:
		l.key = unix.NFT_FIB_RESULT_OIF
	default:
		l.key = unix.NFT_FIB_RESULT_OIFNAME
	}
	return l
}

func (d *decoder) load(register uint32, l load) bool {
	d.registers[wordOf(register)] = content{load: l}
	return d.fields[l] != nil
}

// store sets a mark to what its expressions have made of a register.
func (d *decoder) store(f nftables.Field, register uint32) bool {
	c, ok := d.registers[wordOf(register)]
	switch {
	case !ok || len(d.registers) != 1:
		return false
	case c.from != nil:
		from := *c.from
		from.Field = f
		return d.emit(from)
	case c.orBits != 0 && c.load == loadOf(f):
		return d.emit(nftables.SetBits{Field: f, Bits: c.orBits, Clear: c.clear})
	default:
		return false
	}
}

func (d *decoder) bitwise(e *expr.Bitwise) bool {
	word := wordOf(e.SourceRegister)
	c, ok := d.registers[word]
	if !ok || e.SourceRegister != e.DestRegister || c.load.by == none || c.mask != "" || c.orBits != 0 || len(e.Mask) == 0 {
		return false
	}
	mark := len(e.Mask) == 4 && (c.load == loadOf(nftables.MetaMark) || c.load == loadOf(nftables.CtMark))
	switch {
	case bytes.Equal(e.Xor, make([]byte, len(e.Mask))):
		c.mask = nftables.Data(e.Mask)
	case mark && len(e.Xor) == len(e.Mask) && binary.NativeEndian.Uint32(e.Xor)&binary.NativeEndian.Uint32(e.Mask) == 0:
		c.orBits = binary.NativeEndian.Uint32(e.Xor)
		c.clear = ^binary.NativeEndian.Uint32(e.Mask) &^ c.orBits
	default:
		return false
	}
	d.registers[word] = c
	return true
}

func (d *decoder) compare(e *expr.Cmp) bool {
	word := wordOf(e.Register)
	c := d.registers[word]
	if len(d.registers) != 1 || c.load.by == none || c.orBits != 0 {
		return false
	}
	m := nftables.Match{Value: nftables.Data(e.Data)}
	switch e.Op {
	case expr.CmpOpEq:
	case expr.CmpOpNeq:
		m.Op = nftables.NotEqual
	case expr.CmpOpGte:
		c.low = m.Value
		d.registers[word] = c
		return true
	case expr.CmpOpLte:
		m.Op, m.Value, m.Last = nftables.Within, c.low, m.Value
	default:
		return false
	}
	if (m.Op == nftables.Within) != (c.low != "") {
		return false
	}
	k, ok := d.key(word)
	if !ok || len(k) != 1 || len(e.Data) != k[0].Field.Type().Size() {
		return false
	}
	m.Operand = k[0]
	return d.emit(m)
}

func (d *decoder) lookup(e *expr.Lookup) bool {
	k, ok := d.key(wordOf(e.SourceRegister))
	switch {
	case !ok:
		return false
	case !e.IsDestRegSet:
		return d.emit(nftables.Lookup{Key: k, Set: e.SetName, Not: e.Invert})
	case e.DestRegister == unix.NFT_REG_VERDICT:
		return d.emit(nftables.VerdictMap{Key: k, Map: e.SetName})
	default:
		clear(d.registers)
		d.registers[wordOf(e.DestRegister)] = content{from: &nftables.SetFromMap{Key: k, Map: e.SetName}}
		return true
	}
}

// key gathers all that is loaded, side by side from a word on, and takes back the
// checks that its fields imply. Where one load is that of several fields, the checks
// distinguish them.
func (d *decoder) key(word int) (nftables.Key, bool) {
	var loaded []content
	for {
		c, ok := d.registers[word]
		if !ok {
			break
		}
		if c.load.by == none || c.orBits != 0 {
			return nil, false
		}
		loaded = append(loaded, c)
		word += words(d.fields[c.load][0])
	}
	if len(loaded) == 0 || len(loaded) != len(d.registers) {
		return nil, false
	}
	const meanings = 2 // of one load, at most: ICMP and ICMPv6 have the same offsets
	for n := range meanings {
		k := make(nftables.Key, len(loaded))
		for i, c := range loaded {
			fields := d.fields[c.load]
			k[i] = nftables.Operand{Field: fields[min(n, len(fields)-1)], Mask: c.mask}
		}
		if d.takeBack(k.Needs()) {
			return k, true
		}
	}
	return nil, false
}

// takeBack removes matches from the end of the output. It reports false, and removes
// none, if they are not there.
func (d *decoder) takeBack(needs []nftables.Match) bool {
	start := len(d.out) - len(needs)
	if start < 0 {
		return false
	}
	for i, m := range needs {
		if d.out[start+i] != nftables.Expr(m) {
			return false
		}
	}
	d.out = d.out[:start]
	return true
}

func (d *decoder) reject(e *expr.Reject) bool {
	for _, r := range []nftables.Rejection{nftables.TCPReset, nftables.AdminProhibited, nftables.PortUnreachable} {
		if code, err := encodeReject(nftables.Reject{With: r}); err == nil && *code[0].(*expr.Reject) == *e {
			return d.emit(nftables.Reject{With: r})
		}
	}
	return false
}

func (d *decoder) nat(e *expr.NAT) bool {
	to, ok := netip.AddrFromSlice(d.registers[wordOf(e.RegAddrMin)].data)
	if !ok || len(d.registers) != 1 {
		return false
	}
	if e.Type == expr.NATTypeDestNAT {
		t := nftables.DNAT{To: to}
		return *encodeDNAT(t)[1].(*expr.NAT) == *e && d.emit(t)
	}
	s := nftables.SNAT{To: to, Random: e.Random, FullyRandom: e.FullyRandom}
	return *encodeSNAT(s)[1].(*expr.NAT) == *e && d.emit(s)
}
