package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func address(last byte) Data { return Addr(netip.AddrFrom4([4]byte{10, 0, 0, last})) }

// drawTable draws a table of few names, so that two tables have much in common.
func drawTable(t *rapid.T) Table {
	table := Table{TableName: TableName{Inet, "t"}, Dormant: rapid.Bool().Draw(t, "dormant")}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, "sets") {
		s := Set{Name: name, Key: []Type{TypeIPv4}, Counter: rapid.IntRange(0, 5).Draw(t, "counter") == 0}
		for range rapid.IntRange(0, 4).Draw(t, "elements") {
			s.Elements = append(s.Elements, Element{Key: address(rapid.ByteRange(1, 5).Draw(t, "element"))})
		}
		table.Sets = append(table.Sets, s)
	}
	if rapid.Bool().Draw(t, "map") {
		m := Set{Name: "m", Key: []Type{TypeIPv4}, Value: []Type{TypeMark}}
		for n := range rapid.ByteRange(0, 4).Draw(t, "entries") {
			m.Elements = append(m.Elements, Element{Key: address(n), Value: Native(rapid.Uint32Range(1, 2).Draw(t, "value"))})
		}
		table.Sets = append(table.Sets, m)
	}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3, rapid.ID).Draw(t, "chains") {
		c := Chain{Name: name}
		if name == "x" {
			c.Hook = &Hook{Type: Filter, Point: Input, Priority: rapid.IntRange(0, 1).Draw(t, "priority"), Policy: rapid.SampledFrom([]Policy{"", PolicyAccept, PolicyDrop}).Draw(t, "policy")}
		}
		for range rapid.IntRange(0, 6).Draw(t, "rules") {
			c.Rules = append(c.Rules, NewRule(Eq(ThDport, Port(rapid.Uint16Range(1, 4).Draw(t, "port"))), Verdict{Kind: Drop}))
		}
		table.Chains = append(table.Chains, c)
	}
	return table
}

// normal is a table with its parts in one order and each element once.
func normal(t Table) string {
	t.Sets, t.Chains = slices.Clone(t.Sets), slices.Clone(t.Chains)
	slices.SortFunc(t.Sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Chains, func(a, b Chain) int { return strings.Compare(a.Name, b.Name) })
	for i, s := range t.Sets {
		sorted := slices.SortedFunc(slices.Values(s.Elements), compareElements)
		t.Sets[i].Elements = slices.Compact(sorted)
	}
	return t.String()
}

// kernel does what the changes say, as strictly as the kernel.
type kernel struct {
	t     *rapid.T
	table *Table
}

func (k *kernel) do(changes []Change) {
	type slot struct {
		before []Rule // inserted ahead of the rule
		gone   bool
	}
	positions := map[string][]slot{}
	ends := map[string][]Rule{}
	if k.table != nil {
		for _, c := range k.table.Chains {
			positions[c.Name] = make([]slot, len(c.Rules))
		}
	}
	for _, change := range changes {
		switch c := change.(type) {
		case InsertRule:
			if c.Before == End {
				ends[c.Chain] = append(ends[c.Chain], c.Rule)
				continue
			}
			at := &positions[c.Chain][c.Before]
			at.before = append(at.before, c.Rule)
		case DeleteRule:
			at := &positions[c.Chain][c.At]
			if at.gone || k.table.Chain(c.Chain).Rules[c.At].String() != c.Rule.String() {
				k.t.Fatalf("%s: there is no such rule", c)
			}
			at.gone = true
		default:
			if _, replaced := change.(DeleteTable); replaced {
				clear(positions)
			}
			k.object(change)
		}
	}
	for i, chain := range k.table.Chains {
		var rules []Rule
		for at, s := range positions[chain.Name] {
			rules = append(rules, s.before...)
			if !s.gone {
				rules = append(rules, chain.Rules[at])
			}
		}
		k.table.Chains[i].Rules = append(rules, ends[chain.Name]...)
	}
}

func (k *kernel) object(change Change) {
	fail := func() { k.t.Fatalf("%s: not possible", change) }
	switch c := change.(type) {
	case AddTable:
		if k.table == nil {
			k.table = &Table{TableName: c.Table}
		}
		k.table.Dormant = false
	case DeleteTable:
		k.table = nil
	case AddSet:
		if k.table.Set(c.Set.Name) != nil || len(c.Set.Elements) > 0 {
			fail()
		}
		k.table.Sets = append(k.table.Sets, c.Set)
	case DeleteSet:
		k.table.Sets = slices.DeleteFunc(k.table.Sets, func(s Set) bool { return s.Name == c.Set.Name })
	case AddElements:
		s := k.table.Set(c.Set.Name)
		for _, e := range c.Set.Elements {
			if slices.ContainsFunc(s.Elements, func(o Element) bool { return o.Key == e.Key }) {
				fail()
			}
			s.Elements = append(s.Elements, e)
		}
	case DeleteElements:
		s := k.table.Set(c.Set.Name)
		for _, e := range c.Set.Elements {
			i := slices.Index(s.Elements, e)
			if i < 0 {
				fail()
			}
			s.Elements = slices.Delete(s.Elements, i, i+1)
		}
	case AddChain:
		if h := k.table.Chain(c.Chain.Name); h != nil {
			h.Hook = c.Chain.Hook
			return
		}
		k.table.Chains = append(k.table.Chains, c.Chain)
	case FlushChain:
		k.table.Chain(c.Chain).Rules = nil
	case DeleteChain:
		if len(k.table.Chain(c.Chain).Rules) > 0 {
			fail()
		}
		k.table.Chains = slices.DeleteFunc(k.table.Chains, func(o Chain) bool { return o.Name == c.Chain })
	default:
		fail()
	}
}

// copied is a table that shares no list with another.
func copied(t Table) *Table {
	t.Sets, t.Chains = slices.Clone(t.Sets), slices.Clone(t.Chains)
	for i := range t.Sets {
		t.Sets[i].Elements = slices.Compact(slices.SortedFunc(slices.Values(t.Sets[i].Elements), compareElements))
	}
	for i := range t.Chains {
		t.Chains[i].Rules = slices.Clone(t.Chains[i].Rules)
	}
	return &t
}

func TestTheChangesTurnOneTableIntoTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, k := drawTable(t), kernel{t: t}
		want.Dormant = false
		if rapid.Bool().Draw(t, "exists") {
			k.table = copied(drawTable(t))
		}
		changes := Diff(want, k.table)
		k.do(changes)
		if diff := cmp.Diff(normal(want), normal(*k.table)); diff != "" {
			t.Fatalf("after %v (-want +got):\n%s", changes, diff)
		}
		if again := Diff(want, k.table); len(again) > 0 {
			t.Fatalf("the second time: %v", again)
		}
	})
}

// A rule or element that both have is in no change, unless a type or a hook differs.
func TestWhatBothTablesHaveIsNotTouched(t *testing.T) {
	rules := func(ports ...uint16) (list []Rule) {
		for _, p := range ports {
			list = append(list, NewRule(Eq(ThDport, Port(p)), Verdict{Kind: Drop}))
		}
		return list
	}
	table := func(elements []byte, ports ...uint16) Table {
		s := Set{Name: "s", Key: []Type{TypeIPv4}}
		for _, n := range elements {
			s.Elements = append(s.Elements, Element{Key: address(n)})
		}
		return Table{
			TableName: TableName{Inet, "t"}, Sets: []Set{s},
			Chains: []Chain{{Name: "c", Hook: &Hook{Type: Filter, Point: Input}, Rules: rules(ports...)}},
		}
	}
	have := table([]byte{1, 2}, 1, 2, 3)
	for _, try := range []struct {
		name string
		want Table
		diff []string
	}{
		{"nothing", table([]byte{2, 1, 1}, 1, 2, 3), nil},
		{"an element more", table([]byte{1, 2, 3}, 1, 2, 3), []string{"add element inet t s { 10.0.0.3 }"}},
		{"an element less", table([]byte{2}, 1, 2, 3), []string{"delete element inet t s { 10.0.0.1 }"}},
		{"a rule at the end", table([]byte{1, 2}, 1, 2, 3, 4), []string{"add rule inet t c th dport 4 drop"}},
		{"a rule first", table([]byte{1, 2}, 4, 1, 2, 3), []string{"insert rule inet t c index 0 th dport 4 drop"}},
		{"two rules in the middle", table([]byte{1, 2}, 1, 4, 5, 2, 3), []string{"insert rule inet t c index 1 th dport 4 drop", "insert rule inet t c index 1 th dport 5 drop"}},
		{"a rule less", table([]byte{1, 2}, 1, 3), []string{"delete rule inet t c index 1 th dport 2 drop"}},
		{"another rule", table([]byte{1, 2}, 1, 4, 3), []string{"delete rule inet t c index 1 th dport 2 drop", "insert rule inet t c index 2 th dport 4 drop"}},
		{"two rules swapped", table([]byte{1, 2}, 2, 1, 3), []string{"delete rule inet t c index 1 th dport 2 drop", "insert rule inet t c index 0 th dport 2 drop"}},
	} {
		t.Run(try.name, func(t *testing.T) {
			var got []string
			for _, c := range Diff(try.want, &have) {
				got = append(got, c.String())
			}
			if diff := cmp.Diff(try.diff, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The order of the changes is part of what Diff promises: each finds what it names.
func TestAWholeTableIsAddedInOrderAndTakenAwayInReverse(t *testing.T) {
	name := TableName{IPv4, "t"}
	whole := Table{
		TableName: name,
		Sets:      []Set{{Name: "v", Key: []Type{TypeIfname}, Value: []Type{TypeVerdict}, Elements: []Element{{Key: Ifname("eth0"), Verdict: Verdict{Jump, "c"}}}}},
		Chains: []Chain{
			{Name: "b", Hook: &Hook{Type: NAT, Point: Prerouting, Priority: -100, Policy: PolicyDrop}, Rules: []Rule{NewRule(VerdictMap{KeyOf(Iifname), "v"})}},
			{Name: "c", Rules: []Rule{NewRule(Counter{}, Verdict{Kind: Accept}).Commented("all")}},
		},
	}
	for _, try := range []struct {
		want Table
		have *Table
		diff string
	}{
		{whole, nil, `add table ip t
add chain ip t b { type nat hook prerouting priority -100; policy drop; }
add chain ip t c
add map ip t v { type ifname : verdict }
add element ip t v { "eth0" : jump c }
add rule ip t b iifname vmap @v
add rule ip t c counter accept comment "all"`},
		{Table{TableName: name}, &whole, `flush chain ip t b
flush chain ip t c
delete map ip t v
delete chain ip t b
delete chain ip t c`},
	} {
		var got []string
		for _, c := range Diff(try.want, try.have) {
			got = append(got, c.String())
		}
		if diff := cmp.Diff(try.diff, strings.Join(got, "\n")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestATypeOrHookThatDiffersReplacesTheTableInOneTransaction(t *testing.T) {
	have := Table{
		TableName: TableName{Inet, "t"}, Sets: []Set{{Name: "s", Key: []Type{TypeIPv4}}},
		Chains: []Chain{{Name: "c", Hook: &Hook{Type: Filter, Point: Input}}},
	}
	for name, change := range map[string]func(*Table){
		"key":      func(t *Table) { t.Sets[0].Key = []Type{TypeIPv6} },
		"interval": func(t *Table) { t.Sets[0].Interval = true },
		"counter":  func(t *Table) { t.Sets[0].Counter = true },
		"priority": func(t *Table) { t.Chains[0].Hook = &Hook{Type: Filter, Point: Input, Priority: 1} },
		"no hook":  func(t *Table) { t.Chains[0].Hook = nil },
	} {
		want := *copied(have)
		change(&want)
		got := fmt.Sprint(Diff(want, &have))
		if !strings.HasPrefix(got, "[delete table inet t add table inet t ") {
			t.Errorf("%s: %s", name, got)
		}
	}
	want := *copied(have)
	want.Chains[0].Hook = &Hook{Type: Filter, Point: Input, Policy: PolicyDrop}
	if got := fmt.Sprint(Diff(want, &have)); got != "[add chain inet t c { type filter hook input priority 0; policy drop; }]" {
		t.Errorf("another policy: %s", got)
	}
}

// A chain of n rules that are all replaced is the worst case.
func BenchmarkDiff(b *testing.B) {
	chain := func(n, shift int) Table {
		c := Chain{Name: "c"}
		for i := range n {
			c.Rules = append(c.Rules, NewRule(Eq(ThDport, Port(uint16(i+shift))), Verdict{Kind: Drop}))
		}
		s := Set{Name: "s", Key: []Type{TypeIPv4}}
		for i := range n {
			s.Elements = append(s.Elements, Element{Key: Addr(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))})
		}
		return Table{TableName: TableName{Inet, "t"}, Sets: []Set{s}, Chains: []Chain{c}}
	}
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("same/%d", n), func(b *testing.B) {
			want, have := chain(n, 0), chain(n, 0)
			for b.Loop() {
				Diff(want, &have)
			}
		})
		b.Run(fmt.Sprintf("other/%d", n), func(b *testing.B) {
			want, have := chain(n, n), chain(n, 0)
			for b.Loop() {
				Diff(want, &have)
			}
		})
	}
}
