package cniserver

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// connected returns both ends of a connection.
func connected(t *testing.T) (server, plugin *net.UnixConn) {
	t.Helper()
	l, err := Listen(filepath.Join(t.TempDir(), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plugin = dialed(t, l.Addr().String())
	if server, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server, plugin
}

func TestAPluginHasHungUpOnceItsEndIsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		before func(server, plugin *net.UnixConn) error
		want   bool
	}{
		"it waits":               {func(_, _ *net.UnixConn) error { return nil }, false},
		"it has sent more":       {func(_, plugin *net.UnixConn) error { _, err := plugin.Write([]byte("more")); return err }, false},
		"it was killed":          {func(_, plugin *net.UnixConn) error { return plugin.Close() }, true},
		"the agent has given up": {func(server, _ *net.UnixConn) error { return server.Close() }, true},
		"killed with unread bytes": {func(server, plugin *net.UnixConn) error {
			if _, err := server.Write([]byte("answer")); err != nil {
				return err
			}
			return plugin.Close()
		}, true},
	} {
		server, plugin := connected(t)
		if err := c.before(server, plugin); err != nil {
			t.Fatal(err)
		}
		if got := hungUp(server); got != c.want {
			t.Errorf("%s: hung up %v, want %v", name, got, c.want)
		}
	}
	if !hungUp(new(net.UnixConn)) {
		t.Error("no connection: not hung up")
	}
}

func TestAClosedConnectionIsNotAuthorised(t *testing.T) {
	server, _ := connected(t)
	s := Server{UID: uint32(os.Getuid())}
	if err := s.authorise(server); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]*net.UnixConn{"closed": server, "not open": new(net.UnixConn)} {
		if err := s.authorise(conn); err == nil {
			t.Errorf("a connection that is %s is authorised", name)
		}
	}
}

// A goroutine that reads on after the end of its connection uses a processor until the agent
// ends.
func TestNoGoroutineReadsOnAfterItsCall(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid())})
	for range 3 {
		if answer := raw(t, socket, []byte(add)); answer.Error != nil {
			t.Fatal(answer.Error)
		}
	}
	reading := func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*Server).handle.func"))
	}
	for late := time.Now().Add(20 * time.Second); reading(); runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatal("a goroutine of a call runs 20 s after it")
		}
	}
}

func TestACallThatIsServedIsNotReported(t *testing.T) {
	reports := make(chan error, 9)
	socket := filepath.Join(t.TempDir(), "agent.sock")
	stop := serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid()), Report: func(err error) { reports <- err }})
	if answer := raw(t, socket, []byte(add)); answer.Error != nil {
		t.Fatal(answer.Error)
	}
	stop() // waits for the call
	close(reports)
	for err := range reports {
		t.Errorf("reported: %v", err)
	}
}
