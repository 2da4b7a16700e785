package report

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
)

func TestAPortInUseIsNamedInTheLogAndWaitedFor(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	log := slog.New(slog.NewTextHandler(first(said), nil))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- listen(ctx, log, "tcp", other.Addr().String(), http.NotFoundHandler()) }()
	select {
	case line := <-said:
		if !strings.Contains(line, other.Addr().String()) || !strings.Contains(line, "address already in use") {
			t.Errorf("said %q, want the address and why", line)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is said about a port that is taken")
	}
	other.Close()
	deadline := time.After(time.Minute)
	for answered := false; !answered; {
		resp, err := http.Get("http://" + other.Addr().String())
		if answered = err == nil; answered {
			resp.Body.Close()
			continue
		}
		select {
		case <-deadline:
			t.Fatalf("the port is free and not listened at: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// first sends the first line that is written.
type first chan string

func (f first) Write(b []byte) (int, error) {
	select {
	case f <- string(bytes.TrimSpace(b)):
	default:
	}
	return len(b), nil
}

func TestTablesAreServedToRootOnly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "debug.sock")
	s := statetest.Open(t, t.TempDir())
	statetest.Observe(t, s)
	one := statetest.Ready(t, s, "one")
	r := &Reporter{Deps: Deps{Log: slog.New(slog.DiscardHandler), State: s}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- listen(ctx, r.Log, "unix", socket, r.debug()) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	get := func(path string) (int, string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; {
			resp, err := client.Get("http://agent" + path)
			if err != nil && time.Now().Before(end) {
				<-time.After(10 * time.Millisecond)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(body)
		}
	}
	if code, body := get(introspection.TablesPath + "/endpoints"); code != 200 || !strings.Contains(body, "default/one") {
		t.Errorf("%d: %s", code, body)
	}
	if code, body := get(introspection.TablesPath + "/addresses?o=json"); code != 200 || !strings.Contains(body, one.Addresses.IPv4.String()) || !json.Valid([]byte(body)) {
		t.Errorf("%d: %s", code, body)
	}
	if code, body := get(introspection.TablesPath + "/none"); code != 404 || !strings.Contains(body, "endpoints") {
		t.Errorf("an unknown table: %d: %s, want the names of those there are", code, body)
	}
	if code, body := get(introspection.TablesPath); code != 200 || !strings.Contains(body, "interfaces") {
		t.Errorf("%d: %s", code, body)
	}
	if code, _ := get("/debug/pprof/goroutine?debug=1"); code != 200 {
		t.Errorf("no profile: %d", code)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}
