package ec2

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Refusal is what EC2 last refused.
type Refusal struct {
	Error
	At    time.Time
	Count int // in a row, of the same action and code
}

// refusals remembers the latest refusal until the same action succeeds.
type refusals struct {
	mu   sync.Mutex
	last *Refusal
}

func (r *refusals) note(action string, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e *Error
	switch {
	case err == nil:
		if r.last != nil && r.last.Action == action {
			r.last = nil
		}
	case !errors.As(err, &e) || !telling(e):
	case r.last != nil && r.last.Action == e.Action && r.last.Code == e.Code:
		r.last = &Refusal{Error: *e, At: now, Count: r.last.Count + 1}
	default:
		r.last = &Refusal{Error: *e, At: now, Count: 1}
	}
}

// telling reports whether an error is EC2's no, rather than a step of the ordinary
// course: what is gone already, or still on its way, or no answer at all.
func telling(e *Error) bool {
	return e.Code != "" && !IsNotFound(e) && !IsInUse(e) && !slices.Contains([]string{"InvalidParameterValue", CodeNotCarriedOut}, e.Code)
}

// LastRefusal returns what EC2 last refused, until a call of the same action
// succeeds. ok is false when there is nothing.
func (x *Executor) LastRefusal() (r Refusal, ok bool) {
	x.refused.mu.Lock()
	defer x.refused.mu.Unlock()
	if x.refused.last == nil {
		return Refusal{}, false
	}
	return *x.refused.last, true
}
