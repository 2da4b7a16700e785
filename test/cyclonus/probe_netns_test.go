//go:build netns

package cyclonus

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/test/conformance/cases"
)

const (
	silence = 250 * time.Millisecond // after which a connection is taken for denied
	arrival = 5 * time.Second        // until which an allowed one must succeed
)

// serve accepts connections of TCP and answers datagrams at a port, in the namespace of the
// calling thread.
func serve(t *testing.T, port int) error {
	l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	c, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return errors.Join(err, l.Close())
	}
	t.Cleanup(func() { l.Close(); c.Close() })
	go func() {
		for {
			accepted, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Close()
		}
	}()
	go func() {
		b := make([]byte, 100)
		for {
			size, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(b[:size], from) // one that is lost is not an answer
		}
	}()
	return nil
}

// expected is the outcome of a connection: a pod always reaches itself.
func expected(p cases.Probe) bool { return p.Loopback || p.Egress && p.Ingress }

// tryAll tries connections at once, in the namespace of the calling thread, and returns those
// with another outcome than expected. One that should succeed is tried again for longer. reach
// returns which arrived.
func tryAll(probes []cases.Probe, reach func([]cases.Probe, time.Duration) []bool) (wrong []string) {
	var again []cases.Probe
	report := func(p cases.Probe, reached bool) {
		wrong = append(wrong, fmt.Sprintf("%s to %s %s %d: reached %v, want egress %v, ingress %v", p.From, p.To, p.Flow.Protocol, p.Flow.Port, reached, p.Egress, p.Ingress))
	}
	for i, reached := range reach(probes, silence) {
		switch {
		case reached == expected(probes[i]):
		case reached:
			report(probes[i], reached)
		default:
			again = append(again, probes[i])
		}
	}
	if len(again) == 0 {
		return wrong
	}
	for i, reached := range reach(again, arrival) {
		if !reached {
			report(again[i], reached)
		}
	}
	return wrong
}

// reach opens connections and returns which were accepted, answered or refused by the other
// pod. It returns early once all have been.
func reach(probes []cases.Probe, timeout time.Duration) []bool {
	reached := make([]bool, len(probes))
	poll := make([]unix.PollFd, len(probes))
	for i, p := range probes {
		poll[i] = open(p)
	}
	defer func() {
		for _, p := range poll {
			if p.Fd >= 0 {
				unix.Close(int(p.Fd))
			}
		}
	}()
	left, deadline := len(probes), time.Now().Add(timeout)
	for left > 0 && time.Now().Before(deadline) {
		_, err := unix.Poll(poll, max(1, int(time.Until(deadline).Milliseconds())))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return reached
		}
		for i := range poll {
			if poll[i].Revents == 0 {
				continue
			}
			code, err := unix.GetsockoptInt(int(poll[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
			reached[i] = err == nil && (code == 0 || unix.Errno(code) == unix.ECONNREFUSED)
			poll[i].Revents = 0
			unix.Close(int(poll[i].Fd))
			poll[i].Fd = -1
			left--
		}
	}
	return reached
}

// open starts a connection and returns what to wait for.
func open(p cases.Probe) unix.PollFd {
	kind, events := unix.SOCK_STREAM, int16(unix.POLLOUT)
	if p.Flow.Protocol == policy.UDP {
		kind, events = unix.SOCK_DGRAM, unix.POLLIN
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return unix.PollFd{Fd: -1}
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(p.Flow.Port), Addr: p.Flow.Destination.As4()})
	if kind == unix.SOCK_DGRAM && err == nil {
		_, err = unix.Write(fd, []byte("?"))
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return unix.PollFd{Fd: -1}
	}
	return unix.PollFd{Fd: int32(fd), Events: events}
}
