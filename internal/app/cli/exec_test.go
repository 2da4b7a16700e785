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

// heardErrors is a klog sink that notes errors.
type heardErrors struct {
	mu    sync.Mutex
	lines []string
}

func (*heardErrors) Init(klog.RuntimeInfo)            {}
func (*heardErrors) Enabled(int) bool                 { return false }
func (*heardErrors) Info(int, string, ...any)         {}
func (h *heardErrors) WithValues(...any) klog.LogSink { return h }
func (h *heardErrors) WithName(string) klog.LogSink   { return h }

func (h *heardErrors) Error(err error, msg string, _ ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := msg
	if err != nil {
		text += ": " + err.Error()
	}
	h.lines = append(h.lines, text)
}

func (h *heardErrors) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "\n")
}

// wire is the key of a request's connection.
type wire struct{}

// execServer is an API server on which every command is served by what is given: the
// streams are stdin, stdout, stderr, the outcome.
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
	srv.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, wire{}, c) }
	srv.Start()
	t.Cleanup(srv.Close)
	client, err := kube.FromREST(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// beats counts client-go's goroutines that ping the other end of a command.
func beats() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "remotecommand.(*heartbeat).start(")
}

// untilNoBeat waits for the last of them to have pinged a connection that is closed.
func untilNoBeat(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for beats() > 0 {
		select {
		case <-ctx.Done():
			t.Fatal("a ping goes on for ever")
		case <-tick.C:
		}
	}
}

func TestACommandThatWasInterruptedLeavesNoWordsOfClientGo(t *testing.T) {
	said, running := &heardErrors{}, make(chan struct{})
	client := execServer(t, func(r *http.Request, write func(int, string)) {
		write(1, "begun\n")
		close(running)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.New(said)))
	var pinged bool
	go func() {
		<-running
		for beats() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		pinged = true
		cancel()
	}()
	_, err := execute(ctx, client, podCommand{namespace: "ns", pod: "p", argv: []string{"true"}})
	if !errors.Is(err, context.Canceled) || !pinged {
		t.Fatalf("%v, pinged %v; want the interruption", err, pinged)
	}
	untilNoBeat(t)
	if text := said.text(); text != "" {
		t.Errorf("client-go said %q", text)
	}
}

func TestACommandWhoseConnectionBreaksIsAnError(t *testing.T) {
	client := execServer(t, func(r *http.Request, write func(int, string)) {
		write(1, "half of its out")
		_ = r.Context().Value(wire{}).(net.Conn).Close() // without a word of how it ended
	})
	said := &heardErrors{}
	out, err := execute(klog.NewContext(t.Context(), klog.New(said)), client, podCommand{namespace: "ns", pod: "p", argv: []string{"true"}})
	if err == nil || errors.Is(err, connectivity.ErrExit) || !strings.Contains(err.Error(), "run true in pod p: ") || !strings.Contains(out.Stdout, "half") {
		t.Errorf("%q, %v", out.Stdout, err)
	}
	if text := said.text(); text != "" {
		t.Errorf("client-go said %q beside the error %v", text, err)
	}
}

func TestWhatIsSaidOfACommandThatCameToItsEndIsPassedOn(t *testing.T) {
	client := execServer(t, func(_ *http.Request, write func(int, string)) {
		write(1, "all of its output")
		write(4, "nobody made this stream")
		write(3, `{"status":"Success"}`)
	})
	said := &heardErrors{}
	out, err := execute(klog.NewContext(t.Context(), klog.New(said)), client, podCommand{namespace: "ns", pod: "p", argv: []string{"true"}})
	if err != nil || out.Stdout != "all of its output" {
		t.Errorf("%q, %v", out.Stdout, err)
	}
	if text := said.text(); text != "Unknown stream, discarding message" {
		t.Errorf("of a server that breaks the protocol is said %q", text)
	}
}
