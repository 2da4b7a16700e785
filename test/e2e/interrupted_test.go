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
	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/lab/sweep"
)

// interrupted is a small lab that is disturbed on its way up and down, and what
// the machine was before.
type interrupted struct {
	lab
	before   sweep.Snapshot
	up, down time.Duration // undisturbed
	rng      *rand.Rand
}

// Whatever ends `up`, `down` or the daemon at whatever moment: down leaves
// nothing, and up goes on to a lab that is ready. Moments are chosen at random
// over the time an undisturbed one takes.
func TestALabThatIsInterruptedAtAnyMomentLeavesNothing(t *testing.T) {
	i := interrupted{lab: lab{name: "cut", bin: binaries(t)}, rng: random(t)}
	i.before = i.look(t)
	t.Cleanup(func() {
		if r := i.try(context.Background(), "down"); r.err != nil {
			t.Errorf("down: %v\n%s", r.err, r)
		}
	})
	i.up = i.takes(t, "up", "--nodes", "1")
	if len(i.left(t)) == 0 {
		t.Fatal("a lab is up, and the look at the machine sees nothing of it")
	}
	i.down = i.takes(t, "down")
	i.nothing(t, "an ordinary down")

	rounds := 1
	if full() {
		rounds = 10
	}
	for range rounds {
		i.controlC(t)
		i.controlC(t)
		i.killedOnTheWayUp(t)
		i.killedOnTheWayDown(t)
	}
}

// takes runs a command to its end and measures it.
func (i interrupted) takes(t testing.TB, args ...string) time.Duration {
	t.Helper()
	began := time.Now()
	i.run(t, 5*time.Minute, args...)
	return time.Since(began)
}

// controlC interrupts `up`, which takes back what it made before it ends.
func (i interrupted) controlC(t testing.TB) {
	up := i.begin(t, "up", "--nodes", "1")
	if !up.after(t, i.moment(i.up), func() { must(t, up.cmd.Process.Signal(unix.SIGINT)) }) {
		i.takes(t, "down") // it was faster than ever before
		return
	}
	up.wait(t)
	switch up.code() {
	case 130:
	case 0: // it was done already
		i.takes(t, "down")
	default:
		t.Errorf("up ended with %d after Ctrl-C, want 130\n%s", up.code(), up.said)
	}
	i.nothing(t, "Ctrl-C")
}

// killedOnTheWayUp kills first the command and its daemon, and has down clear what
// is left; then the daemon alone, and has up bring the lab up all the same.
func (i interrupted) killedOnTheWayUp(t testing.TB) {
	up := i.begin(t, "up", "--nodes", "1")
	seen := false
	if up.after(t, i.moment(i.up), func() {
		must(t, up.cmd.Process.Kill())
		seen = i.killDaemon(t)
	}) && seen && len(i.left(t)) == 0 {
		t.Error("the daemon was killed on its way up, and the look at the machine sees nothing of it")
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

// killedOnTheWayDown expects a lab that is up.
func (i interrupted) killedOnTheWayDown(t testing.TB) {
	down := i.begin(t, "down")
	down.after(t, i.moment(i.down), func() {
		must(t, down.cmd.Process.Kill())
		i.killDaemon(t)
	})
	down.wait(t)
	i.takes(t, "down")
	i.nothing(t, "down after a crash of down")
}

// moment is one of the time that something takes, but for the instant in which a
// program starts and listens to no signal yet.
func (i interrupted) moment(of time.Duration) time.Duration {
	return 100*time.Millisecond + time.Duration(i.rng.Int64N(int64(of)))
}

// running is a trunkline-lab command under way.
type running struct {
	cmd  *exec.Cmd
	said *bytes.Buffer
	done chan struct{}
}

func (i interrupted) begin(t testing.TB, args ...string) running {
	t.Helper()
	r := running{i.process(t.Context(), args...), &bytes.Buffer{}, make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r.said, r.said
	r.cmd.WaitDelay = 5 * time.Second
	must(t, r.cmd.Start())
	go func() { // ends with the command
		defer close(r.done)
		_ = r.cmd.Wait() // how it ended is in its ProcessState
	}()
	return r
}

// after does something to a command at a moment, unless it has ended before.
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
	t.Logf("%s is disturbed after %s", strings.Join(r.cmd.Args[1:], " "), d.Round(time.Millisecond))
	do()
	return true
}

func (r running) wait(t testing.TB) {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s does not end\n%s", strings.Join(r.cmd.Args[1:], " "), r.said)
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
		argv, _ := os.ReadFile(at) // gone meanwhile: not this one
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

// look leaves out what is large and proven after the shared lab's down.
func (i interrupted) look(t testing.TB) sweep.Snapshot {
	t.Helper()
	dir, err := cache.DefaultDir()
	must(t, err)
	s, err := sweep.TakeSnapshot(sweep.View{Cache: dir, Ignore: []string{"/root", "/usr/local", "/tmp"}})
	must(t, err)
	return s
}

// left is what the machine has now and had not before.
func (i interrupted) left(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, line := range i.before.Diff(i.look(t)) {
		if !ofOthers.MatchString(line) {
			out = append(out, line)
		}
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
