package cniserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

const add = `{"version":1,"command":"ADD","containerID":"c1"}` + "\n"

func TestAServerFinishesItsCallsWhenItsListenerFails(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	begun, failed := make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	s := Server{UID: uint32(os.Getuid()), Handle: answering(func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error) {
		close(begun)
		<-failed
		for range 10_000 { // in which a server that does not wait would return
			runtime.Gosched()
		}
		ended.Store(true)
		return json.RawMessage(`{"ips":[]}`), nil
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), l) }()
	conn := dialed(t, l.Addr().String())
	if _, err := conn.Write([]byte(add)); err != nil {
		t.Fatal(err)
	}
	next(t, begun, "call")
	l.Close()
	close(failed)
	if err := next(t, done, "end of the server"); err == nil || !ended.Load() {
		t.Errorf("served until %v, with the call ended: %v", err, ended.Load())
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(answer, `"result":{"ips":[]}`) {
		t.Errorf("answer %q, %v", answer, err)
	}
}

// The work is done: the next agent would do it again.
func TestACallThatSucceedsWhileTheAgentStopsIsAnswered(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	begun := make(chan struct{})
	stop := serveAt(t, socket, Server{UID: uint32(os.Getuid()), Handle: answering(func(ctx context.Context, _ *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		close(begun)
		<-ctx.Done()
		return json.RawMessage(`{"ips":[]}`), nil
	})})
	conn := dialed(t, socket)
	if _, err := conn.Write([]byte(add)); err != nil {
		t.Fatal(err)
	}
	next(t, begun, "call")
	stop()
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(answer, `"result":{"ips":[]}`) {
		t.Errorf("answer %q, %v", answer, err)
	}
}

func TestAnAnswerThatCannotBeSentIsReported(t *testing.T) {
	begun := make(chan struct{}, 1)
	socket, reports := reported(t, Server{Handle: answering(func(ctx context.Context, req *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		if req.ContainerID == "long" {
			return json.RawMessage(`"` + strings.Repeat("x", cnirpc.MaxMessage) + `"`), nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		return nil, nil
	})})
	conn := dialed(t, socket)
	if _, err := conn.Write([]byte(add)); err != nil {
		t.Fatal(err)
	}
	next(t, begun, "call")
	conn.Close()
	if err := next(t, reports, "report of the plugin that is gone"); !strings.Contains(err.Error(), "answer plugin") {
		t.Errorf("the plugin is gone: reported as %v", err)
	}
	conn = dialed(t, socket)
	if _, err := conn.Write([]byte(strings.Replace(add, "c1", "long", 1))); err != nil {
		t.Fatal(err)
	}
	if err := next(t, reports, "report of the long answer"); !strings.Contains(err.Error(), "encode answer") {
		t.Errorf("an answer that is too long: reported as %v", err)
	}
	if answer, err := io.ReadAll(conn); err != nil || len(answer) != 0 {
		t.Errorf("an answer that is too long: %d bytes, %v", len(answer), err)
	}
}

func TestAnADDThatIsNotBegunIsReported(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	conn := dialed(t, l.Addr().String())
	_, err = conn.Write([]byte(add))
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 10)
	s := Server{UID: uint32(os.Getuid()), Report: func(err error) { reports <- err }, Handle: answering(func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error) {
		t.Error("the ADD was begun")
		return nil, nil
	})}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	if err := next(t, reports, "report of the ADD"); !errors.Is(err, ErrPluginGone) || !strings.Contains(err.Error(), "container c1") {
		t.Errorf("reported as %v", err)
	}
	stop()
	if err := next(t, done, "end of the server"); err != nil {
		t.Error(err)
	}
}

// A plugin sends one line; what follows is no reason to take it for one that is gone.
func TestBytesAfterTheRequestDoNotEndTheCall(t *testing.T) {
	socket, _ := reported(t, Server{Handle: answering(func(ctx context.Context, _ *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		select {
		case <-ctx.Done():
			return nil, &cnirpc.Error{Code: cnirpc.CodeInternal, Msg: context.Cause(ctx).Error()}
		case <-time.After(50 * time.Millisecond):
			return nil, nil
		}
	})})
	if resp := raw(t, socket, append([]byte(add), bytes.Repeat([]byte("x"), 50_000)...)); resp.Error != nil {
		t.Errorf("the call ended: %v", resp.Error)
	}
}

func TestTheDescriptorOfARefusedRequestIsClosed(t *testing.T) {
	socket, reports := reported(t, Server{Handle: echo})
	for message, want := range map[string]string{add: "not a network namespace", "hello\n": "decode request", `{"version":1}` + "\n": "command is empty"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := dialed(t, socket).WriteMsgUnix([]byte(message), syscall.UnixRights(int(w.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := next(t, reports, "report of the refusal"); !strings.Contains(err.Error(), want) {
			t.Errorf("%q: reported as %v, want %q", message, err, want)
		}
		if err := r.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%q: its descriptor is still open: %v", message, err)
		}
		r.Close()
	}
}

// The runtime may delete the namespace once it has the answer, which here is longer than the
// socket's buffer.
func TestTheDescriptorIsClosedBeforeTheAnswer(t *testing.T) {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	kept := make(chan *os.File, 1)
	socket, _ := reported(t, Server{ReadTimeout: time.Minute, Handle: answering(func(_ context.Context, _ *cnirpc.Request, netns *os.File) (json.RawMessage, *cnirpc.Error) {
		kept <- netns
		return json.RawMessage(`"` + strings.Repeat("x", cnirpc.MaxMessage-1000) + `"`), nil
	})})
	conn := dialed(t, socket)
	if _, _, err := conn.WriteMsgUnix([]byte(add), syscall.UnixRights(int(own.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	netns := next(t, kept, "call")
	if _, err := bufio.NewReader(conn).ReadByte(); err != nil { // the answer has begun
		t.Fatal(err)
	}
	if _, err := netns.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the descriptor while the answer is sent: %v, want ErrClosed", err)
	}
}

func TestOnlyDescriptorsOfNetworkNamespacesAreTaken(t *testing.T) {
	for path, want := range map[string]bool{"/proc/self/ns/net": true, "/proc/self/ns/mnt": false, os.DevNull: false} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkNetns(f); (err == nil) != want {
			t.Errorf("%s: %v, want it taken: %v", path, err, want)
		}
		f.Close()
	}
}

func TestOtherControlMessagesHaveNoDescriptors(t *testing.T) {
	credentials := syscall.UnixCredentials(&syscall.Ucred{Pid: 1})
	if files, err := descriptors(credentials); err != nil || len(files) != 0 {
		t.Errorf("credentials: %v, %v", files, err)
	}
	clear(credentials[:8]) // its length
	if files, err := descriptors(credentials); err == nil || !strings.Contains(err.Error(), "parse control message") {
		t.Errorf("a message of no length: %v, %v", files, err)
	}
}

// A plugin has its answer while its handler still works, and the server waits for the handler.
func TestAHandlerWorksOnAfterItsAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	ended := make(chan error, 1)
	stop := serveAt(t, socket, Server{UID: uint32(os.Getuid()), Handle: func(_ context.Context, _ *cnirpc.Request, _ *os.File, answer Answer) {
		answer(json.RawMessage(`{"ok":true}`), nil)
		for late := in(10 * time.Second); time.Now().Before(late); runtime.Gosched() {
			if _, err := os.Stat(socket); err != nil { // the server has begun to stop
				break
			}
		}
		ended <- nil
	}})
	resp, err := cnirpc.Call(in(10*time.Second), socket, cnirpc.Request{Command: "ADD"}, nil)
	if err != nil || string(resp.Result) != `{"ok":true}` {
		t.Fatalf("%+v, %v", resp, err)
	}
	stop()
	select {
	case <-ended:
	default:
		t.Error("the server stopped before its handler had ended")
	}
}

func TestAHandlerWithoutAnAnswerIsReported(t *testing.T) {
	socket, reports := reported(t, Server{Handle: func(context.Context, *cnirpc.Request, *os.File, Answer) {}})
	if _, err := cnirpc.Call(in(50*time.Millisecond), socket, cnirpc.Request{Command: "ADD"}, nil); !errors.Is(err, cnirpc.ErrNoAgent) {
		t.Errorf("%v, want ErrNoAgent", err)
	}
	if err := <-reports; !strings.Contains(err.Error(), "no answer to ADD") {
		t.Errorf("reported %v", err)
	}
}
