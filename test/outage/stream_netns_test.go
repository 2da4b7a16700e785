//go:build netns

package outage

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/trunkline/trunkline/test/node"
)

// Intervals of a stream: between two numbers, and the longest that a number may take.
const (
	every    = 20 * time.Millisecond
	maxDelay = 10 * time.Second // the machine is shared; a lost route ends the stream at any bound
)

// stream is one TCP connection between two pods, on which numbers are sent and echoed until
// it is stopped.
type stream struct {
	conn net.Conn
	end  chan struct{}
	done chan error
	once sync.Once
}

// startStream opens a stream from one pod to another.
func startStream(t *testing.T, from, to *node.Pod) *stream {
	t.Helper()
	var l net.Listener
	if err := to.Run(func() (err error) { l, err = net.Listen("tcp4", "0.0.0.0:7007"); return err }); err != nil {
		t.Fatal(err)
	}
	go echo(l)
	s := &stream{end: make(chan struct{}), done: make(chan error, 1)}
	if err := from.Run(func() (err error) {
		s.conn, err = net.DialTimeout("tcp4", netip.AddrPortFrom(to.Addr, 7007).String(), maxDelay)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- s.run() }()
	t.Cleanup(func() { _ = s.stop(); _ = s.conn.Close(); _ = l.Close() })
	return s
}

func echo(l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if _, err := conn.Write(line); err != nil {
			return
		}
	}
}

func (s *stream) run() error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	back := bufio.NewReader(s.conn)
	for n := 0; ; n++ {
		sent := fmt.Sprintln(n)
		if err := s.conn.SetDeadline(time.Now().Add(maxDelay)); err != nil {
			return err
		}
		if _, err := s.conn.Write([]byte(sent)); err != nil {
			return fmt.Errorf("number %d: %w", n, err)
		}
		got, err := back.ReadString('\n')
		if err != nil || got != sent {
			return fmt.Errorf("number %d: %q came back: %w", n, got, err)
		}
		select {
		case <-s.end:
			return nil
		case <-tick.C:
		}
	}
}

// stop ends the stream and returns why it had ended before, if it had.
func (s *stream) stop() (err error) {
	s.once.Do(func() { close(s.end); err = <-s.done })
	return err
}
