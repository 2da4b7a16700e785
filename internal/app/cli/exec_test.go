package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// errorRecorder is a klog sink that records errors.
type errorRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (*errorRecorder) Init(klog.RuntimeInfo)            {}
func (*errorRecorder) Enabled(int) bool                 { return false }
func (*errorRecorder) Info(int, string, ...any)         {}
func (h *errorRecorder) WithValues(...any) klog.LogSink { return h }
func (h *errorRecorder) WithName(string) klog.LogSink   { return h }

func (h *errorRecorder) Error(err error, msg string, _ ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := msg
	if err != nil {
		text += ": " + err.Error()
	}
	h.lines = append(h.lines, text)
}

func (h *errorRecorder) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "\n")
}

// connKey is the context key of a request's connection.
type connKey struct{}

// execServer returns a client of an API server that runs serve for every command. The
// streams are 0 stdin, 1 stdout, 2 stderr, 3 the exit status.
func execServer(t *testing.T, serve func(r *http.Request, write func(stream int, text string))) *kube.Client {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {
			Binary: true, Channels: []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel},
		}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			t.Errorf("open the streams: %v", err)
			return
		}
		defer conn.Close()
		serve(r, func(stream int, text string) { _, _ = streams[stream].Write([]byte(text)) })
	}))
	srv.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	srv.Start()
	t.Cleanup(srv.Close)
	client, err := kube.FromREST(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// heartbeats counts client-go's goroutines that ping the server of a command.
func heartbeats() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "remotecommand.(*heartbeat).start(")
}

// waitNoHeartbeat waits until the last of these goroutines has found its connection
// closed and ended.
func waitNoHeartbeat(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for heartbeats() > 0 {
		select {
		case <-ctx.Done():
			t.Fatal("a heartbeat goroutine did not end within a minute")
		case <-tick.C:
		}
	}
}

func TestAnInterruptedCommandLogsNothingOfClientGo(t *testing.T) {
	logged, running := &errorRecorder{}, make(chan struct{})
	client := execServer(t, func(r *http.Request, write func(int, string)) {
		write(1, "started\n")
		close(running)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.New(logged)))
	var pinged bool
	go func() {
		<-running
		for heartbeats() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		pinged = true
		cancel()
	}()
	_, err := execute(ctx, client, podCommand{namespace: "ns", pod: "p", argv: []string{"true"}})
	if !errors.Is(err, context.Canceled) || !pinged {
		t.Fatalf("%v, pinged %v; want the interruption", err, pinged)
	}
	waitNoHeartbeat(t)
	if text := logged.text(); text != "" {
		t.Errorf("client-go logged %q", text)
	}
}

func TestABrokenConnectionToACommandIsAnError(t *testing.T) {
	client := execServer(t, func(r *http.Request, write func(int, string)) {
		write(1, "half of its out")
		_ = r.Context().Value(connKey{}).(net.Conn).Close() // without an exit status
	})
	logged := &errorRecorder{}
	out, err := execute(klog.NewContext(t.Context(), klog.New(logged)), client, podCommand{namespace: "ns", pod: "p", argv: []string{"true"}})
	if err == nil || errors.Is(err, connectivity.ErrExit) || !strings.Contains(err.Error(), "run true in pod p: ") || !strings.Contains(out.Stdout, "half") {
		t.Errorf("%q, %v", out.Stdout, err)
	}
	if text := logged.text(); text != "" {
		t.Errorf("client-go logged %q beside the error %v", text, err)
	}
}

func TestClientGosErrorsAboutACommandThatExitedAreLogged(t *testing.T) {
	client := execServer(t, func(_ *http.Request, write func(int, string)) {
		write(1, "all of its output")
		write(4, "data on an unknown stream")
		write(3, `{"status":"Success"}`)
	})
	logged := &errorRecorder{}
	out, err := execute(klog.NewContext(t.Context(), klog.New(logged)), client, podCommand{namespace: "ns", pod: "p", argv: []string{"true"}})
	if err != nil || out.Stdout != "all of its output" {
		t.Errorf("%q, %v", out.Stdout, err)
	}
	if text := logged.text(); text != "Unknown stream, discarding message" {
		t.Errorf("logged %q about a server that violates the protocol", text)
	}
}
