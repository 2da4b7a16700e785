//go:build netns

package nfnetlink

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
	"github.com/trunkline/trunkline/test/testns"
)

func dial(t testing.TB) (*Conn, *testns.NS) {
	t.Helper()
	ns := testns.New(t, "nft")
	file := ns.Open(t)
	c, err := Dial(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		file.Close()
	})
	return c, ns
}

// nft8 runs nft(8): the operator, and another reader of the same language.
func nft8(t testns.T, ns *testns.NS, script string, args ...string) string {
	t.Helper()
	if args == nil {
		args = []string{"-f", "-"}
	}
	cmd := exec.Command("ip", append([]string{"netns", "exec", ns.Name, "nft"}, args...)...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v: %s\n%s", args, err, out, script)
	}
	return string(out)
}

func must(t testns.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// become makes the kernel's table a wanted one.
func become(t testns.T, c *Conn, want nftables.Table) []nftables.Change {
	t.Helper()
	have, err := c.Read(want.TableName)
	must(t, err)
	changes := nftables.Diff(want, have)
	must(t, c.Commit(changes...))
	return changes
}

func ip(s string) nftables.Data { return nftables.Addr(netip.MustParseAddr(s)) }

var name = nftables.TableName{Family: nftables.Inet, Name: "t"}

// palindrome is a mark that reads the same in either byte order: google/nftables does
// not record that of a map's values, and nft(8) lists them in the wrong one.
const palindrome nftables.Data = "\x01\x02\x02\x01"

// all is a table with every kind of set, chain and expression.
func all() nftables.Table {
	drop, accept := nftables.Verdict{Kind: nftables.Drop}, nftables.Verdict{Kind: nftables.Accept}
	mac := nftables.Ether([6]byte{2, 0, 0, 0, 0, 10})
	return nftables.Table{
		TableName: name,
		Sets: []nftables.Set{
			{Name: "v4", Key: []nftables.Type{nftables.TypeIPv4}, Elements: []nftables.Element{{Key: ip("10.0.0.1")}, {Key: ip("10.0.0.2")}}},
			{Name: "v6", Key: []nftables.Type{nftables.TypeIPv6}, Elements: []nftables.Element{{Key: ip("fd00::1")}}},
			{Name: "names", Key: []nftables.Type{nftables.TypeIfname}, Counter: true, Elements: []nftables.Element{{Key: nftables.Ifname("lo")}}},
			{
				Name: "sources", Key: []nftables.Type{nftables.TypeIfname, nftables.TypeEther, nftables.TypeIPv4},
				Elements: []nftables.Element{{Key: nftables.Concat(nftables.Ifname("eth0"), mac, ip("10.0.0.1"))}},
			},
			{
				Name: "services", Key: []nftables.Type{nftables.TypeIPv4, nftables.TypeProto, nftables.TypePort}, Value: []nftables.Type{nftables.TypeVerdict},
				Elements: []nftables.Element{
					{Key: nftables.Concat(ip("10.96.0.1"), nftables.Proto(nftables.TCP), nftables.Port(443)), Verdict: nftables.Verdict{Kind: nftables.Goto, Chain: "four"}},
					{Key: nftables.Concat(ip("10.96.0.2"), nftables.Proto(nftables.UDP), nftables.Port(53)), Verdict: drop},
				},
			},
			{
				Name: "ranges", Key: []nftables.Type{nftables.TypeIPv4}, Interval: true,
				Elements: []nftables.Element{
					{Key: ip("10.0.0.0"), Last: ip("10.255.255.255")},
					{Key: ip("11.0.0.0"), Last: ip("11.0.0.0")},
					{Key: ip("192.168.0.5"), Last: ip("192.168.0.9")},
					{Key: ip("240.0.0.0"), Last: ip("255.255.255.255")},
				},
			},
			{
				Name: "areas", Key: []nftables.Type{nftables.TypeIPv4, nftables.TypePort}, Interval: true,
				Elements: []nftables.Element{{
					Key:  nftables.Concat(ip("10.0.0.0"), nftables.Port(80)),
					Last: nftables.Concat(ip("10.0.255.255"), nftables.Port(90)),
				}},
			},
			{
				Name: "marks", Key: []nftables.Type{nftables.TypeIfname}, Value: []nftables.Type{nftables.TypeMark},
				Elements: []nftables.Element{{Key: nftables.Ifname("eth0"), Value: palindrome}},
			},
			{
				Name: "targets", Key: []nftables.Type{nftables.TypeMark}, Value: []nftables.Type{nftables.TypeIPv4, nftables.TypePort},
				Elements: []nftables.Element{{Key: nftables.Native(1), Value: nftables.Concat(ip("10.0.0.7"), nftables.Port(8080))}},
			},
		},
		Chains: []nftables.Chain{
			{
				Name: "in", Hook: &nftables.Hook{Type: nftables.Filter, Point: nftables.Input, Priority: -5, Policy: nftables.PolicyDrop},
				Rules: []nftables.Rule{
					nftables.NewRule(nftables.Lookup{Key: nftables.KeyOf(nftables.Iifname), Set: "names"}, nftables.Counter{}),
					nftables.NewRule(nftables.AnyBits(nftables.CtState, nftables.CtEstablished|nftables.CtRelated), accept),
					nftables.NewRule(nftables.Ne(nftables.Iifname, nftables.Ifname("lo")), nftables.Eq(nftables.IPDaddr, ip("10.0.0.1")), drop).Commented("not here"),
					nftables.NewRule(nftables.Lookup{Key: nftables.KeyOf(nftables.Iifname, nftables.EtherSaddr, nftables.IPSaddr), Set: "sources"}, nftables.Verdict{Kind: nftables.Return}),
					nftables.NewRule(nftables.Lookup{Key: nftables.Key{nftables.Bits(nftables.IPSaddr, 28)}, Set: "v4", Not: true}, nftables.Counter{}, drop),
					nftables.NewRule(nftables.VerdictMap{Key: nftables.KeyOf(nftables.IPDaddr, nftables.L4Proto, nftables.ThDport), Map: "services"}),
					nftables.NewRule(nftables.Lookup{Key: nftables.KeyOf(nftables.IP6Saddr), Set: "v6"}, nftables.Eq(nftables.ICMPv6Type, nftables.Proto(135)), accept),
					nftables.NewRule(nftables.Eq(nftables.ICMPType, nftables.Proto(8)), nftables.Eq(nftables.ICMPCode, nftables.Proto(0)), nftables.Verdict{Kind: nftables.Jump, Chain: "four"}),
					nftables.NewRule(nftables.In(nftables.IPSaddr, netip.MustParsePrefix("10.0.0.0/12")), nftables.Eq(nftables.L4Proto, nftables.Proto(nftables.TCP)), nftables.Between(nftables.ThDport, nftables.Port(80), nftables.Port(90)), nftables.Reject{With: nftables.TCPReset}),
					nftables.NewRule(nftables.Lookup{Key: nftables.KeyOf(nftables.IPSaddr, nftables.ThDport), Set: "areas"}, nftables.Reject{With: nftables.AdminProhibited}),
					nftables.NewRule(nftables.Lookup{Key: nftables.KeyOf(nftables.IPSaddr), Set: "ranges"}, drop),
				},
			},
			{
				Name: "pre", Hook: &nftables.Hook{Type: nftables.Filter, Point: nftables.Prerouting, Priority: -310},
				Rules: []nftables.Rule{
					nftables.NewRule(nftables.SetFromMap{Field: nftables.MetaMark, Key: nftables.KeyOf(nftables.Iifname), Map: "marks"}),
					nftables.NewRule(nftables.Routed(false), drop),
					nftables.NewRule(nftables.Eq(nftables.FibDaddrIifType, nftables.Local()), nftables.Eq(nftables.CtDirection, nftables.CtOriginal()), nftables.SetBits{Field: nftables.CtMark, Bits: 0x80}),
					nftables.NewRule(nftables.Eq(nftables.FibDaddrType, nftables.Local()), nftables.AllBits(nftables.CtMark, 0x80), nftables.SetBits{Field: nftables.MetaMark, Bits: 0x80}),
					nftables.NewRule(nftables.Eq(nftables.Iifgroup, nftables.Native(7)), nftables.Verdict{Kind: nftables.Goto, Chain: "four"}),
				},
			},
			{
				Name: "post", Hook: &nftables.Hook{Type: nftables.NAT, Point: nftables.Postrouting, Priority: 95},
				Rules: []nftables.Rule{
					nftables.NewRule(nftables.Eq(nftables.Oifgroup, nftables.Native(7)), nftables.Verdict{Kind: nftables.Return}),
					nftables.NewRule(nftables.Eq(nftables.Oifname, nftables.Ifname("eth0")), nftables.SNAT{To: netip.MustParseAddr("10.0.0.10"), FullyRandom: true}),
				},
			},
			{
				Name: "translate", Hook: &nftables.Hook{Type: nftables.NAT, Point: nftables.Prerouting, Priority: -100},
				Rules: []nftables.Rule{
					nftables.NewRule(nftables.Eq(nftables.IPDaddr, ip("10.0.0.2")), nftables.DNAT{To: netip.MustParseAddr("10.0.0.10")}),
				},
			},
			{Name: "four", Rules: []nftables.Rule{nftables.NewRule(nftables.Counter{}, accept)}},
		},
	}
}

func TestTheKernelAndNFTReadATableAsItWasWritten(t *testing.T) {
	arp := nftables.Table{
		TableName: nftables.TableName{Family: nftables.ARP, Name: "t"},
		Sets:      []nftables.Set{{Name: "senders", Key: []nftables.Type{nftables.TypeEther, nftables.TypeIPv4}}},
		Chains: []nftables.Chain{{
			Name: "in", Hook: &nftables.Hook{Type: nftables.Filter, Point: nftables.Input},
			Rules: []nftables.Rule{
				nftables.NewRule(nftables.Lookup{Key: nftables.KeyOf(nftables.ARPSaddrEther, nftables.ARPSaddrIP), Set: "senders", Not: true}, nftables.Verdict{Kind: nftables.Drop}),
			},
		}},
	}
	for _, want := range []nftables.Table{all(), arp} {
		c, ns := dial(t)
		become(t, c, want)
		have, err := c.Read(want.TableName)
		must(t, err)
		if changes := nftables.Diff(want, have); len(changes) > 0 {
			t.Errorf("read back it lacks %v", changes)
		}
		// nft -f understands the text, and makes the same table of it as netlink did.
		oracle := testns.New(t, "oracle")
		nft8(t, oracle, want.String())
		for _, args := range [][]string{{"list", "ruleset"}, {"-s", "-j", "list", "ruleset"}} {
			if diff := cmp.Diff(nft8(t, oracle, "", args...), nft8(t, ns, "", args...)); diff != "" {
				t.Errorf("nft %v: text (-) and netlink (+) differ:\n%s", args, diff)
			}
		}
	}
}

// nft(8) writes most rules as netlink did, and is a second opinion on what they mean.
// It merges the loads of neighbouring fields, and knows IPv4 by the Ethernet type where
// that is at hand.
func TestRulesOfNFTAreReadAsTheSameRules(t *testing.T) {
	want := all()
	c, ns := dial(t)
	nft8(t, ns, want.String())
	have, err := c.Read(name)
	must(t, err)
	same := 0
	for _, chain := range want.Chains {
		for i, r := range chain.Rules {
			got := have.Chain(chain.Name).Rules[i]
			if _, unknown := got.Exprs[0].(nftables.Unknown); unknown {
				continue
			}
			same++
			if got.String() != r.String() {
				t.Errorf("%q is read as %q", r, got)
			}
		}
	}
	if same < 15 {
		t.Errorf("only %d rules are understood", same)
	}
}

// drawStep draws a table that differs from all() in elements, rules, sets and chains.
func drawStep(t *rapid.T) nftables.Table {
	table := all()
	for i, s := range table.Sets {
		most := -1
		if s.Name == "areas" {
			most = 1 // nft lists those as they were added
		}
		table.Sets[i].Elements = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) nftables.Element { return drawElement(t, s) }), 0, most, func(e nftables.Element) nftables.Data { return e.Key }).Draw(t, s.Name)
		if s.Name == "ranges" {
			table.Sets[i].Elements = drawRanges(t)
		}
	}
	for i, c := range table.Chains {
		table.Chains[i].Rules = rapid.SliceOfN(rapid.SampledFrom(append(c.Rules, c.Rules...)), 0, 12).Draw(t, c.Name)
	}
	return table
}

func drawElement(t *rapid.T, s nftables.Set) nftables.Element {
	value := func(types []nftables.Type) nftables.Data {
		parts := make([]nftables.Data, len(types))
		for i, typ := range types {
			switch typ {
			case nftables.TypeIfname:
				parts[i] = nftables.Ifname(rapid.StringMatching(`eth[0-9]`).Draw(t, "name"))
			case nftables.TypeMark:
				parts[i] = palindrome
			default:
				parts[i] = nftables.Data(rapid.SliceOfN(rapid.ByteRange(0, 3), typ.Size(), typ.Size()).Draw(t, "bytes"))
			}
		}
		return nftables.Concat(parts...)
	}
	e := nftables.Element{Key: value(s.Key)}
	switch {
	case s.Interval:
		e.Last = e.Key
	case slices.Equal(s.Value, []nftables.Type{nftables.TypeVerdict}):
		e.Verdict = rapid.SampledFrom([]nftables.Verdict{{Kind: nftables.Drop}, {Kind: nftables.Jump, Chain: "four"}}).Draw(t, "verdict")
	case s.Value != nil:
		e.Value = value(s.Value)
	}
	return e
}

// drawRanges draws ranges that do not overlap, some of which touch.
func drawRanges(t *rapid.T) (list []nftables.Element) {
	bounds := rapid.SliceOfNDistinct(rapid.ByteRange(0, 20), 0, 8, rapid.ID).Draw(t, "bounds")
	slices.Sort(bounds)
	for i := 0; i+1 < len(bounds); i++ {
		if rapid.IntRange(0, 2).Draw(t, "gap") == 0 {
			continue
		}
		last := bounds[i+1] - 1
		list = append(list, nftables.Element{Key: ip(fmt.Sprintf("10.0.0.%d", bounds[i])), Last: ip(fmt.Sprintf("10.0.0.%d", last))})
	}
	return list
}

func TestAnyTableBecomesAnyOtherInOneTransaction(t *testing.T) {
	c, ns := dial(t)
	oracle := testns.New(t, "oracle")
	rapid.Check(t, func(t *rapid.T) {
		want := drawStep(t)
		before, err := c.Generation()
		must(t, err)
		changes := become(t, c, want)
		after, err := c.Generation()
		must(t, err)
		if len(changes) > 0 && after != before+1 {
			t.Fatalf("%d transactions", after-before)
		}
		have, err := c.Read(name)
		must(t, err)
		if again := nftables.Diff(want, have); len(again) > 0 {
			t.Fatalf("after %v it lacks %v", changes, again)
		}
		for _, ch := range want.Chains {
			if diff := cmp.Diff(fmt.Sprint(ch.Rules), fmt.Sprint(have.Chain(ch.Name).Rules)); diff != "" {
				t.Fatalf("rules of chain %s (-want +have):\n%s", ch.Name, diff)
			}
		}
		nft8(t, oracle, "flush ruleset\n"+want.String())
		if diff := cmp.Diff(nft8(t, oracle, "list ruleset"), nft8(t, ns, "list ruleset")); diff != "" {
			t.Fatalf("as nft lists it (-want +have):\n%s", diff)
		}
	})
}
