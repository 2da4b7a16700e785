package workload

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dialSpoof sends datagrams with a foreign source address or MAC and queries the server
// for those it received.
func dialSpoof(ctx context.Context, o options, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	to, err := netip.ParseAddrPort(o.target)
	if err != nil || !to.Addr().Is4() {
		return fmt.Errorf("target %s: spoof supports IPv4 addresses only", o.target)
	}
	route, err := findRoute(to.Addr())
	if err != nil {
		return err
	}
	from := route.source
	if o.source != "" {
		if from, err = netip.ParseAddr(o.source); err != nil || !from.Is4() {
			return fmt.Errorf("source %q is not an IPv4 address", o.source)
		}
	}
	r.Token = rand.Text()
	r.Local = netip.AddrPortFrom(from, 40000)
	packet := udpPacket(r.Local, to, []byte(tokenMark+r.Token))
	send := func() error { return sendRaw(to.Addr(), packet) }
	if o.mac != "" {
		mac, err := net.ParseMAC(o.mac)
		if err != nil || len(mac) != 6 {
			return fmt.Errorf("mac %q is not a hardware address", o.mac)
		}
		send = func() error { return route.sendFrame(mac, packet) }
	}
	for range o.count {
		if err := send(); err != nil {
			return fmt.Errorf("send from %s: %w", from, err)
		}
		r.Sent++
	}
	if o.verify == "" {
		return nil
	}
	return r.querySeen(ctx, o)
}

// querySeen polls the server until it has received all datagrams, for at most half a
// second.
func (r *Result) querySeen(ctx context.Context, o options) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 5 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		at := "http://" + o.verify + "/seen?token=" + url.QueryEscape(r.Token)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("query %s for received datagrams: %w", o.verify, err)
		}
		var seen Received
		err = json.NewDecoder(resp.Body).Decode(&seen)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return fmt.Errorf("query %s for received datagrams: %w", o.verify, err)
		}
		r.Seen = seen.Count
		if len(seen.Sources) > 0 {
			r.Source = seen.Sources[0]
		}
		if r.Seen >= r.Sent {
			break
		}
	}
	return nil
}

// route is the route of a packet out of the pod.
type route struct {
	link    int
	source  netip.Addr
	nextMAC net.HardwareAddr
}

// findRoute returns the kernel's route to an address and the next hop's MAC.
func findRoute(to netip.Addr) (route, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return route{}, fmt.Errorf("find the route to %s: %w", to, err)
	}
	w := route{link: routes[0].LinkIndex}
	w.source, _ = netip.AddrFromSlice(routes[0].Src)
	hop := routes[0].Gw
	if hop == nil {
		hop = to.AsSlice()
	}
	neighbours, err := netlink.NeighList(w.link, unix.AF_INET)
	if err != nil {
		return route{}, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		if n.IP.Equal(hop) {
			w.nextMAC = n.HardwareAddr
		}
	}
	return w, nil
}

// sendRaw sends an IPv4 packet with its header.
func sendRaw(to netip.Addr, packet []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// sendFrame sends the packet in an Ethernet frame with the source MAC from.
func (r route) sendFrame(from net.HardwareAddr, packet []byte) error {
	if len(r.nextMAC) != 6 {
		return errors.New("the next hop has no neighbour entry; send it an ordinary packet first")
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	frame := append(append([]byte{}, r.nextMAC...), from...)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP)
	return unix.Sendto(fd, append(frame, packet...), 0, &unix.SockaddrLinklayer{Ifindex: r.link, Halen: 6})
}

// udpPacket builds an IPv4 packet with a UDP datagram without a UDP checksum, which is
// valid for IPv4 (RFC 768).
func udpPacket(from, to netip.AddrPort, body []byte) []byte {
	total := 28 + len(body)
	b := make([]byte, 20, total)
	b[0] = 0x45 // version 4, five words of header
	binary.BigEndian.PutUint16(b[2:], uint16(total))
	b[8], b[9] = 64, unix.IPPROTO_UDP
	copy(b[12:], from.Addr().AsSlice())
	copy(b[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(body)))
	b = append(b, 0, 0)
	return append(b, body...)
}

// checksum returns the Internet checksum of an even number of bytes (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
