//go:build netns

package link_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// echo serves UDP in a namespace until the test ends and answers with the source
// address it saw, padded to the size of the request.
func echo(t testing.TB, ns *testns.NS, port int) {
	t.Helper()
	echoAt(t, ns, fmt.Sprintf("0.0.0.0:%d", port))
}

func echoAt(t testing.TB, ns *testns.NS, addr string) {
	t.Helper()
	var c net.PacketConn
	ns.Do(t, func() {
		var err error
		if c, err = net.ListenPacket("udp", addr); err != nil {
			t.Fatal(err)
		}
	})
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			answer := make([]byte, n)
			copy(answer, from.(*net.UDPAddr).IP.String()+" ")
			_, _ = c.WriteTo(answer, from)
		}
	}()
}

// ask sends size bytes with DF from a namespace to an address and returns the source
// address that the echo saw. It repeats the request for the given time. The error is a
// timeout or the refusal.
func ask(t testing.TB, ns *testns.NS, to string, size int, within time.Duration) (string, error) {
	t.Helper()
	var c net.Conn
	ns.Do(t, func() {
		d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			})
		}}
		var err error
		if c, err = d.Dial("udp", to); err != nil {
			t.Fatal(err)
		}
	})
	defer c.Close()
	buf := make([]byte, 64<<10)
	var last error
	// The first packet may be lost on a link that has just come up.
	for end := time.Now().Add(within); time.Now().Before(end); {
		if _, err := c.Write(make([]byte, size)); err != nil {
			return "", err
		}
		_ = c.SetReadDeadline(time.Now().Add(silence))
		n, err := c.Read(buf)
		if err == nil {
			if n != size {
				return "", fmt.Errorf("answer has %d bytes, not %d", n, size)
			}
			seen, _, _ := bytes.Cut(buf[:n], []byte(" "))
			return string(seen), nil
		}
		if last = err; !errors.Is(err, os.ErrDeadlineExceeded) {
			return "", err
		}
	}
	return "", last
}

// mustSee asserts that a request arrives and with which source address.
func mustSee(t testing.TB, ns *testns.NS, to string, size int, want string) {
	t.Helper()
	got, err := ask(t, ns, to, size, arrival)
	if err != nil || got != want {
		t.Errorf("%s asks %s with %d bytes: seen as %q (%v), want %q", ns.Name, to, size, got, err, want)
	}
}

// frame sends raw frames from a namespace's eth0.
type frame struct {
	src, dst vpc.MAC
	kind     uint16 // EtherType
	payload  []byte
}

func (f frame) send(t testing.TB, ns *testns.NS) {
	t.Helper()
	ns.Do(t, func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		b := append(append(append([]byte{}, f.dst[:]...), f.src[:]...), byte(f.kind>>8), byte(f.kind))
		b = append(b, f.payload...)
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
			t.Fatal(err)
		}
	})
}

// udp4 returns an IPv4 packet with a UDP datagram without checksum.
func udp4(src, dst string, port uint16, text string) []byte {
	s, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	size := 28 + len(text)
	b := make([]byte, 28, size)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(b[20:], 40000)
	binary.BigEndian.PutUint16(b[22:], port)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(text)))
	return append(b, text...)
}

// arp is an ARP message; kind 1 is a request for target.
func arp(kind uint16, senderMAC vpc.MAC, sender, target string) []byte {
	s, d := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
	b := []byte{0, 1, 8, 0, 6, 4, byte(kind >> 8), byte(kind)}
	b = append(append(b, senderMAC[:]...), s[:]...)
	return append(append(b, make([]byte, 6)...), d[:]...)
}

// listener receives datagrams in a namespace.
type listener struct {
	c net.PacketConn
}

func listen(t testing.TB, ns *testns.NS, port int) *listener {
	t.Helper()
	l := &listener{}
	ns.Do(t, func() {
		var err error
		if l.c, err = net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", port)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { l.c.Close() })
	return l
}

// receive returns the next datagram's text and sender; "" if none arrives in time.
func (l *listener) receive(wait time.Duration) (text, from string) {
	buf := make([]byte, 2048)
	_ = l.c.SetReadDeadline(time.Now().Add(wait))
	n, a, err := l.c.ReadFrom(buf)
	if err != nil {
		return "", ""
	}
	return string(buf[:n]), a.(*net.UDPAddr).IP.String()
}
