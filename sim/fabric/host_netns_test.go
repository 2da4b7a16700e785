//go:build netns

package fabric

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

// expect fails its test if something expected does not hold.
type expect struct{ t testing.TB }

func (e expect) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// eventually waits for a condition, for replyTimeout at most.
func (e expect) eventually(what string, holds func() bool) {
	e.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(replyTimeout); !holds(); <-tick.C {
		if time.Now().After(end) {
			e.t.Fatalf("not within %s: %s", replyTimeout, what)
		}
	}
}

// host is a namespace with the sockets that a test opens in it.
type host struct {
	expect
	*testns.NS
}

// serveUDP replies to every datagram with the sender's address.
func (h *host) serveUDP(address string) {
	h.t.Helper()
	c, err := ListenPacketIn(h.Name, "udp", address)
	h.must(err)
	h.t.Cleanup(func() { c.Close() })
	go func() {
		buffer := make([]byte, 10000)
		for {
			_, from, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(from.String()), from)
		}
	}()
}

// collect sends every datagram that arrives at an address to a channel.
func (h *host) collect(at netip.AddrPort, to chan<- string) {
	h.t.Helper()
	c, err := ListenPacketIn(h.Name, "udp", at.String())
	h.must(err)
	h.t.Cleanup(func() { c.Close() })
	go func() {
		buffer := make([]byte, 256)
		for {
			n, _, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			to <- string(buffer[:n])
		}
	}()
}

// serveTCP echoes what each client sends.
func (h *host) serveTCP(address string) {
	h.t.Helper()
	l, err := ListenIn(h.Name, "tcp", address)
	h.must(err)
	h.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 64)
				for {
					n, err := c.Read(buffer)
					if err != nil {
						return
					}
					if _, err := c.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// ask sends a datagram of a size, with DF, and returns what came back. The
// source may be empty.
func (h *host) ask(source, to string, size int, wait time.Duration) (answer string, err error) {
	err = h.Run(func() error {
		d := net.Dialer{Timeout: wait}
		if source != "" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
		}
		c, err := d.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := dontFragment(c.(*net.UDPConn)); err != nil {
			return err
		}
		if _, err := c.Write(make([]byte, size)); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		buffer := make([]byte, 256)
		n, err := c.Read(buffer)
		answer = string(buffer[:n])
		return err
	})
	return answer, err
}

// dontFragment sets DF, and IP_RECVERR so that reads return ICMP errors.
func dontFragment(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		domain, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if domain == unix.AF_INET6 {
			set = errors.Join(
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
			return
		}
		set = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	})
	return errors.Join(err, set)
}

// reaches fails unless a server replies, and returns the reply.
func (h *host) reaches(source, to string) string {
	h.t.Helper()
	answer, err := h.ask(source, to, 1, replyTimeout)
	if err != nil {
		h.t.Fatalf("%s to %s: %v", source, to, err)
	}
	return answer
}

// silent fails if a server replies.
func (h *host) silent(source, to string) {
	h.t.Helper()
	answer, err := h.ask(source, to, 1, silence)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		h.t.Fatalf("%s to %s: got %q, %v; want no reply", source, to, answer, err)
	}
}

// send sends one datagram from an address, from a port of its own.
func (h *host) send(source netip.Addr, to netip.AddrPort, word string) error {
	return h.Run(func() error {
		d := net.Dialer{Timeout: time.Second, LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))}
		c, err := d.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(word))
		return err
	})
}

// stream starts an exchange; a reply later than timeout counts as lost.
func (h *host) stream(to string, timeout time.Duration) *exchange {
	h.t.Helper()
	var c net.Conn
	h.must(h.Run(func() (err error) {
		c, err = net.Dial("udp", to)
		return err
	}))
	e := &exchange{stop: make(chan struct{}), done: make(chan struct{})}
	go e.run(c, timeout)
	return e
}

// connect opens a TCP connection.
func (h *host) connect(to string, wait time.Duration) (c net.Conn, err error) {
	err = h.Run(func() (err error) {
		d := net.Dialer{Timeout: wait}
		d.SetMultipathTCP(false)
		c, err = d.DialContext(context.Background(), "tcp", to)
		return err
	})
	return c, err
}

// echo sends a word over a connection and waits for it to come back.
func echo(c net.Conn, word string, wait time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte(word)); err != nil {
		return err
	}
	buffer := make([]byte, len(word))
	for got := 0; got < len(word); {
		n, err := c.Read(buffer[got:])
		if err != nil {
			return err
		}
		got += n
	}
	if string(buffer) != word {
		return fmt.Errorf("sent %q, got back %q", word, buffer)
	}
	return nil
}

// ping sends one ICMP echo request and waits for the reply.
func (h *host) ping(source, to string, wait time.Duration) (err error) {
	return h.Run(func() error {
		dst := netip.MustParseAddr(to)
		network, request, reply := "ip4:icmp", byte(8), byte(0)
		if dst.Is6() {
			network, request, reply = "ip6:ipv6-icmp", 128, 129
		}
		var local *net.IPAddr
		if source != "" {
			local = &net.IPAddr{IP: net.ParseIP(source)}
		}
		c, err := net.DialIP(network, local, &net.IPAddr{IP: dst.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		// A new flow each time: the fabric tracks echoes by identifier.
		message := binary.BigEndian.AppendUint32([]byte{request, 0, 0, 0}, rand.Uint32())
		if dst.Is4() {
			binary.BigEndian.PutUint16(message[2:], checksum(message))
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		buffer := make([]byte, 128)
		for {
			n, _, err := c.ReadFrom(buffer)
			if err != nil {
				return err
			}
			if n >= 8 && buffer[0] == reply && bytes.Equal(buffer[4:8], message[4:]) {
				return nil
			}
		}
	})
}

func checksum(b []byte) uint16 {
	var sum uint32
	for n := 0; n+1 < len(b); n += 2 {
		sum += uint32(b[n])<<8 | uint32(b[n+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
