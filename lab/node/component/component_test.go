package component

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func shell(t *testing.T, script string) Spec {
	t.Helper()
	return Spec{Name: "sh", Argv: []string{"/bin/sh", "-c", script}, Log: filepath.Join(t.TempDir(), "log", "sh.log"), Env: []string{"PATH=/usr/bin:/bin", Mark("test")}}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: did not happen within a minute", what)
		case <-tick.C:
		}
	}
}

func TestAProgramThatExitsIsRestartedAndItsLogKept(t *testing.T) {
	c, err := Start(shell(t, "echo ran; exit 3"), nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	eventually(t, "two runs", func() bool { n, _ := c.Restarts(); return n >= 2 })
	if _, exit := c.Restarts(); exit == nil || !strings.Contains(exit.Error(), "3") {
		t.Errorf("last exit is %v, want status 3", exit)
	}
	if got := Tail(c.Log(), 2); got != "ran\nran" {
		t.Errorf("log ends with %q, want both runs", got)
	}
}

func TestAProgramThatCannotBeExecutedIsAnError(t *testing.T) {
	spec := shell(t, "")
	spec.Argv = []string{"/no/such/program"}
	if _, err := Start(spec, nil, quiet()); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v does not name the program", err)
	}
	spec = shell(t, "true")
	spec.NetNS = "/no/such/namespace"
	if _, err := Start(spec, nil, quiet()); err == nil || !strings.Contains(err.Error(), "/no/such/namespace") {
		t.Errorf("error %v does not name the namespace", err)
	}
}

func TestStopSendsSIGTERMAndThenSIGKILL(t *testing.T) {
	handling := shell(t, "trap 'echo terminated; exit 0' TERM; echo up; while :; do sleep 0.01; done")
	handling.Grace = 5 * time.Second
	ignoring := shell(t, "trap '' TERM; echo up; while :; do sleep 0.01; done")
	ignoring.Grace = 50 * time.Millisecond
	for name, spec := range map[string]Spec{"handling SIGTERM": handling, "ignoring SIGTERM": ignoring} {
		c, err := Start(spec, nil, quiet())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is up", func() bool { return Tail(c.Log(), 1) == "up" })
		pid := c.PID()
		c.Stop()
		c.Stop()
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("%s: still runs after Stop", name)
		}
		if n, _ := c.Restarts(); n != 0 || c.PID() != 0 {
			t.Errorf("%s: restarted after Stop", name)
		}
	}
	if got := Tail(handling.Log, 1); got != "terminated" {
		t.Errorf("the program did not receive SIGTERM: %q", got)
	}
}

func TestAProgramWithOnceIsNotRestarted(t *testing.T) {
	spec := shell(t, "exit 1")
	spec.Once = true
	c, err := Start(spec, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("not done a minute after it exited")
	}
	if n, _ := c.Restarts(); n != 0 {
		t.Errorf("restarted %d times", n)
	}
}

func TestTailReturnsTheLastLinesOfALongLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("line\n", 10_000)+"last but one\nlast\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Tail(path, 2); got != "last but one\nlast" {
		t.Errorf("tail is %q", got)
	}
	if got := Tail(path+".missing", 2); got != "" {
		t.Errorf("tail of a missing log is %q", got)
	}
}
