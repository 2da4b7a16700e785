package cnirpc

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
)

// serve runs a server with handle at a new socket until the test ends.
func serve(t testing.TB, handle Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	serveAt(t, socket, Server{Handle: handle, Agent: "test", UID: uint32(os.Getuid())})
	return socket
}

// serveAt returns a function that stops the server and waits for it.
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

// echo answers with what it was asked.
func echo(_ context.Context, req *Request, _ *os.File) (json.RawMessage, *Error) {
	raw, err := json.Marshal(req)
	if err != nil {
		return nil, &Error{Code: CodeInternal, Msg: err.Error()}
	}
	return raw, nil
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestARequestArrivesAsItWasSent(t *testing.T) {
	socket := serve(t, echo)
	sent := Request{Plugin: "v1", Command: "ADD", ContainerID: "c", IfName: "eth0", Netns: "/x", Args: "A=B", Config: json.RawMessage(`{"name":"n"}`)}
	resp, err := Call(within(t, 10*time.Second), socket, sent, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got Request
	if err := json.Unmarshal(resp.Result, &got); err != nil {
		t.Fatal(err)
	}
	if got.WaitMillis <= 0 || got.WaitMillis > 10_000 {
		t.Errorf("the agent was told to answer within %d ms of 10 s", got.WaitMillis)
	}
	sent.Version, sent.MinVersion, got.WaitMillis = Version, MinVersion, 0
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("request (-sent +arrived):\n%s", diff)
	}
	if resp.Agent != "test" || resp.Version != Version {
		t.Errorf("answer from agent %q, protocol %d", resp.Agent, resp.Version)
	}
}

func TestTheNamespaceArrivesAsADescriptorAndIsClosedAfterwards(t *testing.T) {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	kept := make(chan *os.File, 1)
	socket := serve(t, func(_ context.Context, _ *Request, netns *os.File) (json.RawMessage, *Error) {
		a, errA := own.Stat()
		b, errB := netns.Stat()
		kept <- netns
		return nil, &Error{Msg: fmt.Sprint(errors.Join(errA, errB) == nil && os.SameFile(a, b))}
	})
	resp, err := Call(within(t, 10*time.Second), socket, Request{Command: "ADD"}, own)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Error.Msg != "true" {
		t.Error("another namespace arrived")
	}
	if _, err := (<-kept).Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("descriptor after the call: %v, want closed", err)
	}
}

func TestOtherDescriptorsAreRefused(t *testing.T) {
	socket := serve(t, echo)
	plain, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	resp, err := Call(within(t, 10*time.Second), socket, Request{Command: "ADD"}, plain)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Error == nil || resp.Error.Code != CodeInvalidNetns {
		t.Errorf("a plain file as namespace: %+v", resp.Error)
	}
}

func TestTheCallerWaitsForAnAgentThatStartsLater(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	answer := make(chan error, 1)
	go func() {
		_, err := Call(within(t, 20*time.Second), socket, Request{Command: "ADD"}, nil)
		answer <- err
	}()
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid())})
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestACallThatAnAgentDiesOverIsAnsweredByTheNext(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	arrived := make(chan struct{})
	stop := serveAt(t, socket, Server{UID: uint32(os.Getuid()), Handle: func(ctx context.Context, _ *Request, _ *os.File) (json.RawMessage, *Error) {
		close(arrived)
		<-ctx.Done()
		return nil, &Error{Code: CodeInternal, Msg: "rolled back"}
	}})
	type outcome struct {
		resp *Response
		err  error
	}
	answer := make(chan outcome, 1)
	go func() {
		resp, err := Call(within(t, 20*time.Second), socket, Request{Command: "ADD"}, nil)
		answer <- outcome{resp, err}
	}()
	<-arrived
	stop()
	serveAt(t, socket, Server{Handle: echo, Agent: "second", UID: uint32(os.Getuid())})
	if got := <-answer; got.err != nil || got.resp.Error != nil || got.resp.Agent != "second" {
		t.Errorf("answer %+v, %v; want one of the second agent", got.resp, got.err)
	}
}

func TestNobodyAtTheSocketIsErrNoAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if _, err := Call(within(t, 30*time.Millisecond), socket, Request{Command: "ADD"}, nil); !errors.Is(err, ErrNoAgent) {
		t.Errorf("call without an agent: %v, want ErrNoAgent", err)
	}
	// An agent that hangs is no agent either.
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Call(within(t, 30*time.Millisecond), socket, Request{Command: "ADD"}, nil); !errors.Is(err, ErrNoAgent) {
		t.Errorf("call to a hanging agent: %v, want ErrNoAgent", err)
	}
}

func TestAPluginThatGoesAwayEndsItsCall(t *testing.T) {
	cause := make(chan error, 1)
	arrived := make(chan struct{})
	socket := serve(t, func(ctx context.Context, _ *Request, _ *os.File) (json.RawMessage, *Error) {
		close(arrived)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = Call(ctx, socket, Request{Command: "ADD"}, nil)
	}()
	<-arrived
	cancel()
	if err := <-cause; !errors.Is(err, ErrPluginGone) {
		t.Errorf("cause %v, want ErrPluginGone", err)
	}
	<-done
}

func TestAnotherUserIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	reports := make(chan error, 100)
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid()) + 1, Report: func(err error) {
		select {
		case reports <- err:
		default:
		}
	}})
	if _, err := Call(within(t, 100*time.Millisecond), socket, Request{Command: "ADD"}, nil); !errors.Is(err, ErrNoAgent) {
		t.Errorf("call by the wrong user: %v", err)
	}
	if err := <-reports; !strings.Contains(err.Error(), "not allowed to call") {
		t.Errorf("report: %v", err)
	}
}

// raw sends bytes as they are and returns the answer.
func raw(t testing.TB, socket string, message []byte) Response {
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
	var resp Response
	if err := json.Unmarshal(answer, &resp); err != nil {
		t.Fatal(err)
	}
	return resp
}

// The messages are recorded, not built: they must keep working when the types
// change.
func TestOldAndNewPluginsAreUnderstood(t *testing.T) {
	socket := serve(t, echo)
	for _, c := range []struct {
		name, message string
		code          uint
	}{
		{"the first release, without minVersion, wait and args", `{"version":1,"command":"DEL","containerID":"c1","ifName":"eth0","config":{"cniVersion":"0.4.0","name":"n"}}`, 0},
		{"a later one, with fields we do not know", `{"version":7,"minVersion":1,"plugin":"v9","command":"ADD","containerID":"c1","ifName":"eth0","config":{},"cgroup":"/kubepods","hints":{"zone":"a"}}`, 0},
		{"one that needs a later agent", `{"version":9,"minVersion":8,"command":"ADD","config":{}}`, CodeIncompatible},
		{"one from before the first protocol", `{"version":0,"command":"ADD","config":{}}`, CodeIncompatible},
		{"no JSON", `hello`, CodeDecode},
		{"no command", `{"version":1}`, CodeDecode},
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

// An old and a new agent, recorded, and this plugin.
func TestOldAndNewAgentsAreUnderstood(t *testing.T) {
	for _, c := range []struct{ name, answer, result string }{
		{"the first release", `{"version":1,"agent":"v0.1.0","result":{"ips":[]}}`, `{"ips":[]}`},
		{"a later one, with fields we do not know", `{"version":9,"agent":"v9","result":{"ips":[]},"trace":"abc","warnings":[]}`, `{"ips":[]}`},
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
			resp, err := Call(within(t, 10*time.Second), socket, Request{Command: "ADD"}, nil)
			if err != nil || string(resp.Result) != c.result {
				t.Errorf("answer %+v, %v", resp, err)
			}
		})
	}
}

func TestAQuickAnswerIsHeardOnce(t *testing.T) {
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
			conn.Close() // without having read a byte
		}
	}()
	for i := range 100 {
		req := Request{Command: "CHECK", Args: strings.Repeat("x", i*4096)}
		resp, err := Call(within(t, 10*time.Second), socket, req, own)
		if err != nil || string(resp.Result) != `{"n":1}` {
			t.Fatalf("answer %+v, %v", resp, err)
		}
	}
	if n := calls.Load(); n != 100 {
		t.Errorf("100 calls were made %d times", n)
	}
}

func TestAnEndlessRequestIsCutOff(t *testing.T) {
	socket := serve(t, echo)
	resp := raw(t, socket, bytes.Repeat([]byte("x"), MaxMessage+1))
	if resp.Error == nil || !strings.Contains(resp.Error.Details, "longer than") {
		t.Errorf("answer %+v", resp.Error)
	}
	if _, err := Call(within(t, 10*time.Second), socket, Request{Command: "ADD", Args: strings.Repeat("x", MaxMessage)}, nil); !errors.Is(err, ErrTooLong) {
		t.Errorf("sending too much: %v, want ErrTooLong", err)
	}
	big := Request{Command: "GC", Args: strings.Repeat("x", MaxMessage/2)}
	if resp, err := Call(within(t, 10*time.Second), socket, big, nil); err != nil || len(resp.Result) < MaxMessage/2 {
		t.Errorf("half a megabyte: %v", err)
	}
}

func TestSpooledDELsComeBackOnceEach(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	if got, err := ReadSpool(dir); err != nil || len(got) != 0 {
		t.Fatalf("a missing spool: %v, %v", got, err)
	}
	now := time.UnixMilli(1_700_000_000_000)
	for _, req := range []Request{
		{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{}`)},
		{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{"again":true}`)},
		{Command: "DEL", ContainerID: "c1", IfName: "eth1", Config: json.RawMessage(`{}`)},
		{Command: "DEL", ContainerID: strings.Repeat("../x", 200), IfName: "eth0", Config: json.RawMessage(`{}`)},
	} {
		if err := Spool(dir, req, now); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"torn" + spoolSuffix: `{"version":1,"comm`,
		"add" + spoolSuffix:  `{"version":1,"command":"ADD","containerID":"c","ifName":"e"}` + "\n",
		".tmp-123":           "left by a crash",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadSpool(dir)
	if err == nil || !strings.Contains(err.Error(), "torn.del") || !strings.Contains(err.Error(), "add.del") {
		t.Errorf("bad files reported as: %v", err)
	}
	if len(got) != 3 {
		t.Fatalf("%d DELs in the spool, want 3", len(got))
	}
	for _, s := range got {
		if s.Request.SpooledAt != now.UnixMilli() {
			t.Errorf("spooled at %d", s.Request.SpooledAt)
		}
		if s.Request.IfName == "eth0" && s.Request.ContainerID == "c1" && !strings.Contains(string(s.Request.Config), "again") {
			t.Error("the first of two equal DELs came back")
		}
		for range 2 {
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
	if got, err := ReadSpool(dir); err != nil || len(got) != 0 {
		t.Errorf("after removal: %v, %v", got, err)
	}
}

func FuzzDecodeRequestNeverPanicsAndRoundTrips(f *testing.F) {
	f.Add([]byte(`{"version":1,"minVersion":1,"command":"ADD","config":{"a":[1]},"waitMillis":5}`))
	f.Add([]byte(`{"version":1,"command":"GC","config":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := DecodeRequest(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(req)
		if err != nil {
			t.Fatalf("cannot encode what was decoded: %v", err)
		}
		second, err := DecodeRequest(again)
		if err != nil {
			t.Fatalf("cannot decode what was encoded: %v", err)
		}
		second.Config, req.Config = nil, nil // spacing may differ
		if diff := cmp.Diff(req, second); diff != "" {
			t.Fatalf("round trip:\n%s", diff)
		}
	})
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
		if _, err := Call(within(t, 10*time.Second), socket, Request{Command: "STATUS"}, nil); err != nil {
			t.Fatalf("after %q: %v", message, err)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	socket := serve(b, echo)
	for b.Loop() {
		if _, err := Call(b.Context(), socket, Request{Command: "ADD"}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWhatAKilledPluginLeftInTheSpoolIsCollected(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{".tmp-old": time.Hour, ".tmp-young": 0, "other": time.Hour} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("{"), 0o600), os.Chtimes(path, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if err := SweepSpool(dir, now.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != ".tmp-young" || left[1].Name() != "other" {
		t.Errorf("left %v, %v: want the young one, which may be being written, and what is not ours", left, err)
	}
}
