package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Numbers of the fabric's own namespace. No other program uses it.
const (
	// routeProtocol marks the fabric's routes and rules (rtm_protocol).
	routeProtocol = 213
	// rulePriority is where a packet looks into its subnet's table: after the
	// main table, which holds everything inside the VPC.
	rulePriority = 40000
	// tableBase plus the subnet's position is its route table, and the packet
	// mark that leads there. A mark rather than the device, so that one rule
	// serves a subnet, the filter can ask the same question (fib), and an ARP
	// request, which has no mark, is answered for nothing outside the VPC.
	tableBase = 10000
	// redirectBase and redirectPriority are the same for what a subnet's route
	// table has inside the VPC: it is asked before the main table.
	redirectBase     = 20000
	redirectPriority = 20000
	// linkGroup marks the fabric's links as ours from the moment they exist.
	linkGroup = 0x7b50
	// linkGroupTrash collects those that are deleted in one go.
	linkGroupTrash = 0x7b51
	// prioAntiSpoof is before connection tracking.
	prioAntiSpoof = -310
)

// Names on the internet gateway's link.
const (
	gatewayDevice = "igw"  // the fabric's end
	outsideDevice = "net0" // the outside host's end
)

// aliasPrefix begins the alias of a link; the rest identifies what it was made for.
const aliasPrefix = "trunkline fabric: "

// Next hops. On every link the other end is reached by the same address, for
// which there is a permanent neighbour entry; no port holds it, so it never
// collides with an address of the VPC.
type hops struct{ peer, router netip.Addr }

func nextHops(f vpc.Family) hops {
	if f == vpc.IPv4 {
		return hops{peer: netip.AddrFrom4([4]byte{169, 254, 0, 2}), router: netip.AddrFrom4([4]byte{169, 254, 0, 1})}
	}
	return hops{peer: linkLocal(2), router: linkLocal(1)}
}

// linkLocal is fe80::n. fe80::1 is the fabric on every link.
func linkLocal(n byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: n})
}

func families() [2]vpc.Family { return [2]vpc.Family{vpc.IPv4, vpc.IPv6} }

// routerMAC is the hardware address of the fabric on every link, so that a peer
// that moves is still where it was.
func routerMAC() vpc.MAC { return vpc.MAC{0x02, 0x54, 0x4c, 0, 0, 0x01} }

// outsideMAC is the outside host's.
func outsideMAC() vpc.MAC { return vpc.MAC{0x02, 0x54, 0x4c, 0, 0, 0x02} }

// routerSysctls make a namespace a VPC's router.
func routerSysctls() []sysctl {
	return []sysctl{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv6/conf/all/forwarding", "1"},
		// Allocated addresses answer to every port of the VPC.
		{"net/ipv4/conf/all/proxy_arp", "1"},
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
		{"net/ipv6/conf/default/addr_gen_mode", "1"}, // no address but ours
		// A packet in the middle of a connection without state does not begin
		// one: state that has ended stays ended.
		{"net/netfilter/nf_conntrack_tcp_loose", "0"},
		// TCP windows are checked by the end points only.
		{"net/netfilter/nf_conntrack_tcp_be_liberal", "1"},
	}
}

// hostSysctls make the outside host's namespace: it routes nothing.
func hostSysctls() []sysctl {
	return []sysctl{
		{"net/ipv4/ip_forward", "0"},
		{"net/ipv6/conf/all/forwarding", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
		{"net/ipv6/conf/default/addr_gen_mode", "1"},
		{"net/ipv6/conf/default/accept_ra", "0"},
	}
}
