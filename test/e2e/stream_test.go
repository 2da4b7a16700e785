//go:build lab

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/workload"
)

// stream is a numbered stream between two pods that runs during disruptions of the
// nodes. It is dialled once and never again.
type stream struct {
	name   string
	cancel context.CancelFunc
	ended  chan struct{} // closed when the client has ended
	last   *workload.Result
}

// startStream starts a stream over "tcp" or "udp" from a pod to an address.
func startStream(t testing.TB, l lab, proto, from, target string) stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := l.process(ctx, "kubectl", "exec", from, "--", "/workload", "dial", "stream", target,
		"--proto", proto, "--duration", "10m", "--interval", "10ms", "--report", "500ms")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := stream{name: proto + " from " + from + " to " + target, cancel: cancel, ended: make(chan struct{}), last: &workload.Result{}}
	flows := make(chan struct{})
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			_ = json.Unmarshal(lines.Bytes(), s.last) // a line that is none changes nothing
			if flows != nil && s.last.Stream != nil && s.last.Stream.Received > 0 {
				close(flows)
				flows = nil
			}
		}
		_ = cmd.Wait() // killed, or ended by itself: its last line says which
	}()
	t.Cleanup(func() { cancel(); <-s.ended })
	select {
	case <-flows:
	case <-s.ended:
		t.Fatalf("stream %s ended at once: %+v", s.name, *s.last)
	case <-time.After(30 * time.Second):
		t.Fatalf("stream %s has received nothing", s.name)
	}
	return s
}

// stop ends the stream and returns its last report, and an error if it was
// interrupted: it had ended by itself, or numbers were lost.
func (s stream) stop() (workload.Stream, error) {
	var errs []error
	select {
	case <-s.ended:
		errs = append(errs, fmt.Errorf("stream %s ended: %s", s.name, s.last.Error))
	default:
	}
	s.cancel()
	<-s.ended
	got := s.last.Stream
	switch {
	case got == nil || got.Received == 0:
		return workload.Stream{}, errors.Join(append(errs, fmt.Errorf("stream %s received nothing", s.name))...)
	case got.Interrupted:
		errs = append(errs, fmt.Errorf("stream %s was interrupted at number %d", s.name, got.Received))
	case got.Lost > 0:
		errs = append(errs, fmt.Errorf("stream %s lost %d of %d numbers, first %v", s.name, got.Lost, got.Sent, got.FirstLost))
	}
	return *got, errors.Join(errs...)
}

// wholeStreams stops streams and fails for each that was interrupted.
func wholeStreams(t testing.TB, streams ...stream) {
	t.Helper()
	for _, s := range streams {
		got, err := s.stop()
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("stream %s: %d of %d numbers back, longest gap %s", s.name, got.Received, got.Sent,
			(time.Duration(got.LongestGapMicros) * time.Microsecond).Round(time.Millisecond))
	}
}
