package agent

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAPortThatSomebodyElseHasIsNamedInTheLogAndWaitedFor(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	a := &Agent{log: slog.New(slog.NewTextHandler(first(said), nil))}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.listen(ctx, other.Addr().String(), http.NotFoundHandler()) }()
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
