package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trunkline/trunkline/api/introspection"
)

// restarting is an agent that ends its flow log after each of the answers, and keeps the last one open.
func restarting(t *testing.T, answers ...string) Agent {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.Listen("unix", introspection.DebugSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := int(calls.Add(1))
		fmt.Fprint(w, answers[min(n, len(answers))-1])
		if n >= len(answers) {
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		}
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return Agent{Socket: socket}
}

// A log that is followed says when an agent ends, goes on when it answers again, and prints no record
// twice.
func TestAFollowedLogIsConnectedAgain(t *testing.T) {
	first, second := denied(0, "a/b", "c/d", 1), denied(1, "a/b", "c/d", 2)
	a := restarting(t, encoded(t, first), "\n"+encoded(t, first, second))
	var read, notices []string
	done := errors.New("done")
	err := ReadFlows(t.Context(), []Agent{a}, FlowQuery{Follow: true, Notice: func(text string) { notices = append(notices, text) }}, func(f introspection.Flow) error {
		read = append(read, fmt.Sprint(f.Source.Port))
		if len(read) == 2 {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) || !slices.Equal(read, []string{"1", "2"}) {
		t.Errorf("%v; read %q", err, read)
	}
	if len(notices) != 2 || !strings.Contains(notices[0], "this node: the flow log is interrupted") || notices[1] != "this node: connected again" {
		t.Errorf("notices %q", notices)
	}
}

func TestAFollowedLogOfAnAgentThatNeverAnsweredIsAnError(t *testing.T) {
	absent := Agent{Socket: filepath.Join(t.TempDir(), "none")}
	if err := ReadFlows(t.Context(), []Agent{absent}, FlowQuery{Follow: true}, nil); err == nil || !strings.Contains(err.Error(), "does it run here?") {
		t.Errorf("%v", err)
	}
	// Of several, one that answers goes on, and the other is named.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	named, read := make(chan string, 1), make(chan struct{})
	go func() { <-named; <-read; cancel() }()
	good := restarting(t, encoded(t, denied(0, "a/b", "c/d", 1)))
	notice := func(text string) { named <- text }
	if err := ReadFlows(ctx, []Agent{absent, good}, FlowQuery{Follow: true, Notice: notice}, func(introspection.Flow) error { close(read); return nil }); err != nil {
		t.Errorf("%v", err)
	}
}

// What was read before an interruption is no answer.
func TestAnInterruptedReadSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := restarting(t, encoded(t, denied(0, "a/b", "c/d", 1)))
	err := ReadFlows(ctx, []Agent{a}, FlowQuery{}, func(introspection.Flow) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it is interrupted", err)
	}
}

func TestADumpOfAPodThatNoNodeHasIsAnError(t *testing.T) {
	on := NodePolicies{Node: "n1", Policies: introspection.Policies{Enforced: true, Endpoints: []introspection.PolicyEndpoint{{Pod: "shop/db-0"}}}}
	off := NodePolicies{Node: "n2", Policies: introspection.Policies{Problem: "the kernel lacks xt_bpf"}}
	for pod, c := range map[string]struct {
		nodes []NodePolicies
		want  string
	}{
		"shop/db-0": {[]NodePolicies{on}, ""},
		"":          {[]NodePolicies{on}, ""},
		"shop/db-9": {[]NodePolicies{on}, "pod shop/db-9: none of the 1 pods that the agents know has this name (asked: n1)"},
		"shop/db-8": {[]NodePolicies{on, off}, ""}, // it may be on the other, which says that it enforces nothing
	} {
		err := MissingPod(c.nodes, pod)
		if text := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && !strings.HasPrefix(text, c.want) {
			t.Errorf("%q: %s, want %q", pod, text, c.want)
		}
	}
}
