//go:build netns

package fabric

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// groupsAllow is the slow oracle of the security groups: it evaluates the State rule by
// rule, as the VPC user guide describes, without sets and masks.
func groupsAllow(s State, from, to Port, source, target netip.Addr, protocol, port int) bool {
	return anyAllows(s, from.Groups, func(g Group) []Rule { return g.Egress }, target, to, protocol, port) &&
		anyAllows(s, to.Groups, func(g Group) []Rule { return g.Ingress }, source, from, protocol, port)
}

func anyAllows(s State, of []vpc.SecurityGroupID, way func(Group) []Rule, peer netip.Addr, holder Port, protocol, port int) bool {
	for _, g := range s.Groups {
		if !slices.Contains(of, g.ID) {
			continue
		}
		for _, r := range way(g) {
			peerMatches := r.Peer.IsValid() && r.Peer.Contains(peer) || r.Group != "" && slices.Contains(holder.Groups, r.Group)
			portMatches := r.From == -1 && r.To == -1 || r.From <= port && port <= r.To
			if peerMatches && (r.Protocol == -1 || r.Protocol == protocol && portMatches) {
				return true
			}
		}
	}
	return false
}

// drawRule draws a rule with the addresses, groups and ports of the test.
func drawRule(t *rapid.T, peers []netip.Addr) Rule {
	r := Rule{Protocol: rapid.SampledFrom([]int{17, 17, 17, 6, 1, -1}).Draw(t, "protocol"), From: -1, To: -1}
	if r.Protocol == 17 || r.Protocol == 6 {
		r.From = rapid.SampledFrom([]int{-1, 0, 6999, 7000, 7001}).Draw(t, "from")
		r.To = -1
		if r.From >= 0 {
			r.To = rapid.SampledFrom([]int{7000, 7001, 65535}).Filter(func(to int) bool { return to >= r.From }).Draw(t, "to")
		}
	}
	if rapid.Bool().Draw(t, "by group") {
		r.Group = rapid.SampledFrom([]vpc.SecurityGroupID{"sg-0", "sg-1", "sg-2"}).Draw(t, "group")
		return r
	}
	a := rapid.SampledFrom(peers).Draw(t, "peer")
	bits := rapid.SampledFrom([]int{0, 16, 20, 28, 31, 32}).Draw(t, "bits")
	if a.Is6() {
		bits = rapid.SampledFrom([]int{0, 56, 64, 80, 127, 128}).Draw(t, "bits")
	}
	r.Peer = netip.PrefixFrom(a, bits).Masked()
	return r
}

func drawRules(t *rapid.T, name string, peers []netip.Addr) []Rule {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Rule { return drawRule(t, peers) }), 0, 3).Draw(t, name)
}

// TestEveryPacketIsDeliveredOrCountedAccordingToTheGroups draws groups, applies them and
// sends a datagram from every address to every address. It waits until the delivered and
// the dropped datagrams are as many as were sent, without a timeout per datagram.
func TestEveryPacketIsDeliveredOrCountedAccordingToTheGroups(t *testing.T) {
	w := newWorld(t)
	w.trunk("eni-a", "10.0.0.10", "fd10::10").branch("eni-d", 7, "10.0.0.13", "fd10::13")
	w.plug("eni-b", "10.0.0.11", "fd10::11")
	w.plug("eni-c", "10.0.16.12", "fd10:0:0:1::12")
	w.at("eni-c").Prefixes = prefixes("10.0.17.16/28", "fd10:0:0:1:5::/80")
	w.apply()
	w.guests["eni-c"].assign("10.0.17.17")
	w.guests["eni-c"].assign("fd10:0:0:1:5::17")
	held := map[vpc.ENIID][]netip.Addr{
		"eni-a": addrs("10.0.0.10", "fd10::10"), "eni-b": addrs("10.0.0.11", "fd10::11"), "eni-d": addrs("10.0.0.13", "fd10::13"),
		"eni-c": addrs("10.0.16.12", "fd10:0:0:1::12", "10.0.17.17", "fd10:0:0:1:5::17"),
	}
	arrived := make(chan string, 1000)
	var all []netip.Addr
	for id, own := range held {
		for _, a := range own {
			all = append(all, a)
			for _, port := range []uint16{7000, 7001} {
				w.guests[id].collect(netip.AddrPortFrom(a, port), arrived)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		w.state.Groups = nil
		for n := range 3 {
			w.state.Groups = append(w.state.Groups, Group{
				ID:      vpc.SecurityGroupID(fmt.Sprintf("sg-%d", n)),
				Ingress: drawRules(rt, "ingress", all),
				Egress:  drawRules(rt, "egress", all),
			})
		}
		for n := range w.state.Ports {
			w.state.Ports[n].Groups = rapid.SliceOfNDistinct(rapid.SampledFrom([]vpc.SecurityGroupID{"sg-0", "sg-1", "sg-2"}), 0, 3, rapid.ID).Draw(rt, "groups")
		}
		w.apply()
		before := w.allDrops()
		want := map[string]bool{}
		for from, sources := range held {
			for to, targets := range held {
				if from == to {
					continue
				}
				for _, source := range sources {
					for _, target := range targets {
						if source.Is4() != target.Is4() {
							continue
						}
						for _, port := range []uint16{7000, 7001} {
							word := fmt.Sprintf("%d %s>%s:%d", round, source, target, port)
							w.must(w.guests[from].send(source, netip.AddrPortFrom(target, port), word))
							want[word] = groupsAllow(w.state, *w.at(from), *w.at(to), source, target, 17, int(port))
						}
					}
				}
			}
		}
		got := map[string]bool{}
		w.eventually("every packet is delivered or counted", func() bool {
			for len(arrived) > 0 {
				got[<-arrived] = true
			}
			return len(got)+int(w.allDrops()-before) == len(want)
		})
		for _, word := range slices.Sorted(maps.Keys(want)) {
			if got[word] != want[word] {
				rt.Errorf("%s: delivered %v, want %v by the groups", word, got[word], want[word])
			}
		}
	})
}

// allDrops is the sum of the counters of all ports.
func (w *world) allDrops() uint64 {
	w.t.Helper()
	all, err := w.fabric.Counters()
	w.must(err)
	sum := uint64(0)
	for _, d := range all {
		sum += d.Total()
	}
	return sum
}
