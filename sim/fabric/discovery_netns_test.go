//go:build netns

package fabric

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

func TestGuestsOfOneSubnetFindEachOtherByNeighbourDiscovery(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10", "fd10::10"), w.plug("eni-b", "10.0.0.11", "fd10::11")
	w.at("eni-b").Prefixes = prefixes("fd10::5:0:0:0/80")
	w.apply()
	b.assign("fd10::5:0:0:7")
	a.onLink("fd10::/64")
	b.onLink("fd10::/64")
	for _, to := range []string{"fd10::11", "fd10::5:0:0:7", "fd10::1"} { // an address, one of a prefix, the gateway
		w.must(a.ping("fd10::10", to, replyTimeout))
	}
	if err := a.ping("fd10::10", "fd10::99", silence); err == nil {
		t.Error("an unallocated address replied")
	}
	w.eventually("the guest gives up asking for it", func() bool { return a.neighbour("fd10::99") == netlink.NUD_FAILED })
	if a.neighbour("fd10::11")&(netlink.NUD_REACHABLE|netlink.NUD_DELAY|netlink.NUD_STALE|netlink.NUD_PROBE) == 0 {
		t.Errorf("neighbour state of an allocated one: %#x", a.neighbour("fd10::11"))
	}

	// A solicitation from a spoofed address gets no reply.
	a.assign("fd10::bad")
	a.forget()
	if err := a.ping("fd10::bad", "fd10::11", silence); err == nil {
		t.Error("the spoofed solicitation got a reply")
	}

	// A removed address gets no reply.
	w.at("eni-b").Prefixes = nil
	w.apply()
	a.forget()
	if err := a.ping("fd10::10", "fd10::5:0:0:7", silence); err == nil {
		t.Error("a removed address replied")
	}
	w.eventually("the guest gives up asking for what left", func() bool { return a.neighbour("fd10::5:0:0:7") == netlink.NUD_FAILED })
}

func TestAnAddressOfAnotherPortIsADuplicate(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.0.11", "fd10::11")
	state := func(address string) int {
		flags := 0
		a.Do(t, func() {
			l, err := netlink.LinkByName("eth0")
			w.must(err)
			found, err := netlink.AddrList(l, unix.AF_INET6)
			w.must(err)
			for _, a := range found {
				if a.IP.Equal(net.ParseIP(address)) {
					flags = a.Flags
				}
			}
		})
		return flags
	}
	a.Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		w.must(err)
		w.must(os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("1"), 0))
		w.must(netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(full(netip.MustParseAddr("fd10::11")))}))
	})
	w.eventually("the duplicate is found", func() bool { return state("fd10::11")&unix.IFA_F_DADFAILED != 0 })
}

// Without a branch, no link has a VLAN: a tagged solicitation gets no reply.
func TestATaggedSolicitationOfAnUntaggedPortGetsNoReply(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10", "fd10::10")
	w.plug("eni-b", "10.0.0.11", "fd10::11")
	target := netip.MustParseAddr("fd10::11")
	packet := append([]byte{0x60, 0, 0, 0, 0, askBytes - headerBytes, protocolICMPv6, neverRouted}, netip.MustParseAddr("fd10::10").AsSlice()...)
	packet = append(append(packet, target.AsSlice()...), solicitation, 0, 0, 0, 0, 0, 0, 0)
	packet = append(packet, target.AsSlice()...)
	for _, try := range []struct {
		tag, vlan uint16
		answered  bool
	}{{0, 0, true}, {unix.ETH_P_8021Q, 9, false}} {
		a.onDevice(func(l netlink.Link) {
			wait := replyTimeout
			if !try.answered {
				wait = silence
			}
			frame := testns.Frame{From: w.at("eni-a").MAC, TagType: try.tag, VLAN: try.vlan, Type: unix.ETH_P_IPV6, Payload: packet}
			answered, err := testns.Exchange(l.Attrs().Index, frame, wait, func(got []byte, _ uint16) bool {
				const icmpType = 14 + headerBytes
				return len(got) > icmpType && got[12] == 0x86 && got[13] == 0xdd && got[icmpType] == advertisement
			})
			w.must(err)
			if answered != try.answered {
				t.Errorf("VLAN %d: answered %v, want %v", try.vlan, answered, try.answered)
			}
		})
	}
}
