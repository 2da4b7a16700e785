package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func nothing() {}

func TestTheFirstCallerIsServedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		var stock int
		var served, waits []int
		var group sync.WaitGroup
		for i := range 4 {
			group.Go(func() {
				if err := q.Wait(t.Context(), func() (bool, error) {
					if stock == 0 {
						return false, nil
					}
					stock--
					served = append(served, i)
					return true, nil
				}, func() { waits = append(waits, i) }); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if !slices.Equal(waits, []int{0, 1, 2, 3}) {
			t.Errorf("%v wait, want each of them, also those that have not tried", waits)
		}
		stock = 3
		q.Wake() // one wake serves as many as there is stock for
		synctest.Wait()
		if !slices.Equal(served, []int{0, 1, 2}) {
			t.Errorf("served %v", served)
		}
		stock = 1
		q.Wake()
		group.Wait()
		if len(waits) != 4 {
			t.Errorf("%v, want that each waits once", waits)
		}
	})
}

func TestALaterCallerDoesNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		var served []string
		open := false
		try := func(who string) func() (bool, error) {
			return func() (bool, error) {
				if open {
					served = append(served, who)
				}
				return open, nil
			}
		}
		var group sync.WaitGroup
		group.Go(func() { _ = q.Wait(t.Context(), try("early"), nothing) })
		synctest.Wait()
		open = true // not woken yet
		group.Go(func() { _ = q.Wait(t.Context(), try("late"), nothing) })
		synctest.Wait()
		if len(served) != 0 {
			t.Fatalf("%v overtook", served)
		}
		q.Wake()
		group.Wait()
		if !slices.Equal(served, []string{"early", "late"}) {
			t.Errorf("served %v", served)
		}
	})
}

func TestACallerThatGivesUpPassesItsWakeOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		var group sync.WaitGroup
		never := func() (bool, error) { return false, nil }
		group.Go(func() {
			if err := q.Wait(ctx, never, nothing); !errors.Is(err, gone) {
				t.Errorf("gave up with %v", err)
			}
		})
		synctest.Wait()
		tries := 0
		group.Go(func() { _ = q.Wait(t.Context(), func() (bool, error) { tries++; return tries == 2, nil }, nothing) })
		synctest.Wait()
		cancel(gone)
		synctest.Wait()
		if tries != 1 {
			t.Errorf("the next one tried %d times, want once", tries)
		}
		q.Wake()
		group.Wait()
	})
}

// The second caller arrives during the first one's try, and waits only if that fails.
func TestACallerWaitsOnceATryWasNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		var group sync.WaitGroup
		var waits atomic.Int32
		result := make(chan bool)
		arrive := func(callers int) {
			for range callers {
				group.Go(func() {
					_ = q.Wait(t.Context(), func() (bool, error) { return <-result, nil }, func() { waits.Add(1) })
				})
				synctest.Wait()
			}
		}
		for _, c := range []struct {
			results []bool
			want    int32
		}{
			{[]bool{true, true}, 0},
			{[]bool{false, true, true}, 2},
			{[]bool{true, false, true}, 1},
			{[]bool{true, true}, 0}, // the queue was empty since the last failure
		} {
			waits.Store(0)
			arrive(2)
			for _, done := range c.results {
				result <- done
				synctest.Wait()
				if !done {
					q.Wake()
				}
			}
			group.Wait()
			if got := waits.Load(); got != c.want {
				t.Errorf("%d callers wait with the results %v, want %d", got, c.results, c.want)
			}
		}
	})
}

func TestACallerThatArrivesBehindOneThatWaitsHasToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		open, waits := false, 0
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() { _ = q.Wait(t.Context(), func() (bool, error) { return open, nil }, func() { waits++ }) })
			synctest.Wait()
		}
		q.Wake() // fails again
		synctest.Wait()
		if waits != 2 {
			t.Errorf("waits was called %d times for two callers, want once for each", waits)
		}
		open = true
		q.Wake()
		group.Wait()
	})
}
