package loop

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// pass is one call of the work.
type pass struct {
	At   time.Duration // since the start
	Full bool
}

// record runs l in a bubble for a while and returns its passes.
func record(t *testing.T, set func(l *Loop), work func(n int) (time.Duration, error), during func(l *Loop)) (passes []pass) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := New(func(_ context.Context, full bool) (time.Time, error) {
			passes = append(passes, pass{time.Since(start), full})
			after, err := work(len(passes))
			if after == 0 {
				return time.Time{}, err
			}
			return time.Now().Add(after), err
		})
		set(l)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		during(l)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return passes
}

func quiet(int) (time.Duration, error) { return 0, nil }

func TestAFloodOfMarksIsOnePassAfterThePause(t *testing.T) {
	got := record(t, func(l *Loop) { l.MinInterval = 100 * time.Millisecond }, quiet, func(l *Loop) {
		for range 1000 {
			l.Mark()
		}
		time.Sleep(time.Second)
	})
	if want := []pass{{0, true}, {100 * time.Millisecond, false}}; !slices.Equal(got, want) {
		t.Errorf("passes %v, want %v", got, want)
	}
}

func TestMarksOfADelayAreOnePassAtItsEnd(t *testing.T) {
	got := record(t, func(l *Loop) { l.MinInterval, l.Delay = 10*time.Millisecond, 50*time.Millisecond }, quiet, func(l *Loop) {
		time.Sleep(time.Second)
		for range 3 {
			l.Mark()
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
	})
	if want := []pass{{0, true}, {1050 * time.Millisecond, false}}; !slices.Equal(got, want) {
		t.Errorf("passes %v, want %v", got, want)
	}
}

func TestAFullPassRunsPeriodicallyWithoutEvents(t *testing.T) {
	got := record(t, func(l *Loop) { l.Every = 30 * time.Second }, quiet, func(*Loop) { time.Sleep(61 * time.Second) })
	if want := []pass{{0, true}, {30 * time.Second, true}, {60 * time.Second, true}}; !slices.Equal(got, want) {
		t.Errorf("passes %v, want %v", got, want)
	}
}

func TestMarksDoNotPutOffTheFullPass(t *testing.T) {
	got := record(t, func(l *Loop) { l.Every = 10 * time.Second }, quiet, func(l *Loop) {
		for range 15 {
			time.Sleep(time.Second)
			l.Mark()
		}
	})
	full := 0
	for _, p := range got {
		if p.Full {
			full++
		}
	}
	if full != 2 {
		t.Errorf("%d full passes in 15 s, want 2: %v", full, got)
	}
}

func TestTheWorkIsCalledAgainWhenItAskedFor(t *testing.T) {
	got := record(t, func(*Loop) {}, func(n int) (time.Duration, error) {
		if n == 1 {
			return 5 * time.Second, nil
		}
		return 0, nil
	}, func(*Loop) { time.Sleep(time.Minute) })
	if want := []pass{{0, true}, {5 * time.Second, false}}; !slices.Equal(got, want) {
		t.Errorf("passes %v, want %v", got, want)
	}
}

func TestErrorsBackOffAndMarksDoNotHurryThem(t *testing.T) {
	var pauses []time.Duration
	broken := errors.New("broken")
	got := record(t, func(l *Loop) {
		l.Backoff, l.MaxBackoff = time.Second, 3*time.Second
		l.Report = func(err error, pause time.Duration) {
			if !errors.Is(err, broken) {
				t.Error(err)
			}
			pauses = append(pauses, pause)
		}
	}, func(n int) (time.Duration, error) {
		if n <= 3 {
			return 0, broken
		}
		return 0, nil
	}, func(l *Loop) {
		l.Mark()
		time.Sleep(time.Minute)
	})
	want := []pass{{0, true}, {time.Second, true}, {3 * time.Second, true}, {6 * time.Second, true}}
	if !slices.Equal(got, want) {
		t.Errorf("passes %v, want %v: a full pass that failed is owed", got, want)
	}
	if !slices.Equal(pauses, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}) {
		t.Errorf("pauses %v", pauses)
	}
}

func TestAFullMarkIsNotLostAmongOthers(t *testing.T) {
	got := record(t, func(l *Loop) { l.MinInterval = time.Second }, quiet, func(l *Loop) {
		l.Mark()
		l.MarkFull()
		l.Mark()
		time.Sleep(time.Minute)
	})
	if want := []pass{{0, true}, {time.Second, true}}; !slices.Equal(got, want) {
		t.Errorf("passes %v, want %v", got, want)
	}
}
