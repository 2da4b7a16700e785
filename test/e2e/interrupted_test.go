//go:build lab

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/lab/sweep"
)

// interrupted is a small lab that is interrupted on `up` and `down`, with a snapshot
// of the machine from before.
type interrupted struct {
	lab
	before   sweep.Snapshot
	up, down time.Duration // without an interruption
	rng      *rand.Rand
}

// If `up`, `down` or the daemon is interrupted or killed at any moment, a later
// `down` leaves nothing behind, and a later `up` completes the lab. Moments are
// random within the duration of an uninterrupted command.
func TestInterruptedLabLeavesNothingBehind(t *testing.T) {
	drawn(t)
	i := interrupted{lab: lab{name: uniqueName("cut"), bin: binaries(t)}, rng: random(t)}
	i.before = i.snapshot(t)
	t.Cleanup(func() {
		if r := i.try(context.Background(), "down"); r.err != nil {
			t.Errorf("down: %v\n%s", r.err, r)
		}
	})
	i.up = i.takes(t, "up", "--nodes", "1")
	if len(i.left(t)) == 0 {
		t.Fatal("a lab is up, and the snapshots of the machine do not differ")
	}
	i.down = i.takes(t, "down")
	i.nothing(t, "an uninterrupted down")

	rounds := 1
	if full() {
		rounds = 10
	}
	for range rounds {
		i.controlC(t)
		i.controlC(t)
		i.killedDuringUp(t)
		i.killedDuringDown(t)
	}
}

// takes runs a command to its end and returns its duration.
func (i interrupted) takes(t testing.TB, args ...string) time.Duration {
	t.Helper()
	began := time.Now()
	i.run(t, 5*time.Minute, args...)
	return time.Since(began)
}

// controlC interrupts `up`, which removes what it made before it ends.
func (i interrupted) controlC(t testing.TB) {
	up := i.begin(t, "up", "--nodes", "1")
	if !up.after(t, i.moment(i.up), func() { must(t, up.cmd.Process.Signal(unix.SIGINT)) }) {
		i.takes(t, "down") // up ended before the interruption
		return
	}
	up.wait(t)
	switch up.code() {
	case 130:
	case 0: // up was complete already
		i.takes(t, "down")
	default:
		t.Errorf("up ended with %d after Ctrl-C, want 130\n%s", up.code(), up.output)
	}
	i.nothing(t, "Ctrl-C")
}

// killedDuringUp kills first the command and its daemon, and runs `down`; then the
// daemon alone, and runs `up` again.
func (i interrupted) killedDuringUp(t testing.TB) {
	up := i.begin(t, "up", "--nodes", "1")
	seen := false
	if up.after(t, i.moment(i.up), func() {
		must(t, up.cmd.Process.Kill())
		seen = i.killDaemon(t)
	}) && seen && len(i.left(t)) == 0 {
		t.Error("the daemon was killed during up, and the snapshots of the machine do not differ")
	}
	up.wait(t)
	i.takes(t, "down")
	i.nothing(t, "down after a crash of up")

	up = i.begin(t, "up", "--nodes", "1", "--keep")
	up.after(t, i.moment(i.up), func() { i.killDaemon(t) })
	up.wait(t)
	i.takes(t, "up", "--nodes", "1")
	i.kubectl(t, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
}

// killedDuringDown requires a lab that is up.
func (i interrupted) killedDuringDown(t testing.TB) {
	down := i.begin(t, "down")
	down.after(t, i.moment(i.down), func() {
		must(t, down.cmd.Process.Kill())
		i.killDaemon(t)
	})
	down.wait(t)
	i.takes(t, "down")
	i.nothing(t, "down after a crash of down")
}

// moment returns a random moment within a duration, after the first 100 ms in which a
// program does not handle signals yet.
func (i interrupted) moment(of time.Duration) time.Duration {
	return 100*time.Millisecond + time.Duration(i.rng.Int64N(int64(of)))
}

// running is a trunkline-lab command in progress.
type running struct {
	cmd    *exec.Cmd
	output *bytes.Buffer
	done   chan struct{}
}

func (i interrupted) begin(t testing.TB, args ...string) running {
	t.Helper()
	r := running{i.process(t.Context(), args...), &bytes.Buffer{}, make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r.output, r.output
	r.cmd.WaitDelay = 5 * time.Second
	must(t, r.cmd.Start())
	go func() { // ends with the command
		defer close(r.done)
		_ = r.cmd.Wait() // its result is in ProcessState
	}()
	return r
}

// after calls do at a moment, unless the command has ended before.
func (r running) after(t testing.TB, d time.Duration, do func()) bool {
	t.Helper()
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-r.done:
		t.Logf("%s ended before %s", strings.Join(r.cmd.Args[1:], " "), d.Round(time.Millisecond))
		return false
	case <-wait.C:
	}
	t.Logf("%s is interrupted after %s", strings.Join(r.cmd.Args[1:], " "), d.Round(time.Millisecond))
	do()
	return true
}

func (r running) wait(t testing.TB) {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s did not end\n%s", strings.Join(r.cmd.Args[1:], " "), r.output)
	}
}

func (r running) code() int { return r.cmd.ProcessState.ExitCode() }

// killDaemon kills the lab's daemon, and reports whether there was one.
func (i interrupted) killDaemon(t testing.TB) bool {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	killed := false
	for _, at := range found {
		argv, _ := os.ReadFile(at) // empty if the process has ended
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(at), "environ"))
		if !bytes.HasSuffix(argv, []byte("\x00--name\x00"+i.name+"\x00serve\x00")) || !bytes.Contains(environ, []byte(component.Mark(i.name)+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(at)))
		must(t, err)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Errorf("kill daemon %d: %v", pid, err)
		}
		killed = true
	}
	return killed
}

// snapshot omits large folders that the shared lab's `down` checks.
func (i interrupted) snapshot(t testing.TB) sweep.Snapshot {
	t.Helper()
	dir, err := cache.DefaultDir()
	must(t, err)
	s, err := sweep.TakeSnapshot(sweep.View{Cache: dir, StateRoot: daemon.StateRoot, Ignore: []string{"/root", "/usr/local", "/tmp"}})
	must(t, err)
	return s
}

// left returns what the lab has added to the machine since the first snapshot.
func (i interrupted) left(t testing.TB) []string {
	t.Helper()
	var out []string
	left, _ := i.before.Leftovers(i.snapshot(t), i.name) // other changes are not the lab's
	for _, c := range left {
		out = append(out, c.String())
	}
	return out
}

func (i interrupted) nothing(t testing.TB, after string) {
	t.Helper()
	if left := i.left(t); len(left) > 0 {
		t.Errorf("left after %s:\n%s", after, strings.Join(left[:min(len(left), 40)], "\n"))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}
