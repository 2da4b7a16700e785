package serial

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

func TestCallsOnOneKeyRunInTheOrderTheyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys Keys[string]
		var order []int
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				if err := keys.Do(t.Context(), "a", func(context.Context) error {
					order = append(order, i)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		group.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
			t.Errorf("order %v", order)
		}
		if len(keys.queues) != 0 {
			t.Errorf("%d queues are left over", len(keys.queues))
		}
	})
}

func TestADELEndsTheADDBeforeItButNotAnotherDEL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys Keys[string]
		var group sync.WaitGroup
		release := make(chan struct{})
		var first, second error
		group.Go(func() { // runs, until preempted
			first = keys.Do(t.Context(), "a", func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		synctest.Wait()
		group.Go(func() { // waits, until preempted
			second = keys.Do(t.Context(), "a", func(context.Context) error {
				t.Error("ran although preempted")
				return nil
			})
		})
		synctest.Wait()
		var dels atomic.Int32
		for range 2 {
			group.Go(func() {
				if err := keys.Preempt(t.Context(), "a", func(ctx context.Context) error {
					<-release
					dels.Add(1)
					return ctx.Err()
				}); err != nil {
					t.Errorf("a DEL was preempted: %v", err)
				}
			})
		}
		synctest.Wait()
		if !errors.Is(first, ErrPreempted) || !errors.Is(second, ErrPreempted) {
			t.Errorf("ended by %v and %v, want ErrPreempted", first, second)
		}
		close(release)
		group.Wait()
		if dels.Load() != 2 {
			t.Errorf("%d DELs ran", dels.Load())
		}
	})
}

func TestAWaitingCallThatIsGivenUpDoesNotHoldUpTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys Keys[string]
		release := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			_ = keys.Do(t.Context(), "a", func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		group.Go(func() {
			if err := keys.Do(ctx, "a", func(context.Context) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("given up with %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		if n := keys.Busy("a"); n != 1 {
			t.Errorf("%d calls busy, want 1", n)
		}
		if err := keys.Do(t.Context(), "b", func(context.Context) error { return nil }); err != nil {
			t.Errorf("another key had to wait: %v", err)
		}
		close(release)
		group.Wait()
	})
}

func TestNeverTwoAtOnceWhateverIsPreempted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		firm := rapid.SliceOfN(rapid.Bool(), 1, 20).Draw(rt, "firm")
		var keys Keys[int]
		var running, ran atomic.Int32
		var group sync.WaitGroup
		for _, f := range firm {
			group.Go(func() {
				do := keys.Do
				if f {
					do = keys.Preempt
				}
				_ = do(context.Background(), 1, func(context.Context) error {
					if running.Add(1) > 1 {
						rt.Error("two at once")
					}
					ran.Add(1)
					running.Add(-1)
					return nil
				})
			})
		}
		group.Wait()
		want := 0
		for _, f := range firm {
			if f {
				want++
			}
		}
		if int(ran.Load()) < want {
			rt.Errorf("%d ran, of which %d could not be preempted", ran.Load(), want)
		}
	})
}
