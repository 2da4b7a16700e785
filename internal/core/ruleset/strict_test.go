package ruleset

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// The packets of a strict pod pass the VPC between it and its own node, and between it and a node
// port: red without the rules of the node itself, or of the sets strict4 and strict6.
func TestAStrictPodIsJudgedLikeAnyOther(t *testing.T) {
	pod, client, n := addr("10.0.0.90"), addr("10.0.5.9"), node()
	n.Groups["vlanddd"] = hostnet.LinkGroupPod
	fromPod := Packet{InLink: "vlanddd", MAC: macA, Src: pod}
	with := func(p Packet, dst string, mark uint32) Packet { p.Dst, p.Mark = addr(dst), mark; return p }
	to := func(p Packet, dst string) Packet { p.Dst = addr(dst); return p }
	for name, c := range map[string]struct {
		p       Packet
		out     string
		allowed [2]netip.Addr
		want    Outcome
	}{
		"a probe of its node, back from the VPC":     {Packet{InLink: "vlan.eth.1", Src: addr("10.0.0.10"), Dst: pod}, "vlanddd", [2]netip.Addr{}, Forwarded},
		"from another address of the node":           {Packet{InLink: "vlan.eth.1", Src: addr("10.0.0.11"), Dst: pod}, "vlanddd", [2]netip.Addr{}, Forwarded},
		"from another node":                          {Packet{InLink: "vlan.eth.1", Src: client, Dst: pod}, "vlanddd", [2]netip.Addr{}, Dropped},
		"from another node, allowed":                 {Packet{InLink: "vlan.eth.1", Src: client, Dst: pod}, "vlanddd", [2]netip.Addr{client, pod}, Forwarded},
		"a node port, before it leaves the node":     {Packet{InLink: "eth0", Src: client, Dst: pod, Mark: hostnet.MarkMasquerade}, "eth0", [2]netip.Addr{}, Dropped},
		"a node port with an allowed client":         {Packet{InLink: "eth0", Src: client, Dst: pod, Mark: hostnet.MarkMasquerade}, "eth0", [2]netip.Addr{client, pod}, Forwarded},
		"to another node":                            {to(fromPod, "10.0.5.9"), "vlan.eth.1", [2]netip.Addr{}, Dropped},
		"to what is outside of the VPC, not allowed": {to(fromPod, "203.0.113.10"), "vlan.eth.1", [2]netip.Addr{}, Dropped},
		"by a node port of its node":                 {with(fromPod, "10.0.5.9", hostnet.MarkMasquerade), "vlan.eth.1", [2]netip.Addr{pod, addr("10.0.5.9")}, Forwarded},
		"to what is outside of the VPC":              {to(fromPod, "203.0.113.10"), "vlan.eth.1", [2]netip.Addr{pod, addr("203.0.113.10")}, Forwarded},
	} {
		n.Route = func(netip.Addr, uint32) string { return c.out }
		n.Policy = func(src, dst netip.Addr) bool { return [2]netip.Addr{src, dst} == c.allowed }
		got, err := Compile(Config{
			PrimaryLink: "eth0", PrimaryIPv4: addr("10.0.0.10"), VPCCIDRs: prefixes("10.0.0.0/16"), Policy: Programs{Forward: "/pin", Known: true},
			Pods: []Pod{{Link: "vlanddd", MAC: macA, Addresses: []netip.Addr{pod}, Strict: true}},
		}).Trace(n, c.p)
		if err != nil || got.Outcome != c.want {
			t.Errorf("%s: %s by %s (%v), want %s", name, got.Outcome, got.By, err, c.want)
		}
		if got.Outcome == Forwarded && (got.Src != c.p.Src || got.Mark&(hostnet.MarkJudged|hostnet.MarkPending) != hostnet.MarkJudged ||
			c.p.Src == pod && got.Mark&hostnet.MarkMasquerade != 0) {
			t.Errorf("%s: from %s with mark %#x, want its own address, judged", name, got.Src, got.Mark)
		}
	}
}

// Packets of the node to other pods never pass the forward hook: one that does was forged.
func TestASourceOfTheNodeItselfIsNoReasonToAllowOtherPods(t *testing.T) {
	n := node()
	n.Route = func(netip.Addr, uint32) string { return "eniaaa" }
	n.Policy = func(netip.Addr, netip.Addr) bool { return false }
	c := Compile(Config{
		PrimaryLink: "eth0", PrimaryIPv4: addr("10.0.0.10"), Policy: Programs{Forward: "/pin", Known: true},
		Pods: []Pod{{Link: "eniaaa", MAC: macA, Addresses: []netip.Addr{addr("10.0.0.12")}}},
	})
	if got, err := c.Trace(n, Packet{InLink: "eth0", Src: addr("10.0.0.10"), Dst: addr("10.0.0.12")}); err != nil || got.Outcome != Dropped {
		t.Errorf("%s by %s (%v), want %s", got.Outcome, got.By, err, Dropped)
	}
}
