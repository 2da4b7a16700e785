package enforce

import (
	"fmt"
	"net/netip"
)

// Connect connects two nodes by their primary interfaces and routes the pods of each, which have
// the addresses 10.0.NUMBER.0/24, to the other.
func Connect(a, b *Node) {
	a.T.Helper()
	a.ip("-n", a.NS.Name, "link", "del", "eth0")
	b.ip("-n", b.NS.Name, "link", "del", "eth0")
	a.ip("-n", a.NS.Name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.NS.Name)
	for node, other := range map[*Node]*Node{a: b, b: a} {
		node.ip("-n", node.NS.Name, "addr", "add", node.Spec.Address.String()+"/32", "dev", "eth0")
		node.ip("-n", node.NS.Name, "link", "set", "eth0", "up")
		gateway := other.Spec.Address.String()
		node.ip("-n", node.NS.Name, "route", "add", gateway, "dev", "eth0")
		node.ip("-n", node.NS.Name, "route", "add", netip.PrefixFrom(other.Spec.Address, 24).Masked().String(), "via", gateway)
	}
}

// PodAddress is an address for a pod of the node: the one with a number from 0 to 200.
func (n *Node) PodAddress(number int) netip.Addr {
	bytes := n.Spec.Address.As4()
	bytes[3] = byte(20 + number)
	return netip.AddrFrom4(bytes)
}

// Address6 is the IPv6 address of a pod with an IPv4 address.
func Address6(of netip.Addr) netip.Addr {
	b := [16]byte{0xfd}
	four := of.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

// String is the node's name.
func (n *Node) String() string { return fmt.Sprint("node ", n.Spec.Address) }
