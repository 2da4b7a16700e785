package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Primary is the primary interface of an instance or a host in the VPC.
type Primary struct {
	MAC     vpc.MAC
	Address netip.Addr
	Subnet  netip.Prefix
	// Timeout is how long to wait for the interface to be plugged; 0 is a minute.
	Timeout time.Duration
}

const plugTimeout = time.Minute

// ConfigurePrimary configures a primary interface as DHCP does on EC2: its address with
// the subnet's prefix length, the VPC's MTU, and a default route through the subnet's
// router. It acts on the caller's network namespace, waits until the interface is plugged,
// and is idempotent.
func ConfigurePrimary(ctx context.Context, p Primary) error {
	link, err := plugged(ctx, p.MAC, p.Timeout)
	if err != nil {
		return err
	}
	name := link.Attrs().Name
	if err := netlink.LinkSetMTU(link, vpc.MTU); err != nil {
		return fmt.Errorf("set MTU of %s: %w", name, err)
	}
	addr := &netlink.Addr{
		IPNet:     &net.IPNet{IP: p.Address.AsSlice(), Mask: net.CIDRMask(p.Subnet.Bits(), 32)},
		Broadcast: net.IP(vpc.Last(p.Subnet).AsSlice()),
	}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("add %s to %s: %w", addr.IPNet, name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index, Gw: vpc.Gateway(p.Subnet).AsSlice(),
		Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
		Src: p.Address.AsSlice(), Protocol: unix.RTPROT_DHCP, Priority: 0,
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add the default route through %s: %w", route.Gw, err)
	}
	return loopbackUp()
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// plugged waits until the interface with this MAC is plugged, and returns its link. A
// timeout of 0 is a minute.
func plugged(ctx context.Context, mac vpc.MAC, timeout time.Duration) (netlink.Link, error) {
	timeout = cmp.Or(timeout, plugTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no interface with MAC %s was plugged within %s", mac, timeout))
	defer cancel()
	return awaitLink(ctx, mac)
}

// awaitLink waits until a link with this MAC exists. It subscribes before it lists, so
// that it misses none.
func awaitLink(ctx context.Context, mac vpc.MAC) (netlink.Link, error) {
	updates := make(chan netlink.LinkUpdate, 16)
	watch, stop := context.WithCancel(ctx)
	if err := netlink.LinkSubscribe(updates, watch.Done()); err != nil {
		stop()
		return nil, fmt.Errorf("watch links: %w", err)
	}
	defer func() {
		stop()
		for range updates { // until the subscription has ended
		}
	}()
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().HardwareAddr.String() == mac.String() {
			return l, nil
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case u, ok := <-updates:
			if !ok {
				return nil, fmt.Errorf("watch links for MAC %s: %w", mac, cmp.Or(context.Cause(ctx), io.ErrUnexpectedEOF))
			}
			if u.Header.Type == unix.RTM_NEWLINK && u.Attrs().HardwareAddr.String() == mac.String() {
				return u.Link, nil
			}
		}
	}
}
