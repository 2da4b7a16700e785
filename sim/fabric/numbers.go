package fabric

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Numbers of the fabric's own namespace. No other program uses it.
const (
	// routeProtocol marks the fabric's routes and rules (rtm_protocol).
	routeProtocol = 213
	// rulePriority of the rules for the subnets' tables: after the main table, which has
	// all routes inside the VPC.
	rulePriority = 40000
	// tableBase plus the subnet's number is its route table, and the packet mark that
	// selects the table. It is a mark and not the device, so that one rule serves a
	// subnet, the filter can do the same lookup (fib), and ARP requests, which have no
	// mark, get no reply for addresses outside the VPC.
	tableBase = 10000
	// redirectBase and redirectPriority are the same for routes of a subnet inside the
	// VPC: their table has priority over the main table.
	redirectBase     = 20000
	redirectPriority = 20000
	// linkGroup marks the fabric's links as ours from their creation.
	linkGroup = 0x7b50
	// linkGroupTrash is the group of links that are deleted together.
	linkGroupTrash = 0x7b51
	// prioAntiSpoof is before connection tracking and its reassembly of fragments (-400).
	prioAntiSpoof = -410
	// prioToPrivate and prioToPublic are the kernel's priorities for the translation of
	// destinations and sources.
	prioToPrivate = -100
	prioToPublic  = 100
)

// maxVLAN is the highest VLAN of IEEE 802.1Q.
const maxVLAN = 4094

// Names on the internet gateway's link.
const (
	gatewayDevice = "igw"  // the fabric's end
	outsideDevice = "net0" // the outside host's end
)

// aliasPrefix begins the alias of a link; the rest identifies what it was made for.
const aliasPrefix = "trunkline fabric: "

// Next hops. Every link has the same peer address, with a permanent neighbour entry. No
// port holds it, so it never collides with an address of the VPC.
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

// vpcRouter6 is the router of every IPv6 subnet of a VPC: guests that take no router advertisements
// have it as their default gateway, and find its hardware address by neighbour discovery.
func vpcRouter6() netip.Addr { return netip.MustParseAddr("fe80:ec2::1") }

func families() [2]vpc.Family { return [2]vpc.Family{vpc.IPv4, vpc.IPv6} }

// routerMAC is the hardware address of the fabric on every link, so that guests need no
// new ARP entry when a peer's address moves to another port.
func routerMAC() vpc.MAC { return vpc.MAC{0x02, 0x54, 0x4c, 0, 0, 0x01} }

// outsideMAC is the outside host's.
func outsideMAC() vpc.MAC { return vpc.MAC{0x02, 0x54, 0x4c, 0, 0, 0x02} }

// routerSysctls make a namespace a VPC's router.
func routerSysctls() []sysctl {
	return []sysctl{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv6/conf/all/forwarding", "1"},
		// Every port gets ARP replies for all allocated addresses of the VPC.
		{"net/ipv4/conf/all/proxy_arp", "1"},
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
		{"net/ipv6/conf/default/addr_gen_mode", "1"}, // no automatic addresses
		// A packet in the middle of a connection does not create new state for it, so
		// that deleted state stays deleted.
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
