package ruleset

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var (
	macA = vpc.MAC{2, 0, 0, 0, 0, 0xa}
	macB = vpc.MAC{2, 0, 0, 0, 0, 0xb}
)

func config() Config {
	return Config{
		PrimaryLink: "eth0", PrimaryIPv4: addr("10.0.0.10"),
		VPCCIDRs: prefixes("10.0.0.0/16"), ExcludeSNAT: prefixes("192.168.0.0/16"),
		Pods: []Pod{
			{Link: "eniaaa", MAC: macA, Addresses: []netip.Addr{addr("10.0.0.12")}},
			{Link: "enibbb", MAC: macB, Addresses: []netip.Addr{addr("10.0.0.70"), addr("2600:1f14::70")}, Metadata: true},
		},
	}
}

// node routes as hostnet's rules do: pods by their links, marked packets and the
// rest by the primary ENI, but pod b's by eth1.
func node() Node {
	return Node{
		Groups: map[string]uint32{"eniaaa": hostnet.LinkGroupPod, "enibbb": hostnet.LinkGroupPod, "eniccc": hostnet.LinkGroupPod},
		Local:  map[string][]netip.Addr{"eth0": {addr("10.0.0.10")}, "eth1": {addr("10.0.0.11")}},
		DNAT: map[netip.Addr]netip.Addr{
			addr("172.20.0.10"): addr("10.0.5.5"), addr("172.20.0.66"): vpc.MetadataV4, addr("172.20.0.80"): addr("203.0.113.10"),
			addr("172.20.0.70"): addr("10.0.0.70"),
		},
		Route: func(dst netip.Addr, mark uint32) string {
			switch {
			case dst == addr("10.0.0.12"):
				return "eniaaa"
			case dst == addr("10.0.0.70"):
				return "enibbb"
			case mark&hostnet.MarkPrimary != 0:
				return "eth0"
			default:
				return "eth1"
			}
		},
	}
}

func TestPacketsMeetTheirFate(t *testing.T) {
	fromA := Packet{InLink: "eniaaa", MAC: macA, Src: addr("10.0.0.12")}
	fromB := Packet{InLink: "enibbb", MAC: macB, Src: addr("10.0.0.70")}
	with := func(p Packet, change func(*Packet)) Packet { change(&p); return p }
	to := func(p Packet, dst string) Packet { p.Dst = addr(dst); return p }
	for _, c := range []struct {
		name   string
		config func(*Config)
		p      Packet
		want   Fate
	}{
		{name: "to another host of the VPC, own address", p: to(fromB, "10.0.9.9"), want: Fate{Outcome: Forwarded, Src: fromB.Src, OutLink: "eth1"}},
		{name: "to an excluded range, own address", p: to(fromB, "192.168.1.1"), want: Fate{Outcome: Forwarded, Src: fromB.Src, OutLink: "eth1"}},
		{
			name: "out of the VPC, by the primary ENI with its address", p: to(fromB, "203.0.113.10"),
			want: Fate{Outcome: Forwarded, Src: addr("10.0.0.10"), OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		{
			name: "out of the VPC with external SNAT", config: func(c *Config) { c.ExternalSNAT = true }, p: to(fromB, "203.0.113.10"),
			want: Fate{Outcome: Forwarded, Src: fromB.Src, OutLink: "eth1"},
		},
		{name: "to a pod of the node", p: to(fromA, "10.0.0.70"), want: Fate{Outcome: Forwarded, Src: fromA.Src, OutLink: "enibbb"}},
		{name: "to the node", p: to(fromA, "10.0.0.11"), want: Fate{Outcome: Delivered, Src: fromA.Src}},
		{name: "to a Service in the VPC", p: to(fromA, "172.20.0.10"), want: Fate{Outcome: Forwarded, Src: fromA.Src, Dst: addr("10.0.5.5"), OutLink: "eth1"}},
		{
			name: "to a Service outside", p: to(fromA, "172.20.0.80"),
			want: Fate{Outcome: Forwarded, Src: addr("10.0.0.10"), Dst: addr("203.0.113.10"), OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		{
			name: "an answer to a peer outside that came straight to the pod stays on its ENI", p: with(to(fromB, "203.0.113.10"), func(p *Packet) { p.Reply = true }),
			want: Fate{Outcome: Forwarded, Src: fromB.Src, OutLink: "eth1"},
		},
		{
			name: "an answer to a NodePort leaves by the primary ENI", p: with(to(fromB, "203.0.113.10"), func(p *Packet) { p.Reply, p.ConnMark = true, 0x80 }),
			want: Fate{Outcome: Forwarded, Src: fromB.Src, OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		{
			name: "a NodePort connection is marked as it enters", p: Packet{InLink: "eth0", Src: addr("203.0.113.10"), Dst: addr("10.0.0.10")},
			want: Fate{Outcome: Delivered, Src: addr("203.0.113.10"), ConnMark: 0x80},
		},
		{
			name: "but not by another ENI", p: Packet{InLink: "eth1", Src: addr("203.0.113.10"), Dst: addr("10.0.0.11")},
			want: Fate{Outcome: Delivered, Src: addr("203.0.113.10")},
		},
		{
			name: "nor without NodePort support", config: func(c *Config) { c.NoNodePort = true }, p: Packet{InLink: "eth0", Src: addr("203.0.113.10"), Dst: addr("10.0.0.10")},
			want: Fate{Outcome: Delivered, Src: addr("203.0.113.10")},
		},
		{
			name: "other marks of the connection stay", p: with(to(fromB, "203.0.113.10"), func(p *Packet) { p.ConnMark = 0x10000 }),
			want: Fate{Outcome: Forwarded, Src: addr("10.0.0.10"), OutLink: "eth0", Mark: 0x80, ConnMark: 0x10080},
		},

		{name: "another pod's address", p: with(to(fromA, "10.0.9.9"), func(p *Packet) { p.Src = addr("10.0.0.70") }), want: Fate{Outcome: Dropped, Src: addr("10.0.0.70")}},
		{name: "another MAC", p: with(to(fromA, "10.0.9.9"), func(p *Packet) { p.MAC = macB }), want: Fate{Outcome: Dropped, Src: fromA.Src}},
		{name: "anything from a pod that no element allows", p: Packet{InLink: "eniccc", MAC: macA, Src: fromA.Src, Dst: addr("10.0.9.9")}, want: Fate{Outcome: Dropped, Src: fromA.Src}},
		{name: "IPv6 from a pod without", p: with(fromA, func(p *Packet) { p.Src, p.Dst = addr("2600:1f14::12"), addr("2600:1f14::1") }), want: Fate{Outcome: Dropped, Src: addr("2600:1f14::12")}},
		{
			name: "IPv6 from a pod with", p: with(fromB, func(p *Packet) { p.Src, p.Dst = addr("2600:1f14::70"), addr("2600:1f14::1") }),
			want: Fate{Outcome: Forwarded, Src: addr("2600:1f14::70"), OutLink: "eth1"},
		},
		{
			name: "neighbour discovery from its link-local address", p: with(fromB, func(p *Packet) { p.Src, p.Dst = addr("fe80::ff:fe00:b"), addr("fe80::1") }),
			want: Fate{Outcome: Forwarded, Src: addr("fe80::ff:fe00:b"), OutLink: "eth1"},
		},
		{name: "true ARP", p: Packet{ARP: true, InLink: "eniaaa", MAC: macA, Sender: macA, Src: fromA.Src}, want: Fate{Outcome: Delivered, Src: fromA.Src}},
		{name: "ARP for another's address", p: Packet{ARP: true, InLink: "eniaaa", MAC: macA, Sender: macA, Src: fromB.Src}, want: Fate{Outcome: Dropped, Src: fromB.Src}},
		{name: "ARP that names another MAC", p: Packet{ARP: true, InLink: "eniaaa", MAC: macA, Sender: macB, Src: fromA.Src}, want: Fate{Outcome: Dropped, Src: fromA.Src}},
		{name: "ARP in another's frame", p: Packet{ARP: true, InLink: "eniaaa", MAC: macB, Sender: macA, Src: fromA.Src}, want: Fate{Outcome: Dropped, Src: fromA.Src}},
		{name: "ARP of others is not ours to judge", p: Packet{ARP: true, InLink: "eth0", MAC: macB, Sender: macA, Src: fromA.Src}, want: Fate{Outcome: Delivered, Src: fromA.Src}},

		{
			name: "instance metadata", p: with(to(fromA, "169.254.169.254"), func(p *Packet) { p.TCP = true }),
			want: Fate{Outcome: Reset, Src: fromA.Src, OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		{name: "instance metadata by UDP", p: to(fromA, "169.254.169.254"), want: Fate{Outcome: Refused, Src: fromA.Src, OutLink: "eth0", Mark: 0x80, ConnMark: 0x80}},
		{
			name: "instance metadata by a Service", p: with(to(fromA, "172.20.0.66"), func(p *Packet) { p.TCP = true }),
			want: Fate{Outcome: Reset, Src: fromA.Src, Dst: vpc.MetadataV4, OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		{
			name: "instance metadata by a NodePort, from outside", p: Packet{InLink: "eth0", Src: addr("10.0.9.9"), Dst: addr("172.20.0.66"), TCP: true},
			want: Fate{Outcome: Reset, Src: addr("10.0.9.9"), Dst: vpc.MetadataV4, OutLink: "eth1"},
		},
		{
			name: "instance metadata over IPv6 from a pod that may", p: with(fromB, func(p *Packet) { p.Src, p.Dst = addr("2600:1f14::70"), vpc.MetadataV6 }),
			want: Fate{Outcome: Forwarded, Src: addr("2600:1f14::70"), OutLink: "eth1"},
		},
		{
			name: "instance metadata from a pod that may", p: to(fromB, "169.254.169.254"),
			want: Fate{Outcome: Forwarded, Src: addr("10.0.0.10"), OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		{
			name: "instance metadata from a foreign-wired pod that may", config: func(c *Config) { c.Metadata = []netip.Addr{addr("10.0.0.90")} },
			p: Packet{InLink: "enizzz", MAC: macB, Src: addr("10.0.0.90"), Dst: vpc.MetadataV4, TCP: true}, want: Fate{Outcome: Forwarded, Src: addr("10.0.0.90"), OutLink: "eth1"},
		},
		{
			name: "instance metadata from another foreign-wired pod", config: func(c *Config) { c.Metadata = []netip.Addr{addr("10.0.0.90")} },
			p: Packet{InLink: "enizzz", MAC: macB, Src: addr("10.0.0.91"), Dst: vpc.MetadataV4, TCP: true}, want: Fate{Outcome: Reset, Src: addr("10.0.0.91"), OutLink: "eth1"},
		},
		{
			name: "instance metadata from the node itself, served there", p: Packet{InLink: "lo", Src: addr("10.0.0.10"), Dst: addr("169.254.169.254")},
			want: Fate{Outcome: Delivered, Src: addr("10.0.0.10")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, n := config(), node()
			if c.config != nil {
				c.config(&cfg)
			}
			if c.p.InLink == "lo" {
				n.Local["lo"] = []netip.Addr{vpc.MetadataV4}
			}
			got, err := Compile(cfg).Trace(n, c.p)
			if err != nil {
				t.Fatal(err)
			}
			if !c.want.Dst.IsValid() {
				c.want.Dst = c.p.Dst
			}
			why := strings.Join(got.Why, "\n")
			got.Why, got.By = nil, ""
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s\nby\n%s", diff, why)
			}
		})
	}
}

// What is left for pods that run once the agent has left: the same SNAT, and no restriction.
func TestPodsKeepSNATAndLoseRestrictionsWhenTheAgentHasLeft(t *testing.T) {
	whole := Compile(config())
	var left Ruleset
	for _, table := range whole.Tables {
		if some, ok := Leaving(table); ok {
			left.Tables = append(left.Tables, some)
		}
	}
	for name, c := range map[string]struct {
		p    Packet
		want Fate
	}{
		"out of the VPC": {
			Packet{InLink: "enibbb", MAC: macB, Src: addr("10.0.0.70"), Dst: addr("203.0.113.10")},
			Fate{Outcome: Forwarded, Src: addr("10.0.0.10"), Dst: addr("203.0.113.10"), OutLink: "eth0", Mark: 0x80, ConnMark: 0x80},
		},
		"in the VPC": {
			Packet{InLink: "enibbb", MAC: macB, Src: addr("10.0.0.70"), Dst: addr("10.0.9.9")},
			Fate{Outcome: Forwarded, Src: addr("10.0.0.70"), Dst: addr("10.0.9.9"), OutLink: "eth1"},
		},
		"metadata, from a pod of AWS's plugin": {
			Packet{InLink: "enizzz", MAC: macB, Src: addr("10.0.0.90"), Dst: vpc.MetadataV4, TCP: true},
			Fate{Outcome: Forwarded, Src: addr("10.0.0.90"), Dst: vpc.MetadataV4, OutLink: "eth1"},
		},
	} {
		got, err := left.Trace(node(), c.p)
		if err != nil {
			t.Fatal(err)
		}
		got.Why, got.By = nil, ""
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(left.Tables) != 1 || len(left.Tables[0].Chains) != 4 || len(left.Tables[0].Sets) != 2 {
		t.Errorf("left:\n%s", left)
	}
	if _, ok := Leaving(nftables.Table{TableName: whole.Tables[0].TableName}); ok {
		t.Error("something is left of an empty table")
	}
	other := whole.Tables[0]
	other.Family = nftables.ARP // SNAT is in the family inet only
	if _, ok := Leaving(other); ok {
		t.Error("something is left of a table of another family")
	}
}

func TestNoPacketOfAPodPassesWithAnotherSource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config()
		p := Packet{
			InLink: rapid.SampledFrom([]string{"eniaaa", "enibbb"}).Draw(t, "link"),
			MAC:    rapid.SampledFrom([]vpc.MAC{macA, macB, {2, 9}}).Draw(t, "mac"),
			Src:    rapid.SampledFrom([]netip.Addr{addr("10.0.0.12"), addr("10.0.0.70"), addr("10.0.0.10"), addr("0.0.0.0"), addr("2600:1f14::70"), addr("fe80::1"), addr("::")}).Draw(t, "src"),
			Dst:    rapid.SampledFrom([]netip.Addr{addr("10.0.9.9"), addr("10.0.0.10"), addr("203.0.113.10"), addr("2600:1f14::1"), vpc.MetadataV4}).Draw(t, "dst"),
			TCP:    rapid.Bool().Draw(t, "tcp"), Reply: rapid.Bool().Draw(t, "reply"),
		}
		got, err := Compile(c).Trace(node(), p)
		if err != nil {
			t.Fatal(err)
		}
		own := false
		for _, pod := range c.Pods {
			for _, a := range pod.Addresses {
				own = own || pod.Link == p.InLink && pod.MAC == p.MAC && a == p.Src
			}
		}
		if !own && got.Outcome != Dropped {
			t.Fatalf("%+v is %s", p, got.Outcome)
		}
		if own && got.Outcome == Dropped {
			t.Fatalf("%+v is dropped by %s", p, got.By)
		}
	})
}

func TestRangesAreDisjointAndHoldTheSameAddresses(t *testing.T) {
	got := merge(prefixes("10.0.0.0/16", "10.0.128.0/17", "10.1.0.0/16", "192.168.4.0/24", "2600::/32", "0.0.0.0/32", "255.255.255.255/32", "172.16.0.0/31", "172.16.0.1/32"))
	var list []string
	for _, s := range got {
		list = append(list, s.first.String()+"-"+s.last.String())
	}
	want := []string{"0.0.0.0-0.0.0.0", "10.0.0.0-10.1.255.255", "172.16.0.0-172.16.0.1", "192.168.4.0-192.168.4.255", "255.255.255.255-255.255.255.255"}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	rapid.Check(t, func(t *rapid.T) {
		var in []netip.Prefix
		for range rapid.IntRange(0, 8).Draw(t, "n") {
			a := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "a")})
			in = append(in, netip.PrefixFrom(a, rapid.IntRange(24, 32).Draw(t, "bits")).Masked())
		}
		out := merge(in)
		for b := range 256 {
			a, want, got := netip.AddrFrom4([4]byte{10, 0, 0, byte(b)}), false, 0
			for _, p := range in {
				want = want || p.Contains(a)
			}
			for i, e := range out {
				if e.first.Compare(a) <= 0 && a.Compare(e.last) <= 0 {
					got++
				}
				if i > 0 && !out[i-1].last.Next().Less(e.first) {
					t.Fatalf("%v and %v touch", out[i-1], e)
				}
			}
			if want != (got == 1) || got > 1 {
				t.Fatalf("%s: in %v is %v, in %v %d times", a, in, want, out, got)
			}
		}
	})
}

func TestAPodsElementsAreAllThatDistinguishesARulesetWithIt(t *testing.T) {
	with := config()
	without := config()
	last := without.Pods[1]
	without.Pods = without.Pods[:1]
	rs := Compile(without)
	for _, e := range last.Elements() {
		s := rs.table(e.Family).Set(e.Set)
		s.Elements = append(s.Elements, e.Element)
	}
	if diff := cmp.Diff(Compile(with).String(), rs.String()); diff != "" {
		t.Errorf("(-with +without and elements):\n%s", diff)
	}
}

// The link-local address is one for all IPv6 addresses of a pod; the kernel refuses a set that
// has an element twice.
func TestEachElementOfAPodIsListedOnce(t *testing.T) {
	p := Pod{Link: "eniaaa", MAC: macA, Addresses: []netip.Addr{addr("2600:1f14::12"), addr("2600:1f14::13")}}
	seen := map[Element]bool{}
	for _, e := range p.Elements() {
		if seen[e] {
			t.Errorf("twice: %+v", e)
		}
		seen[e] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d elements, want both addresses and the link-local one", len(seen))
	}
}

func TestALateDELTakesNothingFromANewerPodOfTheSameName(t *testing.T) {
	older := Pod{Link: "eniaaa", MAC: macA, Addresses: []netip.Addr{addr("10.0.0.12"), addr("2600:1f14::12")}, Metadata: true}
	newer := Pod{Link: "eniaaa", MAC: macB, Addresses: []netip.Addr{addr("10.0.0.13"), addr("2600:1f14::13")}, Metadata: true}
	for _, e := range older.Elements() {
		if slices.Contains(newer.Elements(), e) {
			t.Errorf("both have %+v", e)
		}
	}
}

func TestEveryRuleThatEndsAPacketCountsIt(t *testing.T) {
	ends := 0
	for _, table := range Compile(config()).Tables {
		for _, c := range table.Chains {
			for _, r := range c.Rules {
				last := r.Exprs[len(r.Exprs)-1]
				if _, rejects := last.(nftables.Reject); !rejects && last != nftables.Expr(verdict(nftables.Drop)) {
					continue
				}
				ends++
				if !slices.Contains(r.Exprs, nftables.Expr(nftables.Counter{})) || r.Comment == "" {
					t.Errorf("chain %s: %s", c.Name, r)
				}
			}
		}
	}
	if ends < 5 {
		t.Errorf("only %d rules end a packet", ends)
	}
}

func TestForwardedPacketsOfPodsAreJudgedByTheirRealAddresses(t *testing.T) {
	c := config()
	c.Policy = Programs{Forward: "/sys/fs/bpf/trunkline/forward", Known: true}
	service, backend, pod, outside := addr("172.20.0.10"), addr("10.0.5.5"), addr("10.0.0.70"), addr("203.0.113.10")
	fromA := Packet{InLink: "eniaaa", MAC: macA, Src: addr("10.0.0.12")}
	fromB := Packet{InLink: "enibbb", MAC: macB, Src: pod} // it may reach instance metadata
	to := func(p Packet, dst netip.Addr) Packet { p.Dst = dst; return p }
	for name, c := range map[string]struct {
		p       Packet
		allowed [2]netip.Addr
		want    Outcome
	}{
		"to a Service with an allowed backend":           {to(fromA, service), [2]netip.Addr{fromA.Src, backend}, Forwarded},
		"to a Service, if only its address were allowed": {to(fromA, service), [2]netip.Addr{fromA.Src, service}, Dropped},
		"to what is reached with the node's address":     {to(fromA, outside), [2]netip.Addr{fromA.Src, outside}, Forwarded},
		"to a pod of the node":                           {to(fromA, pod), [2]netip.Addr{fromA.Src, pod}, Forwarded},
		"to a pod of the node, denied":                   {to(fromA, pod), [2]netip.Addr{}, Dropped},
		"from another node":                              {Packet{InLink: "eth1", Src: backend, Dst: pod}, [2]netip.Addr{backend, pod}, Forwarded},
		"from another node, denied":                      {Packet{InLink: "eth1", Src: backend, Dst: pod}, [2]netip.Addr{}, Dropped},
		"to instance metadata":                           {to(fromB, vpc.MetadataV4), [2]netip.Addr{pod, vpc.MetadataV4}, Forwarded},
		"to instance metadata, denied":                   {to(fromB, vpc.MetadataV4), [2]netip.Addr{}, Dropped},
		"to the node itself, not judged":                 {to(fromA, addr("10.0.0.11")), [2]netip.Addr{}, Delivered},
		"between links that are no pods', not judged":    {Packet{InLink: "eth1", Src: backend, Dst: outside}, [2]netip.Addr{}, Forwarded},
	} {
		n := node()
		n.Policy = func(src, dst netip.Addr) bool { return [2]netip.Addr{src, dst} == c.allowed }
		got, err := Compile(Config{
			PrimaryLink: "eth0", PrimaryIPv4: addr("10.0.0.10"), VPCCIDRs: prefixes("10.0.0.0/16"), Pods: config().Pods, Policy: Programs{Forward: "/pin", Known: true},
		}).Trace(n, c.p)
		if err != nil || got.Outcome != c.want {
			t.Errorf("%s: %s (%v), want %s", name, got.Outcome, err, c.want)
		}
		judged := got.Outcome == Forwarded && c.allowed[0].IsValid()
		if marked := got.Mark&hostnet.MarkJudged != 0; marked != judged {
			t.Errorf("%s: marked as judged: %v", name, marked)
		}
	}
	if text := Compile(c).String(); !strings.Contains(text, `xt match bpf "/sys/fs/bpf/trunkline/forward"`) {
		t.Errorf("the program's path is not in the rules:\n%s", text)
	}
}

// kube-proxy masquerades what still has its mark.
func TestAPodKeepsItsAddressTowardsOtherNodes(t *testing.T) {
	fromA := Packet{InLink: "eniaaa", MAC: macA, Src: addr("10.0.0.12"), Mark: hostnet.MarkMasquerade}
	fromNode := Packet{InLink: "eth1", Src: addr("10.0.5.9"), Mark: hostnet.MarkMasquerade}
	judged := Programs{Forward: "/pin", Known: true}
	to := func(p Packet, dst string) Packet { p.Dst = addr(dst); return p }
	for name, c := range map[string]struct {
		p           Packet
		policy      Programs
		masqueraded bool
	}{
		"to a pod of another node":                  {to(fromA, "10.0.5.5"), judged, false},
		"to a Service of pods of another node":      {to(fromA, "172.20.0.10"), judged, false},
		"to a pod of the node, judged before":       {to(fromA, "10.0.0.70"), judged, true},
		"to itself through a Service":               {to(fromA, "10.0.0.12"), judged, true},
		"from another node through a node port":     {to(fromNode, "10.0.5.5"), judged, true},
		"to a pod of another node without policies": {to(fromA, "10.0.5.5"), Programs{}, true},
	} {
		rules := config()
		rules.Policy = c.policy
		n := node()
		n.Policy = func(netip.Addr, netip.Addr) bool { return true }
		got, err := Compile(rules).Trace(n, c.p)
		if err != nil || got.Outcome != Forwarded || (got.Mark&hostnet.MarkMasquerade != 0) != c.masqueraded {
			t.Errorf("%s: %s with mark %#x (%v), want masqueraded %v", name, got.Outcome, got.Mark, err, c.masqueraded)
		}
		if judged := got.Mark&(hostnet.MarkJudged|hostnet.MarkPending) == hostnet.MarkJudged; c.policy != (Programs{}) && c.p.InLink == "eniaaa" && !judged {
			t.Errorf("%s: mark %#x, want judged and not pending", name, got.Mark)
		}
	}
}

func TestTheRulesetReadsLikeNFT(t *testing.T) {
	c := config()
	c.Pods = c.Pods[1:]
	want, err := os.ReadFile("testdata/ruleset.nft")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), Compile(c).String()); diff != "" {
		t.Errorf("testdata/ruleset.nft (-want +got):\n%s", diff)
	}
}

func TestASetIsNotComparedWhileItsTableDiffers(t *testing.T) {
	c := config()
	node := Part{Owner: "node", Ruleset: Compile(Config{PrimaryLink: c.PrimaryLink, PrimaryIPv4: c.PrimaryIPv4, VPCCIDRs: c.VPCCIDRs})}
	pod := Part{Owner: "pod", Elements: c.Pods[0].Elements()}
	var tables []*nftables.Table
	for _, t := range node.Ruleset.Tables {
		tables = append(tables, &t)
	}
	text := func(p Part, tables []*nftables.Table) (list []string) {
		for _, d := range NewActual(tables).Diff(p) {
			list = append(list, d.String())
		}
		return list
	}
	for _, tc := range []struct {
		name   string
		part   Part
		tables []*nftables.Table
		want   []string
	}{
		{"as desired", node, tables, nil},
		{"no table, the node", node, nil, []string{"table inet trunkline: is missing", "set kept4 of table trunkline: ", "table arp trunkline: is missing"}},
		{"no table, a pod", pod, nil, []string{"set sources4 of table trunkline: ", "set pods4 of table trunkline: ", "set sources of table trunkline: "}},
		{"no element", pod, tables, []string{"set sources4 of table trunkline: lacked 1 elements", "set pods4 of table trunkline: lacked 1 elements", "set sources of table trunkline: lacked 1 elements"}},
	} {
		if diff := cmp.Diff(tc.want, text(tc.part, tc.tables)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}
