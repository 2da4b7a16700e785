package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func blockOf(prefix string, except ...string) *Block {
	return fromBlock(prefix, except...).Peers[0].Block
}

func TestABlockDividesAddressesAtItsRangeAndAtTheExceptionsWithinIt(t *testing.T) {
	for name, c := range map[string]struct {
		block *Block
		want  []string
	}{
		"a range":                         {blockOf("10.0.0.0/8"), []string{"10.0.0.0/8"}},
		"an address":                      {blockOf("10.0.0.1/32"), []string{"10.0.0.1/32"}},
		"bits behind its length":          {blockOf("10.1.2.3/8", "10.1.2.3/16"), []string{"10.0.0.0/8", "10.1.0.0/16"}},
		"an exception outside of it":      {blockOf("10.0.0.0/8", "192.0.2.0/24"), []string{"10.0.0.0/8"}},
		"an exception around it":          {blockOf("10.0.0.0/8", "0.0.0.0/0"), []string{"10.0.0.0/8"}},
		"an exception of all of it":       {blockOf("10.0.0.0/8", "10.0.0.0/8"), []string{"10.0.0.0/8"}},
		"an exception of another family":  {blockOf("0.0.0.0/0", "fd00::/8"), []string{"0.0.0.0/0"}},
		"a mapped exception":              {blockOf("fd00::/8", "::ffff:10.0.0.0/104"), []string{"fd00::/8"}},
		"a mapped exception within":       {blockOf("::/0", "::ffff:10.0.0.0/104"), []string{"::/0", "0.0.0.0/0"}},
		"all of IPv6":                     {blockOf("::/0", "fd00::/8"), []string{"::/0", "fd00::/8", "0.0.0.0/0"}},
		"an exception around mapped ones": {blockOf("::/0", "::/32"), []string{"::/0", "::/32", "0.0.0.0/0"}},
		"a range of IPv6 without them":    {blockOf("2000::/3"), []string{"2000::/3"}},
		"mapped addresses":                {blockOf("::ffff:10.0.0.0/104"), nil},
		"no range":                        {&Block{}, nil},
	} {
		var want []netip.Prefix
		for _, text := range c.want {
			want = append(want, netip.MustParsePrefix(text))
		}
		if got := bordersOf(c.block); !slices.Equal(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestOddBlocksAreJudgedAsEvaluateDoes(t *testing.T) {
	peers := []string{"0.0.0.0", "9.255.255.255", "10.0.0.0", "10.0.0.1", "10.1.2.3", "10.255.255.255", "11.0.0.0", "255.255.255.255", "::", "::1", "fd00::1", "2001:db8::1"}
	for name, list := range map[string][]*Block{
		"a block and its half":            {blockOf("10.0.0.0/8"), blockOf("10.0.0.0/9")},
		"an exception that another opens": {blockOf("10.0.0.0/8", "10.1.0.0/16"), blockOf("10.1.2.0/24")},
		"an exception of an exception":    {blockOf("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24")},
		"all of it is excepted":           {blockOf("10.0.0.0/8", "10.0.0.0/8")},
		"more than it is excepted":        {blockOf("10.0.0.0/8", "0.0.0.0/0")},
		"an exception outside of it":      {blockOf("10.0.0.0/9", "10.128.0.0/9")},
		"an exception of another family":  {blockOf("0.0.0.0/0", "::/0")},
		"both families":                   {blockOf("0.0.0.0/0"), blockOf("::/0")},
		"all of IPv6 but one address":     {blockOf("::/0", "::1/128")},
		"the low half of IPv6":            {blockOf("::/1")},
		"all but the mapped addresses":    {blockOf("::/0", "::ffff:0:0/96")},
		"the same block twice":            {blockOf("10.0.0.0/8"), blockOf("10.0.0.0/8")},
		"equal ranges, other exceptions":  {blockOf("10.0.0.0/8", "10.0.0.0/16"), blockOf("10.0.0.0/8", "10.1.0.0/16")},
		"single addresses":                {blockOf("10.0.0.1/32"), blockOf("fd00::1/128")},
		"a single address in a range":     {blockOf("10.0.0.0/8", "10.0.0.1/32")},
		"not masked":                      {blockOf("10.1.2.3/8", "10.1.2.3/16")},
		"an exception twice":              {blockOf("10.0.0.0/8", "10.1.0.0/16", "10.1.0.0/16")},
		"no range":                        {{}},
	} {
		var rules []Rule
		for _, b := range list {
			rules = append(rules, Rule{Peers: []Peer{{Block: b}}, AnyPort: true})
		}
		alone := newModel(Limits{})
		fill(alone)
		alone.setPolicy(toDB(rules...))
		alone.agrees(t, name+", in a scope of its own", peers, []uint16{80})
		for key := range alone.tables.Prefixes {
			if single(key.Prefix) {
				t.Errorf("%s: the address %s is written as a range", name, key.Prefix)
			}
		}
		alone.deletePolicy(toDB().Ref)
		if alone.apply(); alone.tables.Len() != 1 {
			t.Errorf("%s: the end of a scope of its own leaves %s", name, alone.tables)
		}
		m := node(toDB(rules...))
		m.agrees(t, name, peers, []uint16{80})
		m.setPolicy(toDB())
		m.apply()
		if len(m.tables.Prefixes)+len(m.tables.Classes) != 0 || len(m.engine.node.blocks.borders)+len(m.engine.matchers.blocks.borders) != 0 {
			t.Errorf("%s: without the blocks there are %s", name, m.tables)
		}
	}
}

// Blocks come and go one by one; what others have of them stays.
func TestTheEndOfABlockLeavesThoseOfOthers(t *testing.T) {
	blocks := []Rule{
		fromBlock("10.0.0.0/8", "10.0.0.0/16"), fromBlock("10.0.0.0/16"), fromBlock("10.0.0.0/8"), fromBlock("10.0.0.1/32"), fromBlock("10.0.0.0/30", "10.0.0.1/32"),
		fromPods("app=web"), fromBlock("::/0"), fromBlock("0.0.0.0/0", "10.0.0.0/8"),
	}
	m := node(toDB())
	check := func(what string, n int) {
		m.apply()
		for _, peer := range []string{"10.0.0.1", "10.0.0.3", "10.0.9.1", "10.1.0.0", "192.0.2.1", "fd00::1"} {
			q := tuple{1, Ingress, addr(peer), TCP, 80}
			if got, want := m.kernel(q), m.oracle(q); got != want {
				t.Errorf("%s of block %d: %s: %c, Evaluate says %c", what, n, peer, got, want)
			}
		}
		if got, want := snapshotOf(m.engine), snapshotOf(m.build().engine); got != want {
			t.Errorf("%s of block %d:\n%s", what, n, difference(got, want))
		}
	}
	for n := range blocks {
		m.setPolicy(toDB(blocks[:n+1]...))
		check("the addition", n)
	}
	for n := range blocks {
		m.setPolicy(toDB(blocks[n+1:]...))
		check("the end", n)
	}
}

// Pods of the same labels differ by the blocks that have their addresses.
func TestPodsOfTheSameLabelsAreJudgedByTheirBlocks(t *testing.T) {
	var peers []string
	m := node(toDB(fromPods("app=web"), fromBlock("10.0.0.0/8", "10.2.0.0/16"), fromBlock("10.1.0.0/16"), fromBlock("10.1.1.1/32")), outOf(fromBlock("10.1.0.0/16"), fromBlock("10.1.1.0/24")))
	for _, set := range []labels.Set{{"app": "web"}, nil} {
		for i, address := range []string{"10.3.0.", "10.1.0.", "10.1.1.", "10.2.0.", "192.0.2."} {
			address += fmt.Sprint(1 + len(set))
			m.setPod(newPod(fmt.Sprint("peer", i, len(set)), address, set))
			peers = append(peers, address)
		}
	}
	m.agrees(t, "peers after blocks", peers, []uint16{80})
	m.setPolicy(toDB(fromPods("app=web"), fromBlock("10.0.0.0/8", "10.1.0.0/16"), fromBlock("192.0.2.0/24")))
	m.agrees(t, "other blocks", peers, []uint16{80})
	m.setPolicy(outOf(fromPods("app=web")))
	m.agrees(t, "fewer blocks", peers, []uint16{80})
}

// A change of many blocks classifies all peers again, one of few only those near them.
func TestManyBlocksAtOnceAreJudgedAsOneByOne(t *testing.T) {
	for _, n := range []int{1, manyBlocks, manyBlocks + 1, 3 * manyBlocks} {
		m := node(toDB(fromPods("app=web")))
		for i := range 40 {
			m.setPod(newPod(string(rune('A'+i)), netip.AddrFrom4([4]byte{10, 7, byte(i), 1}).String(), nil))
		}
		m.apply()
		rules := []Rule{fromPods("app=web"), {Peers: []Peer{{Pods: pods("app notin (web)")}}, Ports: []Port{{Protocol: UDP, First: 1, Last: 1}}}}
		for i := range n {
			rules = append(rules, fromBlock(netip.AddrFrom4([4]byte{10, 7, byte(i), 0}).String()+"/24"))
		}
		for _, p := range []Policy{toDB(rules...), toDB(rules[:2]...), toDB()} {
			m.setPolicy(p)
			m.apply()
			for i := range 40 {
				q := tuple{1, Ingress, netip.AddrFrom4([4]byte{10, 7, byte(i), 1}), TCP, 80}
				if got, want := m.kernel(q), m.oracle(q); got != want {
					t.Fatalf("%d blocks: %s: %c, Evaluate says %c", n, q, got, want)
				}
			}
			if got, want := snapshotOf(m.engine), snapshotOf(m.build().engine); got != want {
				t.Fatalf("%d blocks:\n%s", n, difference(got, want))
			}
		}
	}
}
