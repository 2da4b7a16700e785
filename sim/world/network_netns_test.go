//go:build netns

package world_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/fabric"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/testns"
)

// interfaceTable is the guest's route table of the second interface.
const interfaceTable = 200

// configure gives the link of an interface its address, with a route table of its own as
// on an instance with several interfaces.
func (l *lab) configure(i *cloud.Interface, subnet netip.Prefix) {
	l.t.Helper()
	l.guest.Do(l.t, func() {
		link, source := l.linkOf(i.MAC), netip.PrefixFrom(i.PrimaryIPv4(), 32)
		rule := netlink.NewRule()
		rule.Src, rule.Table, rule.Priority = ipNet(source), interfaceTable, 100
		if err := errors.Join(
			netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(i.PrimaryIPv4(), subnet.Bits()))}),
			netlink.LinkSetUp(link), netlink.RuleAdd(rule),
			netlink.RouteAdd(&netlink.Route{
				LinkIndex: link.Attrs().Index, Gw: net.IP(vpc.Gateway(subnet).AsSlice()), Table: interfaceTable, Flags: int(unix.RTNH_F_ONLINK),
			}),
		); err != nil {
			l.t.Fatal(err)
		}
	})
}

// dial connects from an address of the guest.
func (l *lab) dial(from netip.Addr, to string, limit time.Duration) error {
	return l.guest.Run(func() error {
		d := net.Dialer{Timeout: limit, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := d.DialContext(l.t.Context(), "tcp", to)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// serveSource makes a namespace answer each connection to an address with its source.
func serveSource(t *testing.T, namespace, address string) {
	t.Helper()
	server, err := fabric.ListenIn(namespace, "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(c.RemoteAddr().String()))
			c.Close()
		}
	}()
}

// sourceAt connects from an address of a namespace, which may be zero, and returns the
// address that the server of serveSource sees.
func sourceAt(t *testing.T, in *testns.NS, from netip.Addr, to string, limit time.Duration) (seen netip.Addr, err error) {
	t.Helper()
	err = in.Run(func() error {
		d := net.Dialer{Timeout: limit}
		if from.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		c, err := d.DialContext(t.Context(), "tcp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		if err != nil {
			return err
		}
		at, err := netip.ParseAddrPort(string(text))
		seen = at.Addr()
		return err
	})
	return seen, err
}

// addInterface makes an interface in a subnet of a range of its own, attaches it to the
// instance, and configures it in the guest.
func (l *lab) addInterface(cidr netip.Prefix) (*cloud.Subnet, *cloud.Interface) {
	l.t.Helper()
	c := l.Cloud()
	network := c.VPC(l.State().VPC.ID)
	if err := network.AddCIDR(netip.PrefixFrom(cidr.Addr(), 16)); err != nil {
		l.t.Fatal(err)
	}
	subnet, err := network.CreateSubnet(cloud.NewSubnet{CIDR: cidr})
	if err != nil {
		l.t.Fatal(err)
	}
	i, err := c.CreateInterface(cloud.NewInterface{Subnet: subnet.ID})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := c.Interface(i.ID).Attach(l.node.ID, 1, 0); err != nil {
		l.t.Fatal(err)
	}
	l.await("attached", attached(i.ID))
	l.configure(i, cidr)
	return subnet, i
}

// An interface in a subnet of a secondary range, both made while the world runs, is routed.
// Through the internet gateway, only an elastic address leads from and to it: hosts outside
// see it, reach it, and the guest finds it in metadata, until it is disassociated.
func TestCreatedSubnetsAndElasticAddressesAreRouted(t *testing.T) {
	var outside string
	l := newLab(t, func(c *world.Config) { outside = c.Internet })
	c := l.Cloud()
	_, i := l.addInterface(netip.MustParsePrefix("100.64.1.0/24"))
	if err := l.dial(i.PrimaryIPv4(), net.JoinHostPort(world.APIAddress, "80"), timeout); err != nil {
		t.Fatalf("from the created subnet to EC2: %v", err)
	}
	if _, err := c.Group(i.Groups[0]).Authorize(cloud.Ingress, []cloud.Rule{
		{Protocol: 6, From: 7000, To: 7000, Peer: netip.MustParsePrefix(world.OutsideAddress + "/32")},
	}); err != nil {
		t.Fatal(err)
	}
	host := net.JoinHostPort(world.OutsideAddress, "7000")
	serveSource(t, outside, host)
	serveSource(t, l.guest.Name, net.JoinHostPort(i.PrimaryIPv4().String(), "7000"))
	internet := &testns.NS{Name: outside, Path: netns.Path(outside)}
	if seen, err := sourceAt(t, l.guest, i.PrimaryIPv4(), host, time.Second); err == nil {
		t.Errorf("an address without a public one reaches the outside host as %s", seen)
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
	shown := "network/interfaces/macs/" + i.MAC.String() + "/public-ipv4s"
	if seen, err := sourceAt(t, l.guest, i.PrimaryIPv4(), host, timeout); err != nil || seen != address.Public {
		t.Errorf("the outside host sees %s (%v), want %s", seen, err, address.Public)
	}
	inside := net.JoinHostPort(address.Public.String(), "7000")
	if seen, err := sourceAt(t, internet, netip.Addr{}, inside, timeout); err != nil || seen != netip.MustParseAddrPort(host).Addr() {
		t.Errorf("from outside to %s: the guest sees %s (%v)", inside, seen, err)
	}
	if got := l.metadata(shown); got != address.Public.String() {
		t.Errorf("metadata shows %q, want %s", got, address.Public)
	}
	if err := c.Elastic().Disassociate(id); err != nil {
		t.Fatal(err)
	}
	l.settle()
	if seen, err := sourceAt(t, l.guest, i.PrimaryIPv4(), host, time.Second); err == nil {
		t.Errorf("the address reaches the outside host as %s after its association ended", seen)
	}
	if _, err := sourceAt(t, internet, netip.Addr{}, inside, time.Second); err == nil {
		t.Error("the outside host reaches the elastic address after its association ended")
	}
	if got := l.metadata(shown); strings.Contains(got, address.Public.String()) {
		t.Errorf("metadata shows %q after the association ended", got)
	}
}

// EC2 chooses no address of a reserved range, and an address of it that the account names is
// assigned and routed.
func TestReservedAddressesAreOnlyThoseThatTheAccountNames(t *testing.T) {
	l := newLab(t)
	c := l.Cloud()
	subnet, i := l.addInterface(netip.MustParsePrefix("100.64.1.0/24"))
	for _, half := range []string{"100.64.1.0/25", "100.64.1.128/25"} {
		reserved := netip.MustParsePrefix(half)
		if reserved.Contains(i.PrimaryIPv4()) {
			continue // of the two halves, the one without the interface's primary address
		}
		if _, err := c.Subnet(subnet.ID).Reserve(cloud.Reservation{CIDR: reserved, Type: cloud.ReserveExplicit}); err != nil {
			t.Fatal(err)
		}
		most := l.node.Limits.IPv4
		got, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Count: most - 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range got.Addresses {
			if reserved.Contains(a) {
				t.Errorf("EC2 chose %s, which is in the reservation %s", a, reserved)
			}
		}
		named := reserved.Addr().Next().Next().Next().Next().Next()
		if _, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Addresses: []netip.Addr{named}}); err != nil {
			t.Fatal(err)
		}
		l.settle()
		l.addAddress(i, named)
		if err := l.dial(named, net.JoinHostPort(world.APIAddress, "80"), timeout); err != nil {
			t.Errorf("from the reserved address %s to EC2: %v", named, err)
		}
	}
}

// addAddress configures another address of an interface that configure has configured.
func (l *lab) addAddress(i *cloud.Interface, a netip.Addr) {
	l.t.Helper()
	l.guest.Do(l.t, func() {
		rule, only := netlink.NewRule(), ipNet(netip.PrefixFrom(a, 32))
		rule.Src, rule.Table, rule.Priority = only, interfaceTable, 100
		if err := errors.Join(netlink.AddrAdd(l.linkOf(i.MAC), &netlink.Addr{IPNet: only}), netlink.RuleAdd(rule)); err != nil {
			l.t.Fatal(err)
		}
	})
}

// settle waits until the fabric has applied the account.
func (l *lab) settle() {
	l.t.Helper()
	if err := l.Plug(context.Background(), l.node.ID); err != nil {
		l.t.Fatal(err)
	}
}
