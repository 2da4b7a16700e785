//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/daemon"
)

// lab is one lab of a test run, driven by the binaries a user has.
type lab struct {
	name string
	bin  string // directory of trunkline, trunkline-cni, trunkline-lab
	env  []string
}

// with returns the lab driven with additional environment variables.
func (l lab) with(env ...string) lab {
	l.env = slices.Concat(l.env, env)
	return l
}

// result is the output and the error of a command.
type result struct {
	stdout, stderr string
	err            error
}

func (r result) String() string {
	return strings.TrimSpace(r.stdout + "\n" + r.stderr)
}

// try runs a trunkline-lab command with a deadline of its own.
func (l lab) try(ctx context.Context, args ...string) result {
	return l.command(ctx, nil, args...)
}

// process returns a trunkline-lab command that is not started yet.
func (l lab) process(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "trunkline-lab"), args...)
	cmd.Dir = filepath.Dir(l.bin)
	cmd.Env = slices.Concat(os.Environ(), []string{"TRUNKLINE_LAB=" + l.name}, l.env)
	return cmd
}

func (l lab) command(ctx context.Context, stdin []byte, args ...string) result {
	cmd := l.process(ctx, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = 5 * time.Second
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	err := cmd.Run()
	return result{out.String(), errb.String(), err}
}

// run is try for a command that must succeed; it returns the output.
func (l lab) run(t testing.TB, limit time.Duration, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := l.try(ctx, args...)
	if r.err != nil {
		t.Fatalf("trunkline-lab %s: %v\n%s", strings.Join(args, " "), r.err, r)
	}
	return r.stdout
}

func (l lab) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return l.run(t, 3*time.Minute, append([]string{"kubectl"}, args...)...)
}

// apply runs `kubectl apply` with a manifest.
func (l lab) apply(t testing.TB, manifest string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r := l.command(ctx, []byte(manifest), "kubectl", "apply", "-f", "-"); r.err != nil {
		t.Fatalf("kubectl apply: %v\n%s", r.err, r)
	}
}

// get decodes `kubectl get -o json` into v.
func (l lab) get(t testing.TB, v any, args ...string) {
	t.Helper()
	out := l.kubectl(t, append(append([]string{"get"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("kubectl get %s: %v", strings.Join(args, " "), err)
	}
}

func (l lab) status(t testing.TB) daemon.Status {
	t.Helper()
	s, err := daemon.NewClient(daemon.StateDir(l.name)).Status(t.Context())
	if err != nil {
		t.Fatalf("status of lab %s: %v", l.name, err)
	}
	return s
}

var seedFlag = flag.Uint64("seed", 0, "seed of random choices; 0 takes the time")

// random returns a random source and logs its seed, so that a run can be repeated.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("random choices by -seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// full reports whether the long suites run, with larger samples.
func full() bool { return os.Getenv("TRUNKLINE_SUITES") == "full" }

// errNotYet is the error of a condition that does not hold yet.
var errNotYet = errors.New("not yet")

func notYet(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errNotYet, fmt.Sprintf(format, args...))
}

// attemptTimeout is how long an attempt that started in time may run beyond the end
// of its poll.
const attemptTimeout = time.Minute

// eventually polls a condition until it holds, and fails with the last error. A fatal
// failure in an attempt ends only that attempt, because a transient error of the API
// server decides nothing.
func eventually(t testing.TB, limit time.Duration, what string, condition func(testing.TB) error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(t.Context(), deadline.Add(attemptTimeout))
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := runAttempt(ctx, t, condition)
		if err == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // the error of a cancelled attempt is not informative
			last = err
		}
		if ctx.Err() != nil || !time.Now().Before(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, last)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// attempt is the testing.TB of one attempt of a poll.
type attempt struct {
	testing.TB
	ctx context.Context
	err error
}

// Context ends with the poll.
func (a *attempt) Context() context.Context { return a.ctx }

func (a *attempt) Fatal(args ...any) { a.Fatalf("%s", fmt.Sprint(args...)) }

func (a *attempt) Fatalf(format string, args ...any) {
	a.err = fmt.Errorf(format, args...)
	runtime.Goexit()
}

func (a *attempt) FailNow() { a.Fatalf("failed") }

// runAttempt evaluates the condition once, on a goroutine that a fatal failure ends.
func runAttempt(ctx context.Context, t testing.TB, condition func(testing.TB) error) error {
	a := &attempt{TB: t, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.err = condition(a)
	}()
	<-done
	return a.err
}
