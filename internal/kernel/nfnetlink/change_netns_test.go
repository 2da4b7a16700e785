//go:build netns

package nfnetlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
	"github.com/trunkline/trunkline/test/testns"
)

// handles are the rules of a chain as nft numbers them.
func handles(t testing.TB, ns *testns.NS, chain string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(nft8(t, ns, "", "-a", "list", "chain", "inet", "t", chain)) {
		if rule, handle, ok := strings.Cut(strings.TrimSpace(line), " # handle "); ok {
			found[rule] = strings.TrimSpace(handle)
		}
	}
	return found
}

func TestARuleMoreLeavesTheOtherRulesAndTheCountsAlone(t *testing.T) {
	c, ns := dial(t)
	want := all()
	become(t, c, want)
	must(t, ns.Run(lo))
	must(t, ns.Run(func() error { return send("127.0.0.1:9") }))
	counted := func() Count {
		counts, err := c.Counts(name, "names")
		must(t, err)
		return counts[nftables.Ifname("lo")]
	}
	before, had := counted(), handles(t, ns, "in")
	if before.Packets == 0 {
		t.Fatal("nothing was counted: the test proves nothing")
	}
	in := want.Chain("in")
	in.Rules = slices.Insert(in.Rules, 3, nftables.NewRule(nftables.Eq(nftables.ThDport, nftables.Port(7)), nftables.Verdict{Kind: nftables.Drop}))
	names := want.Set("names")
	names.Elements = append(names.Elements, nftables.Element{Key: nftables.Ifname("eth9")})
	if changes := become(t, c, want); len(changes) != 2 {
		t.Errorf("changes %v, want a rule and an element", changes)
	}
	have := handles(t, ns, "in")
	for rule, handle := range had {
		if !strings.HasPrefix(rule, "chain") && have[rule] != handle {
			t.Errorf("rule %q has handle %q, had %q", rule, have[rule], handle)
		}
	}
	if got := counted(); got != before {
		t.Errorf("the counter is at %v, was at %v", got, before)
	}
}

func lo() error {
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

func send(to string) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("?"))
	return err
}

func TestWhatOthersAddedGoesAlsoWhatIsNotUnderstood(t *testing.T) {
	c, ns := dial(t)
	want := all()
	become(t, c, want)
	whole := nft8(t, ns, "list ruleset")
	for _, script := range []string{
		"add rule inet t in socket transparent 1 accept",
		"insert rule inet t in meta cpu 3 drop",
		"add rule inet t in tcp dport { 1, 2, 3 } accept",
		"add rule inet t in limit rate 1/second log prefix \"x\"",
		"add rule inet t pre ip saddr 10.0.0.1 ip daddr 10.0.0.2 ct state new accept",
		"add rule inet t in iifname \"eth*\" accept",
		"add set inet t more { type ipv4_addr; flags timeout; }",
		"add set inet t more { type ipv4_addr; flags dynamic; size 5; }\nadd rule inet t in add @more { ip saddr limit rate 1/second } drop",
		"add map inet t more { type ipv4_addr : verdict; elements = { 1.2.3.4 : jump extra } }\nadd chain inet t extra\nadd rule inet t extra ip saddr vmap @more",
		"add chain inet t extra { type filter hook output priority 3; }\nadd rule inet t extra jump four",
		"add element inet t services { 1.2.3.4 . tcp . 5 : jump four }",
		"delete element inet t services { 10.96.0.2 . udp . 53 }\nadd element inet t services { 10.96.0.2 . udp . 53 : accept }",
		"add element inet t marks { \"eth1\" : 5 }",
		"table inet t { flags dormant; }",
		"add chain inet t in { policy accept; }",
		"delete table inet t",
		"flush table inet t",
	} {
		t.Run(script, func(t *testing.T) {
			script = strings.ReplaceAll(script, "add map inet t more", "add chain inet t extra\nadd map inet t more")
			nft8(t, ns, script)
			if len(become(t, c, want)) == 0 {
				t.Error("it is not seen")
			}
			if diff := cmp.Diff(whole, nft8(t, ns, "list ruleset")); diff != "" {
				t.Errorf("(-want +have):\n%s", diff)
			}
		})
	}
}

func TestATransactionIsMadeWholeOrNotAtAll(t *testing.T) {
	c, ns := dial(t)
	want := all()
	become(t, c, want)
	whole := nft8(t, ns, "list ruleset")
	s := *want.Set("v4")
	err := c.Commit(
		nftables.AddElements{Table: name, Set: s.With(nftables.Element{Key: ip("10.0.0.99")})},
		nftables.DeleteElements{Table: name, Set: s.With(nftables.Element{Key: ip("10.0.0.98")})},
	)
	if !errors.Is(err, unix.ENOENT) {
		t.Errorf("deleting what is not there: %v, want ENOENT", err)
	}
	if diff := cmp.Diff(whole, nft8(t, ns, "list ruleset")); diff != "" {
		t.Errorf("after a transaction that failed (-want +have):\n%s", diff)
	}
	if err := c.Commit(nftables.AddElements{Table: name, Set: s.With(nftables.Element{Key: ip("10.0.0.99")})}); err != nil {
		t.Errorf("the transaction after it: %v", err)
	}
}

func TestARuleThatMovedMeanwhileIsNotDeleted(t *testing.T) {
	c, ns := dial(t)
	want := all()
	become(t, c, want)
	have, err := c.Read(name)
	must(t, err)
	want.Chain("in").Rules = want.Chain("in").Rules[1:]
	nft8(t, ns, "insert rule inet t in meta cpu 3 drop")
	if err := c.Commit(nftables.Diff(want, have)...); !errors.Is(err, ErrChanged) {
		t.Errorf("got %v, want ErrChanged", err)
	}
	become(t, c, want)
	if again := become(t, c, want); len(again) > 0 {
		t.Errorf("read again it lacks %v", again)
	}
}

func TestAHugeSetArrivesWhole(t *testing.T) {
	c, _ := dial(t)
	const elements = 20000
	want := nftables.Table{TableName: name, Sets: []nftables.Set{{
		Name: "services", Key: []nftables.Type{nftables.TypeIPv4, nftables.TypeProto, nftables.TypePort}, Value: []nftables.Type{nftables.TypeVerdict},
	}}, Chains: []nftables.Chain{{Name: "four"}}}
	s := &want.Sets[0]
	for n := range elements {
		a := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
		s.Elements = append(s.Elements, nftables.Element{
			Key:     nftables.Concat(nftables.Addr(a), nftables.Proto(nftables.TCP), nftables.Port(80)),
			Verdict: nftables.Verdict{Kind: nftables.Goto, Chain: "four"},
		})
	}
	become(t, c, want)
	have, err := c.Read(name)
	must(t, err)
	if n := len(have.Sets[0].Elements); n != elements {
		t.Errorf("%d elements, want %d", n, elements)
	}
	if again := nftables.Diff(want, have); len(again) > 0 {
		t.Errorf("it lacks %.300s", again)
	}
	s.Elements = s.Elements[1:]
	if got := fmt.Sprint(become(t, c, want)); got != "[delete element inet t services { 10.96.0.0 . tcp . 80 : goto four }]" {
		t.Errorf("one element less: %s", got)
	}
}

func TestOnlyOwnPortsAreOwn(t *testing.T) {
	c, ns := dial(t)
	file := ns.Open(t)
	defer file.Close()
	other, err := Dial(int(file.Fd()))
	must(t, err)
	defer other.Close()
	for port := range c.ports {
		if !c.Wrote(port) || other.Wrote(port) {
			t.Errorf("port %d", port)
		}
	}
	if len(c.ports) == 0 {
		t.Error("no port is known")
	}
}

// BenchmarkElement is what one pod adds and takes away, alone.
func BenchmarkElement(b *testing.B) {
	c, _ := dial(b)
	become(b, c, all())
	t := all()
	s := t.Set("v4").With(nftables.Element{Key: ip("10.0.0.77")})
	for b.Loop() {
		must(b, c.Commit(nftables.AddElements{Table: name, Set: s}))
		must(b, c.Commit(nftables.DeleteElements{Table: name, Set: s}))
	}
}

// BenchmarkRead is a full read of a table that has one of everything.
func BenchmarkRead(b *testing.B) {
	c, _ := dial(b)
	become(b, c, all())
	for b.Loop() {
		_, err := c.Read(name)
		must(b, err)
	}
}
