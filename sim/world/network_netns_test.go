//go:build netns

package world_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/fabric"
	"github.com/trunkline/trunkline/sim/world"
)

// configure gives the link of an interface its address, with a route table of its own as
// on an instance with several interfaces.
func (l *lab) configure(i *cloud.Interface, subnet netip.Prefix) {
	l.t.Helper()
	const table = 200
	l.guest.Do(l.t, func() {
		link, source := l.linkOf(i.MAC), netip.PrefixFrom(i.PrimaryIPv4(), 32)
		rule := netlink.NewRule()
		rule.Src, rule.Table, rule.Priority = ipNet(source), table, 100
		if err := errors.Join(
			netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(i.PrimaryIPv4(), subnet.Bits()))}),
			netlink.LinkSetUp(link), netlink.RuleAdd(rule),
			netlink.RouteAdd(&netlink.Route{
				LinkIndex: link.Attrs().Index, Gw: net.IP(vpc.Gateway(subnet).AsSlice()), Table: table, Flags: int(unix.RTNH_F_ONLINK),
			}),
		); err != nil {
			l.t.Fatal(err)
		}
	})
}

// dial connects from an address of the guest.
func (l *lab) dial(from netip.Addr, to string, patience time.Duration) error {
	return l.guest.Run(func() error {
		d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := d.DialContext(l.t.Context(), "tcp", to)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// An interface in a subnet of a secondary range, both made while the world runs, is routed;
// its address reaches the outside host through the route table that its subnet is
// associated with, and only while it has a public address.
func TestCreatedSubnetsAndElasticAddressesAreRouted(t *testing.T) {
	var outside string
	l := newLab(t, func(c *world.Config) { outside = c.Internet })
	c := l.Cloud()
	network := c.VPC(l.State().VPC.ID)
	if err := network.AddCIDR(netip.MustParsePrefix("100.64.0.0/16")); err != nil {
		t.Fatal(err)
	}
	subnet, err := network.CreateSubnet(cloud.NewSubnet{CIDR: netip.MustParsePrefix("100.64.1.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	i, err := c.CreateInterface(cloud.NewInterface{Subnet: subnet.ID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Interface(i.ID).Attach(l.node.ID, 1, 0); err != nil {
		t.Fatal(err)
	}
	l.await("attached", attached(i.ID))
	l.configure(i, subnet.CIDR)
	if err := l.dial(i.PrimaryIPv4(), net.JoinHostPort(world.APIAddress, "80"), timeout); err != nil {
		t.Fatalf("from the created subnet to EC2: %v", err)
	}
	server, err := fabric.ListenIn(outside, "tcp4", net.JoinHostPort(world.OutsideAddress, "7000"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	host := server.Addr().String()
	if err := l.dial(i.PrimaryIPv4(), host, time.Second); err == nil {
		t.Error("an address without a public one reaches the outside host")
	}
	address, err := c.Elastic().Allocate(nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.Elastic().Associate(cloud.Association{Address: address.ID, Interface: i.ID})
	if err != nil {
		t.Fatal(err)
	}
	l.settle()
	if err := l.dial(i.PrimaryIPv4(), host, timeout); err != nil {
		t.Errorf("with an elastic address: %v", err)
	}
	if err := c.Elastic().Disassociate(id); err != nil {
		t.Fatal(err)
	}
	l.settle()
	if err := l.dial(i.PrimaryIPv4(), host, time.Second); err == nil {
		t.Error("the address reaches the outside host after its association ended")
	}
}

// settle waits until the fabric has applied the account.
func (l *lab) settle() {
	l.t.Helper()
	if err := l.Plug(context.Background(), l.node.ID); err != nil {
		l.t.Fatal(err)
	}
}
