package queue

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheFirstCallerIsServedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		var stock int
		var served []int
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
				}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if q.Len() != 4 || time.Since(q.Oldest()) != 4*time.Second {
			t.Errorf("%d wait, the first for %s", q.Len(), time.Since(q.Oldest()))
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
		if q.Len() != 0 || !q.Oldest().IsZero() {
			t.Error("a caller is left in the queue")
		}
	})
}

// Otherwise the pool would assign an address for an ADD that has one.
func TestACallerThatWasServedDoesNotCountAsWaiting(t *testing.T) {
	var q Queue
	counted, oldest := make(chan int, 1), make(chan time.Time, 1)
	if err := q.Wait(t.Context(), func() (bool, error) {
		taken := make(chan struct{})
		go func() {
			close(taken)
			counted <- q.Len()
			oldest <- q.Oldest()
		}()
		<-taken
		for range 1000 {
			runtime.Gosched() // the caller has what it waited for and has not left yet
		}
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if n, since := <-counted, <-oldest; n != 0 || !since.IsZero() {
		t.Errorf("%d callers wait since %s, want none", n, since)
	}
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
		group.Go(func() { _ = q.Wait(t.Context(), try("early")) })
		synctest.Wait()
		open = true // not woken yet
		group.Go(func() { _ = q.Wait(t.Context(), try("late")) })
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
			if err := q.Wait(ctx, never); !errors.Is(err, gone) {
				t.Errorf("gave up with %v", err)
			}
		})
		synctest.Wait()
		tries := 0
		group.Go(func() { _ = q.Wait(t.Context(), func() (bool, error) { tries++; return tries == 2, nil }) })
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
