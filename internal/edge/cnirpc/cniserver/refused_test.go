package cniserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// reported runs a server and returns its socket and what it reports.
func reported(t *testing.T, s Server) (socket string, reports chan error) {
	t.Helper()
	reports = make(chan error, 100)
	s.UID, s.Report = uint32(os.Getuid()), func(err error) { reports <- err }
	socket = filepath.Join(t.TempDir(), "agent.sock")
	serveAt(t, socket, s)
	return socket, reports
}

func next[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: nothing within 20 s", what)
		panic("unreachable")
	}
}

func dialed(t *testing.T, socket string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestARefusedRequestIsReportedWithItsReason(t *testing.T) {
	socket, reports := reported(t, Server{Handle: echo})
	for message, want := range map[string]string{
		`{"version":9,"minVersion":8,"command":"ADD"}` + "\n": "no protocol version in common",
		"hello\n":                                "decode request",
		strings.Repeat("x", cnirpc.MaxMessage+1): "longer than",
	} {
		if resp := raw(t, socket, []byte(message)); resp.Error == nil {
			t.Errorf("%.50s: answered with %+v", message, resp)
		}
		if err := next(t, reports, "report of "+want); !strings.Contains(err.Error(), want) {
			t.Errorf("%.50s: reported as %v, want %q", message, err, want)
		}
	}
	// A plugin that was killed while it sent its request gets no answer.
	conn := dialed(t, socket)
	if _, err := conn.Write([]byte(`{"version":1,`)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := next(t, reports, "report of half a request"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a request: %v", err)
	}
	conn = dialed(t, socket)
	conn.Close()
	if err := next(t, reports, "report of no request"); !errors.Is(err, io.EOF) {
		t.Errorf("a connection without a request: %v", err)
	}
}

// A pipe's reader sees the end of the file once every descriptor of the writer is closed.
func TestMoreThanOneDescriptorIsRefusedAndAllAreClosed(t *testing.T) {
	socket, reports := reported(t, Server{Handle: echo})
	for _, n := range []int{2, 4, 6} { // there is space for four; the kernel drops the others
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		conn, rights := dialed(t, socket), []int{}
		for range n {
			rights = append(rights, int(w.Fd()))
		}
		if _, _, err := conn.WriteMsgUnix([]byte(`{"version":1,"command":"ADD"}`+"\n"), syscall.UnixRights(rights...), nil); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := next(t, reports, "report of the descriptors"); !strings.Contains(err.Error(), "more than one descriptor") {
			t.Errorf("%d descriptors: reported as %v", n, err)
		}
		if answer, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			t.Errorf("%d descriptors: answered with %s", n, answer)
		}
		if err := r.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%d descriptors: one is still open: %v", n, err)
		}
		r.Close()
	}
}

func TestACallHasTheTimeThatThePluginWaitsAndNoMoreThanTheLimit(t *testing.T) {
	left := make(chan time.Duration, 1)
	socket, _ := reported(t, Server{MaxWait: time.Minute, Handle: answering(func(ctx context.Context, _ *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return nil, nil
	})})
	for message, want := range map[string]time.Duration{
		`{"version":1,"command":"ADD","waitMillis":30000}`:  30 * time.Second,
		`{"version":1,"command":"ADD","waitMillis":600000}`: time.Minute,
		`{"version":1,"command":"ADD"}`:                     time.Minute,
	} {
		raw(t, socket, []byte(message+"\n"))
		if got := next(t, left, "call"); got > want || got < want-25*time.Second {
			t.Errorf("%s: the call has %v, want %v", message, got, want)
		}
	}
}

func TestAFailureIsAnsweredWithoutAResult(t *testing.T) {
	socket, reports := reported(t, Server{Handle: answering(func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error) {
		return json.RawMessage(`{"ips":[]}`), &cnirpc.Error{Code: 11, Msg: "try again"}
	})})
	resp := raw(t, socket, []byte(`{"version":1,"command":"ADD"}`+"\n"))
	if resp.Result != nil || resp.Error == nil || resp.Error.Code != 11 {
		t.Errorf("answer %s, %+v", resp.Result, resp.Error)
	}
	select {
	case err := <-reports:
		t.Errorf("an answered failure was reported: %v", err)
	default:
	}
}

// Each call takes one of MaxCalls places and returns it.
func TestMoreCallsThanTheLimitAreServedOneAfterAnother(t *testing.T) {
	socket, _ := reported(t, Server{MaxCalls: 1, Handle: echo})
	for range 5 {
		if resp := raw(t, socket, []byte(`{"version":1,"command":"STATUS"}`+"\n")); resp.Error != nil {
			t.Fatal(resp.Error)
		}
	}
}

func TestAListenerThatFailsEndsTheServer(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- (&Server{Handle: echo}).Serve(t.Context(), l) }()
	l.Close()
	if err := next(t, done, "end of the server"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("served until %v, want an error", err)
	}
}

// The plugin of such a call gets no answer and calls the next agent.
func TestAListenerThatFailsEndsTheCallsInFlight(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	begun, cause, done := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	server := Server{UID: uint32(os.Getuid()), Handle: answering(func(ctx context.Context, _ *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, &cnirpc.Error{Code: cnirpc.CodeInternal, Msg: "rolled back"}
	})}
	go func() { done <- server.Serve(t.Context(), l) }()
	conn := dialed(t, socket)
	if _, err := conn.Write([]byte(`{"version":1,"command":"ADD"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	next(t, begun, "call")
	l.Close()
	if got := next(t, cause, "end of the call"); !errors.Is(got, ErrStopping) {
		t.Errorf("the call ended with %v, want %v", got, ErrStopping)
	}
	if err := next(t, done, "end of the server"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("served until %v, want an error", err)
	}
	if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
		t.Errorf("answer %q, %v; want none", answer, err)
	}
}

func TestTheSocketReplacesAStaleOneAndIsItsUsersOnly(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "run", "agent.sock")
	for range 2 { // the second finds what a killed agent left
		l, err := Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		if st, err := os.Stat(socket); err != nil || st.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, %v; want a socket with mode 0600", st.Mode(), err)
		}
	}
	file := filepath.Join(dir, "file")
	full := filepath.Join(dir, "full")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.MkdirAll(filepath.Join(full, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(file, "agent.sock"): "create socket directory",
		full:                              "remove stale socket",
		filepath.Join(dir, strings.Repeat("x", 150)): "listen at",
	} {
		if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want an error that contains %q", path, l, err, want)
		}
	}
}
