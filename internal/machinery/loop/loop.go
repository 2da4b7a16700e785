// Package loop runs level-triggered work: an event only marks that something may
// have changed, the work reads the state itself, and a full pass runs periodically,
// with or without events.
//
// It knows no technology. The caller of Run owns the loop.
package loop

import (
	"context"
	"time"
)

// Loop is one piece of work. Set the fields before Run.
type Loop struct {
	// Work is called by one goroutine, never twice at once. full is set when
	// everything is to be compared and not only what is known to be dirty. next
	// asks for another pass at that time without an event; zero does not.
	Work func(ctx context.Context, full bool) (next time.Time, err error)
	// Every is the longest time between two full passes; zero: only the first.
	Every time.Duration
	// MinInterval keeps passes apart, so that a flood of events is one pass.
	MinInterval time.Duration
	// Delay is the time from a mark to its pass, so that marks that follow soon are one pass.
	Delay time.Duration
	// Backoff is the pause after a first error, doubled for each further one up
	// to MaxBackoff. Zero means one second and one minute.
	Backoff, MaxBackoff time.Duration
	// Report is called with every error and the pause that follows. May be nil.
	Report func(err error, pause time.Duration)

	dirty chan mark
}

type mark struct{ full bool }

// New returns a loop around work. Fields may be set until Run is called; Mark
// may be called at once.
func New(work func(ctx context.Context, full bool) (time.Time, error)) *Loop {
	return &Loop{Work: work, dirty: make(chan mark, 1)}
}

// Mark asks for a pass soon. It never blocks and is cheap; many marks before a
// pass are one pass.
func (l *Loop) Mark() { l.mark(mark{}) }

// MarkFull asks for a full pass soon.
func (l *Loop) MarkFull() { l.mark(mark{full: true}) }

func (l *Loop) mark(m mark) {
	for {
		select {
		case l.dirty <- m:
			return
		default:
		}
		select {
		case old := <-l.dirty: // merge the older mark into this one
			m.full = m.full || old.full
		default:
		}
	}
}

// Run works until ctx ends, beginning with a full pass at once. It returns nil.
func (l *Loop) Run(ctx context.Context) error {
	full, fails := true, 0
	var lastFull time.Time
	for {
		began := time.Now()
		if full || l.Every > 0 && began.Sub(lastFull) >= l.Every {
			full = true
		}
		next, err := l.Work(ctx, full)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a pass that was cancelled has not failed
		}
		earliest := time.Now().Add(l.MinInterval)
		if err != nil {
			fails++
			pause := l.pause(fails)
			if l.Report != nil {
				l.Report(err, pause)
			}
			earliest, next = time.Now().Add(pause), time.Now().Add(pause)
		} else {
			fails = 0
			if full {
				lastFull, full = began, false
			}
		}
		event, ok := l.wait(ctx, earliest, l.latest(next, lastFull))
		if !ok {
			return nil
		}
		full = full || event.full
	}
}

// latest is the time of the next pass without an event; zero: none.
func (l *Loop) latest(next, lastFull time.Time) time.Time {
	if l.Every <= 0 {
		return next
	}
	if due := lastFull.Add(l.Every); next.IsZero() || due.Before(next) && !lastFull.IsZero() {
		return due
	}
	return next
}

func (l *Loop) pause(fails int) time.Duration {
	first, most := l.Backoff, l.MaxBackoff
	if first <= 0 {
		first = time.Second
	}
	if most <= 0 {
		most = time.Minute
	}
	for range fails - 1 {
		if first *= 2; first >= most {
			return most
		}
	}
	return min(first, most)
}

// wait returns when there is work to do: after earliest, on a mark or at latest.
func (l *Loop) wait(ctx context.Context, earliest, latest time.Time) (mark, bool) {
	var due <-chan time.Time
	if !latest.IsZero() {
		timer := time.NewTimer(time.Until(latest))
		defer timer.Stop()
		due = timer.C
	}
	var event mark
	select {
	case <-ctx.Done():
		return mark{}, false
	case event = <-l.dirty:
		if at := time.Now().Add(l.Delay); at.After(earliest) {
			earliest = at
		}
	case <-due:
	}
	pause := time.NewTimer(time.Until(earliest))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return mark{}, false
	case <-pause.C:
	}
	select {
	case more := <-l.dirty: // marks that arrive during the pause belong to this pass
		event.full = event.full || more.full
	default:
	}
	return event, true
}

// Sooner returns the earlier of two times at which a pass is wanted; zero: none.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
