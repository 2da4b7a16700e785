package nfnetlink

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// drawData draws a value of a field.
func drawData(t *rapid.T, f nftables.Field) nftables.Data {
	switch f.Type() {
	case nftables.TypeIfname:
		return nftables.Ifname(rapid.StringMatching(`[a-z]{1,8}[0-9]{1,4}`).Draw(t, "name"))
	default:
		n := f.Type().Size()
		return nftables.Data(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "value"))
	}
}

func drawField(t *rapid.T) nftables.Field {
	return rapid.SampledFrom(nftables.Fields()).Draw(t, "field")
}

func drawMatch(t *rapid.T) nftables.Expr {
	f := drawField(t)
	switch rapid.IntRange(0, 4).Draw(t, "match") {
	case 0:
		return nftables.Ne(f, drawData(t, f))
	case 1:
		return nftables.Between(nftables.ThDport, drawData(t, nftables.ThDport), drawData(t, nftables.ThDport))
	case 2:
		bits := rapid.Uint32Range(1, 1<<31).Draw(t, "bits")
		return rapid.SampledFrom([]nftables.Match{
			nftables.AllBits(nftables.CtMark, bits), nftables.AllBits(nftables.MetaMark, bits), nftables.AnyBits(nftables.CtState, bits),
		}).Draw(t, "bits of")
	case 3:
		return drawPrefix(t)
	default:
		return nftables.Eq(f, drawData(t, f))
	}
}

func drawPrefix(t *rapid.T) nftables.Expr {
	f := rapid.SampledFrom([]nftables.Field{nftables.IPSaddr, nftables.IPDaddr, nftables.IP6Saddr, nftables.IP6Daddr}).Draw(t, "address")
	a, _ := netip.AddrFromSlice([]byte(drawData(t, f)))
	return nftables.In(f, netip.PrefixFrom(a, rapid.IntRange(1, a.BitLen()).Draw(t, "length")))
}

// drawKey draws a key within the kernel's 64 bytes.
func drawKey(t *rapid.T) nftables.Key {
	var k nftables.Key
	size := 0
	for range rapid.IntRange(1, 4).Draw(t, "parts") {
		f := drawField(t)
		if f.Type() == nftables.TypeICMPv6 || f.Type() == nftables.TypeICMPv6Code {
			continue // beside a field of ICMP it matches nothing
		}
		if size += words(f); size > 16 {
			break
		}
		o := nftables.Operand{Field: f}
		if f.Type() == nftables.TypeIPv4 || f.Type() == nftables.TypeIPv6 {
			o = nftables.Bits(f, rapid.IntRange(1, f.Type().Size()*8).Draw(t, "bits"))
		}
		k = append(k, o)
	}
	if k == nil {
		return nftables.KeyOf(nftables.ICMPv6Type)
	}
	return k
}

func drawExpr(t *rapid.T) nftables.Expr {
	mark := rapid.SampledFrom([]nftables.Field{nftables.MetaMark, nftables.CtMark}).Draw(t, "mark")
	switch rapid.IntRange(0, 8).Draw(t, "expression") {
	case 0:
		return nftables.Lookup{Key: drawKey(t), Set: "s", Not: rapid.Bool().Draw(t, "not")}
	case 1:
		return nftables.VerdictMap{Key: drawKey(t), Map: "v"}
	case 2:
		bits := rapid.Uint32Range(1, 1<<31).Draw(t, "bits")
		return nftables.SetBits{Field: mark, Bits: bits, Clear: rapid.Uint32().Draw(t, "clear") &^ bits}
	case 3:
		return nftables.SetFromMap{Field: mark, Key: drawKey(t), Map: "m"}
	case 4:
		return nftables.Counter{}
	case 5:
		return nftables.BPF{Path: rapid.StringMatching(`(/[a-z0-9.-]{1,20}){1,5}`).Draw(t, "path")}
	default:
		return drawMatch(t)
	}
}

func drawEnd(t *rapid.T) nftables.Expr {
	return rapid.SampledFrom([]nftables.Expr{
		nftables.Verdict{Kind: nftables.Accept},
		nftables.Verdict{Kind: nftables.Drop},
		nftables.Verdict{Kind: nftables.Return},
		nftables.Verdict{Kind: nftables.Jump, Chain: "next"},
		nftables.Verdict{Kind: nftables.Goto, Chain: "next"},
		nftables.Reject{With: nftables.TCPReset},
		nftables.Reject{With: nftables.AdminProhibited},
		nftables.Reject{With: nftables.PortUnreachable},
		nftables.SNAT{To: netip.MustParseAddr("10.0.0.1")},
		nftables.SNAT{To: netip.MustParseAddr("fd00::1"), FullyRandom: true},
		nftables.SNAT{To: netip.MustParseAddr("10.0.0.1"), Random: true},
		nftables.DNAT{To: netip.MustParseAddr("10.0.0.1")},
		nftables.DNAT{To: netip.MustParseAddr("fd00::1")},
	}).Draw(t, "end")
}

func drawRule(t *rapid.T) nftables.Rule {
	r := nftables.NewRule(rapid.SliceOfN(rapid.Custom(drawExpr), 0, 4).Draw(t, "expressions")...)
	r.Exprs = append(r.Exprs, drawEnd(t))
	return r
}

// decodeAll decodes what was encoded, by way of the bytes of each expression.
func decodeAll(t interface{ Fatal(...any) }, code []expr.Any) []nftables.Expr {
	var read []expression
	for _, e := range code {
		read = append(read, expression{name: "?", expr: reread(t, e)})
	}
	return newDecoder().rule(read)
}

// reread is the expression as it comes out of its bytes.
func reread(t interface{ Fatal(...any) }, e expr.Any) expr.Any {
	const family = 1 // NFPROTO_INET
	data, err := expr.MarshalExprData(family, e)
	if err != nil {
		t.Fatal(err)
	}
	fresh := reflect.New(reflect.TypeOf(e).Elem()).Interface().(expr.Any)
	if err := expr.Unmarshal(family, data, fresh); err != nil {
		t.Fatal(err)
	}
	return fresh
}

func TestARuleIsReadBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRule(t)
		code, err := encodeRule(r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Exprs, decodeAll(t, code), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("%s: (-written +read):\n%s", r, diff)
		}
	})
}

func TestRulesThatPrintTheSameAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawMatch(t), drawMatch(t)
		if (a.String() == b.String()) != (a == b) {
			t.Fatalf("%#v and %#v print %q and %q", a, b, a, b)
		}
	})
}

// A rule is ours only if every one of its expressions is: one that is missing, added
// or changed makes it another.
func TestARuleWithOneExpressionOffIsNotTakenForTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRule(t)
		code, err := encodeRule(r)
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, len(code)-1).Draw(t, "at")
		var off []expr.Any
		if rapid.Bool().Draw(t, "missing") {
			off = slices.Delete(slices.Clone(code), at, at+1)
		} else {
			off = slices.Insert(slices.Clone(code), at, expr.Any(&expr.Meta{Key: expr.MetaKeyCPU, Register: register(0)}))
		}
		if len(off) == 0 {
			t.Skip("nothing left")
		}
		got := nftables.Rule{Exprs: decodeAll(t, off)}
		if got.String() == r.String() {
			t.Fatalf("%s is read with expression %d off", r, at)
		}
	})
}

func TestWhatIsNotSupportedIsRefusedByName(t *testing.T) {
	for _, e := range []nftables.Expr{
		nftables.Unknown{Name: "socket"},
		nftables.Verdict{Kind: "stolen"},
		nftables.Reject{With: "port"},
		nftables.SetBits{Field: nftables.CtState, Bits: 1},
		nftables.BPF{},
		nftables.BPF{Path: "/" + strings.Repeat("x", 511)},
		nftables.BPF{Path: "/a\x00b"},
	} {
		if code, err := encodeRule(nftables.NewRule(e)); err == nil {
			t.Errorf("%s is encoded as %v", e, code)
		}
	}
}
