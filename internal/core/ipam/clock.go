package ipam

import "time"

// clockSlack is how far back now may go between two calls without being a clock change:
// concurrent callers read the clock before they take the lock.
const clockSlack = time.Second

// trackClock detects that the system clock was set back. Rows outlive the process, so
// they cannot use the monotonic clock.
func (l *Ledger) trackClock(now time.Time) {
	now = stamp(now)
	switch {
	case now.Before(l.latest.Add(-clockSlack)):
		l.rewind(now)
		l.latest = now
	case now.After(l.latest):
		l.latest = now
	}
}

// rewind moves every time that is in the future back to now. Without it, cool-downs and
// back-offs would last longer by as much as the clock was set back. It makes no records:
// Restart repeats it.
func (l *Ledger) rewind(now time.Time) {
	back := func(t *time.Time, most time.Time) {
		if t.After(most) {
			*t = most
		}
	}
	for _, a := range l.addresses {
		back(&a.Until, now.Add(l.settings.CoolDown))
		for _, t := range []*time.Time{&a.Since, &a.Used, &a.Missing} {
			back(t, now)
		}
	}
	for _, e := range l.enis {
		for _, t := range []*time.Time{&e.Since, &e.Created, &e.Missing} {
			back(t, now)
		}
	}
	for key, b := range l.backoffs {
		back(&b.Since, now)
		back(&b.Until, now.Add(maxBackoff))
		l.backoffs[key] = b
	}
	for addr, at := range l.gone {
		back(&at, now)
		l.gone[addr] = at
	}
	for id, at := range l.goneENIs {
		back(&at, now)
		l.goneENIs[id] = at
	}
	back(&l.released, now)
	back(&l.observed, now)
	back(&l.use.start, now)
	for i := range l.use.earlier {
		back(&l.use.earlier[i].until, now)
	}
}
