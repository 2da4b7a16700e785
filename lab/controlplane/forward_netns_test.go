//go:build netns

package controlplane

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// failingListener is a listener that fails the first calls of Accept for lack of
// descriptors.
type failingListener struct {
	net.Listener
	failures atomic.Int32
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func listenOnLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestTheForwarderSurvivesALackOfDescriptorsAndClosesItsConnections(t *testing.T) {
	server := listenOnLoopback(t)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	front := &failingListener{Listener: listenOnLoopback(t)}
	front.failures.Store(2)
	f := forward(front, "/proc/self/ns/net", netip.MustParseAddrPort(server.Addr().String()), slog.New(slog.DiscardHandler))
	conn, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err = conn.Write([]byte("echo")); err == nil {
		_, err = io.ReadFull(conn, got)
	}
	if err != nil || string(got) != "echo" {
		t.Fatalf("read %q through the forwarder, %v", got, err)
	}
	f.close()
	f.close()
	if n, err := conn.Read(got); n != 0 || errors.Is(err, syscall.ETIMEDOUT) || err == nil {
		t.Errorf("the connection is still open after close: %d, %v", n, err)
	}
}
