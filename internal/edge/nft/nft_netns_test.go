//go:build netns

package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
	"github.com/trunkline/trunkline/test/testns"
)

func open(t testing.TB) (*Firewall, *testns.NS) {
	t.Helper()
	ns := testns.New(t, "node")
	f, err := Open(ns.Open(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, ns
}

// nft runs nft(8) in a namespace, as an operator would and as a second reader of the
// text form.
func nft(t testing.TB, ns *testns.NS, script string) string {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", ns.Name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
	return string(out)
}

func config(pods int) ruleset.Config {
	c := ruleset.Config{
		PrimaryLink: "eth0", PrimaryIPv4: netip.MustParseAddr("10.0.0.10"),
		VPCCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")},
		ExcludeSNAT: []netip.Prefix{netip.MustParsePrefix("192.168.4.0/22")},
	}
	for i := range pods {
		c.Pods = append(c.Pods, podN(i))
	}
	return c
}

func podN(i int) ruleset.Pod {
	return ruleset.Pod{
		Link: fmt.Sprintf("enitest%05d", i), MAC: vpc.MAC{2, 0, 0, 0, byte(i >> 8), byte(i)},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}, Metadata: i%7 == 0,
	}
}

// apply lists what differs from a configuration, and applies it.
func apply(t testing.TB, f *Firewall, c ruleset.Config) []string {
	t.Helper()
	bare := c
	bare.Pods = nil
	parts := []ruleset.Part{{Owner: "node", Ruleset: ruleset.Compile(bare)}}
	for _, p := range c.Pods {
		parts = append(parts, ruleset.Part{Owner: p.Link, Elements: p.Elements()})
	}
	have, err := f.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	actual := ruleset.NewActual(have)
	list := actual.Extra(parts)
	for _, p := range parts {
		for _, d := range actual.Diff(p) {
			if d.Why != "" {
				list = append(list, d.String())
			}
		}
	}
	if err := f.Apply(context.Background(), func() ruleset.Ruleset { return ruleset.Compile(c) }); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestNetlinkAndTextSayTheSame(t *testing.T) {
	f, ns := open(t)
	other := testns.New(t, "oracle")
	c := config(2)
	apply(t, f, c)
	nft(t, other, ruleset.Compile(c).String())
	if diff := cmp.Diff(nft(t, other, "list ruleset"), nft(t, ns, "list ruleset")); diff != "" {
		t.Errorf("nft -f (-) and netlink (+) differ:\n%s", diff)
	}
	if again := apply(t, f, c); len(again) > 0 {
		t.Errorf("a second Apply found %q", again)
	}
}

func list(t testing.TB, ns *testns.NS, what string) string {
	t.Helper()
	return nft(t, ns, "list "+what)
}

func TestDriftIsFoundAndRepaired(t *testing.T) {
	f, ns := open(t)
	c := config(3)
	if found := apply(t, f, c); len(found) != 2 {
		t.Errorf("a first Apply made %q", found)
	}
	both := func() string { return list(t, ns, "table inet trunkline") + list(t, ns, "table arp trunkline") }
	whole := both()
	for _, harm := range []struct{ do, found string }{
		{"flush ruleset", "table inet trunkline: is missing"},
		{"delete table arp trunkline", "table arp trunkline: is missing"},
		{"delete element inet trunkline pods4 { 10.0.0.1 }", "set pods4 of table trunkline: lacked 1 elements"},
		{"add element inet trunkline metadata4 { 10.0.0.2 }", "set metadata4 of table trunkline: had 1 elements too many"},
		{"add element inet trunkline kept4 { 203.0.113.0/24 }", "set kept4 of table trunkline: had other ranges"},
		{"flush set inet trunkline kept4", "set kept4 of table trunkline: had other ranges"},
		{"flush chain inet trunkline from_pod", "chain from_pod has 0 rules, not 3"},
		{"add rule inet trunkline translate accept", "chain translate has 3 rules, not 2"},
		{"add chain inet trunkline extra", "chain extra is not ours"},
		{"add set inet trunkline extra { type ipv4_addr; }", "set extra is not ours"},
		{"add chain inet trunkline forward { policy drop; }", "chain forward has another hook or policy"},
		{
			"flush chain inet trunkline forward; delete chain inet trunkline forward; add chain inet trunkline forward { type filter hook forward priority 5; }",
			"chain forward has another hook or policy",
		},
		{"table inet trunkline { flags dormant; }", "has flags"},
	} {
		t.Run(harm.do, func(t *testing.T) {
			nft(t, ns, harm.do)
			found := strings.Join(apply(t, f, c), "; ")
			if !strings.Contains(found, harm.found) {
				t.Errorf("found %q, want %q", found, harm.found)
			}
			if diff := cmp.Diff(whole, both()); diff != "" {
				t.Errorf("not as before (-want +got):\n%s", diff)
			}
			if again := apply(t, f, c); len(again) > 0 {
				t.Errorf("a second Apply found %q", again)
			}
		})
	}
}

func TestARuleThatWasReplacedIsFound(t *testing.T) {
	f, ns := open(t)
	c := config(1)
	apply(t, f, c)
	handle := ""
	for line := range strings.SplitSeq(runNFT(t, ns, "-a", "list", "chain", "inet", "trunkline", "translate"), "\n") {
		if rule, h, ok := strings.Cut(line, "# handle "); ok && strings.Contains(rule, "snat") {
			handle = h
		}
	}
	nft(t, ns, "replace rule inet trunkline translate handle "+handle+" ip saddr @pods4 ip daddr != @kept4 snat ip to 10.0.0.99 fully-random comment \"leaves the VPC\"")
	if found := strings.Join(apply(t, f, c), ""); !strings.Contains(found, "rule 2 of chain translate is another") {
		t.Errorf("found %q", found)
	}
}

func runNFT(t testing.TB, ns *testns.NS, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", ns.Name, "nft"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

func TestOthersTablesAreLeftAlone(t *testing.T) {
	f, ns := open(t)
	theirs := "table ip kube-proxy {\n\tset cluster-ips {\n\t\ttype ipv4_addr\n\t\telements = { 172.20.0.1 }\n\t}\n\n\tchain services {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tip daddr @cluster-ips dnat to 10.0.0.1\n\t}\n}\n"
	nft(t, ns, theirs)
	before := list(t, ns, "table ip kube-proxy")
	c := config(2)
	apply(t, f, c)
	nft(t, ns, "delete table inet trunkline")
	apply(t, f, c)
	if diff := cmp.Diff(before, list(t, ns, "table ip kube-proxy")); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestManyElementsAllArrive(t *testing.T) {
	f, ns := open(t)
	c := config(3000)
	apply(t, f, c)
	for set, want := range map[string]int{"inet trunkline sources4": 3000, "arp trunkline sources": 3000} {
		if got := strings.Count(list(t, ns, "set "+set), "enitest"); got != want {
			t.Errorf("set %s has %d elements, want %d", set, got, want)
		}
	}
	c.Pods = c.Pods[:2]
	apply(t, f, c)
	if got := strings.Count(list(t, ns, "set inet trunkline sources4"), "enitest"); got != 2 {
		t.Errorf("after the pods went, %d links are left", got)
	}
}

func TestAPodsElementsComeAndGoTogether(t *testing.T) {
	f, ns := open(t)
	ctx := context.Background()
	p := podN(7)
	p.Addresses = append(p.Addresses, netip.MustParseAddr("2600:1f14::7"))
	if err := f.Put(ctx, p.Elements()...); !errors.Is(err, ErrNoTable) {
		t.Errorf("Put without a table: %v, want ErrNoTable", err)
	}
	if err := f.Remove(ctx, p.Elements()...); err != nil {
		t.Errorf("Remove without a table: %v", err)
	}
	c := config(1)
	apply(t, f, c)
	for range 2 {
		if err := f.Put(ctx, p.Elements()...); err != nil {
			t.Fatal(err)
		}
	}
	c.Pods = append(c.Pods, p)
	if found := apply(t, f, c); len(found) > 0 {
		t.Errorf("after Put, Apply found %q", found)
	}
	nft(t, ns, "delete element inet trunkline pods4 { "+p.Addresses[0].String()+" }")
	for range 2 {
		if err := f.Remove(ctx, p.Elements()...); err != nil {
			t.Fatal(err)
		}
	}
	if found := apply(t, f, config(1)); len(found) > 0 {
		t.Errorf("after Remove, Apply found %q", found)
	}
}

func TestPutsFromManyGoroutinesAllArrive(t *testing.T) {
	f, _ := open(t)
	c := config(40)
	empty := config(0)
	apply(t, f, empty)
	var wg sync.WaitGroup
	for _, p := range c.Pods {
		wg.Go(func() {
			if err := f.Put(context.Background(), p.Elements()...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if found := apply(t, f, c); len(found) > 0 {
		t.Errorf("Apply found %q", found)
	}
}

func TestWatchHearsOthersAndNotUs(t *testing.T) {
	f, ns := open(t)
	c := config(1)
	apply(t, f, c)
	heard := make(chan string, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Watch(ctx, func(why string) { heard <- why })
	}()
	t.Cleanup(func() { cancel(); <-done })
	harm := func() { nft(t, ns, "add element inet trunkline metadata4 { 10.9.9.9 }\n") }
	undo := func() { nft(t, ns, "delete element inet trunkline metadata4 { 10.9.9.9 }\n") }
	listening := false
	for range 1000 { // until it listens
		harm()
		undo()
		select {
		case <-heard:
			listening = true
		case <-time.After(5 * time.Millisecond):
		}
		if listening {
			break
		}
	}
	if !listening {
		t.Fatal("a change by nft(8) is not heard")
	}
	drain := func() (n int) {
		for {
			select {
			case <-heard:
				n++
			case <-time.After(300 * time.Millisecond): // silence
				return n
			}
		}
	}
	drain()
	if err := f.Put(ctx, podN(5).Elements()...); err != nil {
		t.Fatal(err)
	}
	apply(t, f, c)
	nft(t, ns, "table inet theirs {\n}\n")
	if n := drain(); n > 0 {
		t.Errorf("heard %d times of our own changes and of another program's table", n)
	}
	nft(t, ns, "flush ruleset")
	select {
	case <-heard:
	case <-time.After(time.Minute):
		t.Error("did not hear that all was flushed")
	}
}

// BenchmarkPod is what ADD and DEL change in nftables.
func BenchmarkPod(b *testing.B) {
	f, _ := open(b)
	apply(b, f, config(60))
	elements := podN(1000).Elements()
	b.Run("put+remove", func(b *testing.B) {
		for b.Loop() {
			if err := f.Put(b.Context(), elements...); err != nil {
				b.Fatal(err)
			}
			if err := f.Remove(b.Context(), elements...); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("put", func(b *testing.B) {
		for b.Loop() {
			if err := f.Put(b.Context(), elements...); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkApply is a full pass over a ruleset that is as it should be.
func BenchmarkApply(b *testing.B) {
	f, _ := open(b)
	rs := ruleset.Compile(config(60))
	apply(b, f, config(60))
	for b.Loop() {
		if err := f.Apply(b.Context(), func() ruleset.Ruleset { return rs }); err != nil {
			b.Fatal(err)
		}
	}
}

func TestProbeNamesTheRuleThatTheKernelRefuses(t *testing.T) {
	rs := ruleset.Compile(config(1))
	if err := Probe(context.Background(), rs); err != nil {
		t.Errorf("this kernel refuses our ruleset: %v", err)
	}
	// Translating a source is not possible in a filter chain: it stands for what a kernel lacks.
	for i := range rs.Tables[0].Chains {
		if c := &rs.Tables[0].Chains[i]; c.Name == "antispoof" {
			c.Rules = append(c.Rules, nftables.NewRule(nftables.SNAT{To: netip.MustParseAddr("10.0.0.1")}))
		}
	}
	if err := Probe(context.Background(), rs); err == nil || !strings.Contains(err.Error(), `refuses "snat ip to 10.0.0.1"`) {
		t.Errorf("got %v", err)
	}
}

// The connection gets a new port after each transaction that fails.
func TestWatchListensAfterManyFailedTransactions(t *testing.T) {
	f, ns := open(t)
	apply(t, f, config(1))
	absent := podN(9).Elements()[0]
	for range 520 { // every second port is new; a filter names at most 255
		if err := f.Remove(t.Context(), absent); err != nil {
			t.Fatal(err)
		}
	}
	heard := make(chan string, 1000)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- f.Watch(ctx, func(why string) { heard <- why }) }()
	defer cancel()
	for range 1000 { // until it listens
		nft(t, ns, "add element inet trunkline metadata4 { 10.9.9.9 }\n")
		nft(t, ns, "delete element inet trunkline metadata4 { 10.9.9.9 }\n")
		select {
		case <-heard:
			cancel()
			<-ended
			return
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	t.Error("a change by nft(8) is not heard")
}
