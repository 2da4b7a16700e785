package node

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// bootNetwork configures the primary interface, as an operating system does by DHCP.
func (n *Node) bootNetwork() { Boot(n, "node1", n.NS) }

// Boot configures the primary interface of an instance in its namespace, and returns its IPv4 address.
func Boot(n *Node, name string, in *testns.NS) netip.Addr {
	primary := n.State().Primary(n.State().InstanceNamed(name).ID)
	subnet := n.State().Subnets[primary.Subnet]
	in.Do(n.t, func() {
		links, err := netlink.LinkList()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, l := range links {
			if l.Attrs().Name == "lo" {
				err = errors.Join(err, netlink.LinkSetUp(l))
			}
			if l.Attrs().HardwareAddr.String() == primary.MAC.String() {
				for _, a := range primary.IPv6.Addresses {
					own := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(128, 128)}, Flags: unix.IFA_F_NODAD}
					err = errors.Join(err, netlink.LinkSetUp(l), netlink.AddrAdd(l, own), netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP("fe80:ec2::1")}))
				}
				address := &netlink.Addr{IPNet: &net.IPNet{IP: primary.IPv4.Addresses[0].AsSlice(), Mask: net.CIDRMask(subnet.CIDR.Bits(), 32)}}
				err = errors.Join(err, netlink.AddrAdd(l, address), netlink.LinkSetUp(l), netlink.RouteAdd(&netlink.Route{
					LinkIndex: l.Attrs().Index, Gw: net.IP(vpc.Gateway(subnet.CIDR).AsSlice()),
				}))
			}
		}
		if err != nil {
			n.t.Fatal(err)
		}
	})
	return primary.IPv4.Addresses[0]
}
