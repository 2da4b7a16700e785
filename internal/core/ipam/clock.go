package ipam

import (
	"slices"
	"time"
)

// clockSlack is how far back now may go between two calls without being a clock change:
// concurrent callers read the clock before they take the lock.
const clockSlack = time.Second

// stamp removes the monotonic reading and the location, which JSON does not carry, so
// that a replayed ledger is equal.
func stamp(t time.Time) time.Time { return t.Round(0).UTC() }

// setBack reports whether the system clock was set back since the last call. Rows outlive
// the process, so they cannot use the monotonic clock.
func (v *volatile) setBack(now time.Time) bool {
	back := now.Before(v.latest.Add(-clockSlack))
	if back || now.After(v.latest) {
		v.latest = now
	}
	return back
}

// rewind moves every time that is in the future back to now. Without it, cool-downs and
// back-offs would last longer by as much as the clock was set back. The caller journals
// no records of it: Restart repeats it.
func (l *Ledger) rewind(now time.Time) {
	for _, r := range l.rows.records() {
		l.rows.applyOwn([]Record{r.rewound(now, l.settings.CoolDown)})
	}
	l.volatile.rewind(now)
}

// rewound is r with a copy of its row in which no time is after now, and no cool-down or
// back-off longer than it can be.
func (r Record) rewound(now time.Time, coolDown time.Duration) Record {
	switch r.Op {
	case PutAddress:
		a := *r.Address
		notAfter(now.Add(coolDown), &a.Until)
		notAfter(now, &a.Since, &a.Used, &a.Missing)
		return putAddress(a)
	case PutENI:
		e := *r.ENI
		notAfter(now, &e.Since, &e.Created, &e.Missing)
		return putENI(e)
	case PutBackoff:
		b := *r.Backoff
		notAfter(now, &b.Since)
		notAfter(now.Add(b.longest()), &b.Until)
		return Record{Op: PutBackoff, Backoff: &b}
	case PutGone:
		g := *r.Gone
		notAfter(now, &g.At)
		return Record{Op: PutGone, Gone: &g}
	default: // an action's time is that of its call, and drops have none
		return r
	}
}

func (v *volatile) rewind(now time.Time) {
	notAfter(now, &v.idle.released, &v.observed, &v.use.start)
	v.use.earlier = slices.Clone(v.use.earlier)
	for i := range v.use.earlier {
		notAfter(now, &v.use.earlier[i].until)
	}
}

// notAfter moves times that are after most back to it.
func notAfter(most time.Time, times ...*time.Time) {
	for _, t := range times {
		if t.After(most) {
			*t = most
		}
	}
}
