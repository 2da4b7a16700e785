package cniserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// serve runs a server with handle at a new socket until the test ends.
func serve(t testing.TB, handle Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	serveAt(t, socket, Server{Handle: handle, Agent: "test", UID: uint32(os.Getuid())})
	return socket
}

// serveAt runs s at socket until the test ends or stop is called.
func serveAt(t testing.TB, socket string, s Server) (stop func()) {
	t.Helper()
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// answering is the handler that answers with what do returns.
func answering(do func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error)) Handler {
	return func(ctx context.Context, req *cnirpc.Request, netns *os.File, answer Answer) {
		answer(do(ctx, req, netns))
	}
}

// echo returns the request as the result.
func echo(_ context.Context, req *cnirpc.Request, _ *os.File, answer Answer) {
	raw, err := json.Marshal(req)
	if err != nil {
		answer(nil, &cnirpc.Error{Code: cnirpc.CodeInternal, Msg: err.Error()})
		return
	}
	answer(raw, nil)
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

func TestRequestArrivesUnchanged(t *testing.T) {
	socket := serve(t, echo)
	sent := cnirpc.Request{Plugin: "v1", Command: "ADD", ContainerID: "c", IfName: "eth0", Netns: "/x", Args: "A=B", Config: json.RawMessage(`{"name":"n"}`)}
	resp, err := cnirpc.Call(in(10*time.Second), socket, sent, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got cnirpc.Request
	if err := json.Unmarshal(resp.Result, &got); err != nil {
		t.Fatal(err)
	}
	if got.WaitMillis <= 0 || got.WaitMillis > 10_000 {
		t.Errorf("waitMillis %d, want at most the 10 s of the call", got.WaitMillis)
	}
	sent.Version, sent.MinVersion, got.WaitMillis = cnirpc.Version, cnirpc.MinVersion, 0
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("request (-sent +arrived):\n%s", diff)
	}
	if resp.Agent != "test" || resp.Version != cnirpc.Version {
		t.Errorf("answer from agent %q, protocol %d", resp.Agent, resp.Version)
	}
}

func TestNamespaceDescriptorIsClosedAfterTheCall(t *testing.T) {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	kept := make(chan *os.File, 1)
	socket := serve(t, answering(func(_ context.Context, _ *cnirpc.Request, netns *os.File) (json.RawMessage, *cnirpc.Error) {
		a, errA := own.Stat()
		b, errB := netns.Stat()
		kept <- netns
		return nil, &cnirpc.Error{Msg: fmt.Sprint(errors.Join(errA, errB) == nil && os.SameFile(a, b))}
	}))
	resp, err := cnirpc.Call(in(10*time.Second), socket, cnirpc.Request{Command: "ADD"}, own)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Error.Msg != "true" {
		t.Error("another namespace arrived")
	}
	if _, err := (<-kept).Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("use of the descriptor after the call: %v, want ErrClosed", err)
	}
}

func TestDescriptorOfAPlainFileIsRefused(t *testing.T) {
	socket := serve(t, echo)
	plain, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	resp, err := cnirpc.Call(in(10*time.Second), socket, cnirpc.Request{Command: "ADD"}, plain)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Error == nil || resp.Error.Code != cnirpc.CodeInvalidNetns {
		t.Errorf("a plain file as namespace: %+v", resp.Error)
	}
}

func TestCallWaitsForAnAgentThatStartsLater(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	answer := make(chan error, 1)
	go func() {
		_, err := cnirpc.Call(in(20*time.Second), socket, cnirpc.Request{Command: "ADD"}, nil)
		answer <- err
	}()
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid())})
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestCallIsRetriedWhenTheAgentStops(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	arrived := make(chan struct{})
	stop := serveAt(t, socket, Server{UID: uint32(os.Getuid()), Handle: answering(func(ctx context.Context, _ *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		close(arrived)
		<-ctx.Done()
		return nil, &cnirpc.Error{Code: cnirpc.CodeInternal, Msg: "rolled back"}
	})})
	type outcome struct {
		resp *cnirpc.Response
		err  error
	}
	answer := make(chan outcome, 1)
	go func() {
		resp, err := cnirpc.Call(in(20*time.Second), socket, cnirpc.Request{Command: "ADD"}, nil)
		answer <- outcome{resp, err}
	}()
	<-arrived
	stop()
	serveAt(t, socket, Server{Handle: echo, Agent: "second", UID: uint32(os.Getuid())})
	if got := <-answer; got.err != nil || got.resp.Error != nil || got.resp.Agent != "second" {
		t.Errorf("answer %+v, %v; want an answer of the second agent", got.resp, got.err)
	}
}

func TestAbsentOrSilentAgentIsErrNoAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if _, err := cnirpc.Call(in(30*time.Millisecond), socket, cnirpc.Request{Command: "ADD"}, nil); !errors.Is(err, cnirpc.ErrNoAgent) {
		t.Errorf("call without an agent: %v, want ErrNoAgent", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := cnirpc.Call(in(30*time.Millisecond), socket, cnirpc.Request{Command: "ADD"}, nil); !errors.Is(err, cnirpc.ErrNoAgent) {
		t.Errorf("call to a silent agent: %v, want ErrNoAgent", err)
	}
}

func TestCallEndsWhenThePluginGoesAway(t *testing.T) {
	cause := make(chan error, 1)
	arrived := make(chan struct{})
	socket := serve(t, answering(func(ctx context.Context, _ *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		close(arrived)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, nil
	}))
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Write([]byte(`{"version":1,"command":"ADD"}` + "\n"))
	if err == nil {
		<-arrived
	}
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; !errors.Is(err, ErrPluginGone) {
		t.Errorf("cause %v, want ErrPluginGone", err)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	reports := make(chan error, 100)
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid()) + 1, Report: func(err error) {
		select {
		case reports <- err:
		default:
		}
	}})
	if _, err := cnirpc.Call(in(100*time.Millisecond), socket, cnirpc.Request{Command: "ADD"}, nil); !errors.Is(err, cnirpc.ErrNoAgent) {
		t.Errorf("call by another user: %v", err)
	}
	if err := <-reports; !strings.Contains(err.Error(), "not allowed to call") {
		t.Errorf("report: %v", err)
	}
}

// raw sends message unchanged and returns the answer.
func raw(t testing.TB, socket string, message []byte) cnirpc.Response {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(message); err != nil && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	var resp cnirpc.Response
	if err := json.Unmarshal(answer, &resp); err != nil {
		t.Fatal(err)
	}
	return resp
}

// The messages are recorded, not encoded from the types, which may change.
func TestOlderAndNewerPluginsAreServed(t *testing.T) {
	socket := serve(t, echo)
	for _, c := range []struct {
		name, message string
		code          uint
	}{
		{"the first release, without minVersion, wait and args", `{"version":1,"command":"DEL","containerID":"c1","ifName":"eth0","config":{"cniVersion":"0.4.0","name":"n"}}`, 0},
		{"a later release, with unknown fields", `{"version":7,"minVersion":1,"plugin":"v9","command":"ADD","containerID":"c1","ifName":"eth0","config":{},"cgroup":"/kubepods","hints":{"zone":"a"}}`, 0},
		{"a plugin that needs a later agent", `{"version":9,"minVersion":8,"command":"ADD","config":{}}`, cnirpc.CodeIncompatible},
		{"a version before the first protocol", `{"version":0,"command":"ADD","config":{}}`, cnirpc.CodeIncompatible},
		{"not JSON", `hello`, cnirpc.CodeDecode},
		{"no command", `{"version":1}`, cnirpc.CodeDecode},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := raw(t, socket, []byte(c.message+"\n"))
			switch {
			case c.code == 0 && resp.Error != nil:
				t.Errorf("refused: %v", resp.Error)
			case c.code != 0 && (resp.Error == nil || resp.Error.Code != c.code):
				t.Errorf("answer %+v, want code %d", resp.Error, c.code)
			}
		})
	}
}

// The answers are recorded like the messages above.
func TestAnswersOfOlderAndNewerAgentsAreAccepted(t *testing.T) {
	for _, c := range []struct{ name, answer, result string }{
		{"the first release", `{"version":1,"agent":"v0.1.0","result":{"ips":[]}}`, `{"ips":[]}`},
		{"a later release, with unknown fields", `{"version":9,"agent":"v9","result":{"ips":[]},"trace":"abc","warnings":[]}`, `{"ips":[]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = bufio.NewReader(conn).ReadBytes('\n')
				_, _ = conn.Write([]byte(c.answer + "\n"))
			}()
			resp, err := cnirpc.Call(in(10*time.Second), socket, cnirpc.Request{Command: "ADD"}, nil)
			if err != nil || string(resp.Result) != c.result {
				t.Errorf("answer %+v, %v", resp, err)
			}
		})
	}
}

func TestAnswerBeforeTheRequestIsReadIsNotRetried(t *testing.T) {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var calls atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			calls.Add(1)
			_, _ = conn.Write([]byte(`{"version":1,"result":{"n":1}}` + "\n"))
			conn.Close() // without reading the request
		}
	}()
	for i := range 100 {
		req := cnirpc.Request{Command: "CHECK", Args: strings.Repeat("x", i*4096)}
		resp, err := cnirpc.Call(in(10*time.Second), socket, req, own)
		if err != nil || string(resp.Result) != `{"n":1}` {
			t.Fatalf("answer %+v, %v", resp, err)
		}
	}
	if n := calls.Load(); n != 100 {
		t.Errorf("%d connections for 100 calls", n)
	}
}

func TestMessagesOverTheLimitAreRefused(t *testing.T) {
	socket := serve(t, echo)
	resp := raw(t, socket, bytes.Repeat([]byte("x"), cnirpc.MaxMessage+1))
	if resp.Error == nil || !strings.Contains(resp.Error.Details, "longer than") {
		t.Errorf("answer %+v", resp.Error)
	}
	if _, err := cnirpc.Call(in(10*time.Second), socket, cnirpc.Request{Command: "ADD", Args: strings.Repeat("x", cnirpc.MaxMessage)}, nil); !errors.Is(err, cnirpc.ErrTooLong) {
		t.Errorf("send a request over the limit: %v, want ErrTooLong", err)
	}
	big := cnirpc.Request{Command: "GC", Args: strings.Repeat("x", cnirpc.MaxMessage/2)}
	if resp, err := cnirpc.Call(in(10*time.Second), socket, big, nil); err != nil || len(resp.Result) < cnirpc.MaxMessage/2 {
		t.Errorf("half a megabyte: %v", err)
	}
}

func FuzzServerSurvivesAnyBytes(f *testing.F) {
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"version":1,"command":"ADD"}` + "\n" + "more"))
	socket := serve(f, echo)
	f.Fuzz(func(t *testing.T, message []byte) {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(message)
		conn.Close()
		if _, err := cnirpc.Call(in(10*time.Second), socket, cnirpc.Request{Command: "STATUS"}, nil); err != nil {
			t.Fatalf("after %q: %v", message, err)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	socket := serve(b, echo)
	for b.Loop() {
		if _, err := cnirpc.Call(in(time.Minute), socket, cnirpc.Request{Command: "ADD"}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// The runtime killed the plugins while their requests waited in the backlog. A DEL is still
// carried out: the runtime wants the attachment gone.
func TestAnADDOfAPluginThatIsGoneIsNotBegun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ADD", "DEL"} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		line, err := cnirpc.EncodeLine(cnirpc.Request{Version: cnirpc.Version, Command: command, ContainerID: "c"})
		if err == nil {
			_, err = conn.Write(line)
		}
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	handled, refused := make(chan string, 2), make(chan error, 2)
	s := Server{UID: uint32(os.Getuid()), Report: func(err error) { refused <- err }, Handle: answering(func(_ context.Context, req *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		handled <- req.Command
		return nil, nil
	})}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	if err := <-refused; !errors.Is(err, ErrPluginGone) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v, want %v", err, ErrPluginGone)
	}
	if got := <-handled; got != "DEL" {
		t.Errorf("%s was handled", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case got := <-handled:
		t.Errorf("%s was handled", got)
	default:
	}
}
