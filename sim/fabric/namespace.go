package fabric

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// ListenIn opens a stream listener inside the named network namespace, such as
// ListenIn("tl-lab-vpc", "tcp4", "169.254.169.254:80"). The listener works from
// any goroutine; its sockets stay in that namespace.
func ListenIn(namespace, network, address string) (net.Listener, error) {
	var l net.Listener
	err := netns.DoAt(netns.Path(namespace), func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false) // its sockets refuse IP_TTL
		l, err = config.Listen(context.Background(), network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in namespace %s: %w", address, namespace, err)
	}
	return l, nil
}

// ListenPacketIn is ListenIn for datagrams, such as "udp4" and "10.0.0.2:53".
func ListenPacketIn(namespace, network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := netns.DoAt(netns.Path(namespace), func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in namespace %s: %w", address, namespace, err)
	}
	return c, nil
}

// handleIn opens netlink sockets of the given families in a namespace.
func handleIn(ns *os.File, families ...int) (h *netlink.Handle, err error) {
	err = netns.Do(ns, func() (err error) {
		h, err = netlink.NewHandle(families...)
		return err
	})
	return h, err
}

// sysctl is a path below /proc/sys and its value.
type sysctl struct{ path, value string }

// writeSysctls sets the values that differ, inside the named namespace.
func writeSysctls(namespace string, settings []sysctl) error {
	return netns.DoAt(netns.Path(namespace), func() error {
		for _, s := range settings {
			path := filepath.Join("/proc/sys", s.path)
			have, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read sysctl %s: %w", s.path, err)
			}
			if string(have) == s.value+"\n" {
				continue
			}
			if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
				return fmt.Errorf("set sysctl %s to %s: %w", s.path, s.value, err)
			}
		}
		return nil
	})
}
