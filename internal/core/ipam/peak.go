package ipam

import "time"

// peak is the maximum of a step function over a sliding window. It keeps only earlier
// values that can still be the maximum, in falling order, each with the time at which
// it ended. A copy keeps its values: the list is replaced, never changed in place.
type peak struct {
	start   time.Time // first note
	now     int       // the current value
	earlier []step
}

type step struct {
	value int
	until time.Time
}

// note records that from t on the value is v.
func (p *peak) note(t time.Time, v int, window time.Duration) {
	if p.start.IsZero() {
		p.start = t
	} else if v != p.now {
		n := len(p.earlier)
		for n > 0 && p.earlier[n-1].value <= p.now {
			n--
		}
		p.earlier = append(p.earlier[:n:n], step{p.now, t}) // into a new array
	}
	p.now = v
	for len(p.earlier) > 0 && !t.Before(p.earlier[0].until.Add(window)) {
		p.earlier = p.earlier[1:]
	}
}

// falls is when the maximum falls without another event, given that the current value
// falls at next (zero: never); zero if it does not fall.
func (p *peak) falls(next time.Time, window time.Duration) time.Time {
	switch {
	case len(p.earlier) > 0 && p.earlier[0].value > p.now:
		return p.earlier[0].until.Add(window)
	case next.IsZero():
		return time.Time{}
	}
	return next.Add(window)
}

// max is the highest value noted within the window.
func (p *peak) max() int {
	if len(p.earlier) > 0 {
		return max(p.now, p.earlier[0].value)
	}
	return p.now
}
