//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
)

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
