package ec2

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Refusal is the last call that EC2 refused.
type Refusal struct {
	Error
	At    time.Time
	Count int // in a row, of the same action and code
}

// refusals holds the last refusal until a call of the same action succeeds.
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
	case !errors.As(err, &e) || !refused(e):
	case r.last != nil && r.last.Action == e.Action && r.last.Code == e.Code:
		r.last = &Refusal{Error: *e, At: now, Count: r.last.Count + 1}
	default:
		r.last = &Refusal{Error: *e, At: now, Count: 1}
	}
}

// describeRouteTables is the one call that the agent works without.
const describeRouteTables = "DescribeRouteTables"

// refused reports whether EC2 refused the call. Not a refusal is an error without a
// reply, and one that is expected: the object does not exist any more, or is attaching
// or detaching, or the role may not make a call that is optional.
func refused(e *Error) bool {
	if e.Action == describeRouteTables && IsUnpermitted(e) {
		return false
	}
	return e.Code != "" && !IsNotFound(e) && !IsInUse(e) && !slices.Contains([]string{"InvalidParameterValue", CodeNotCarriedOut}, e.Code)
}

// LastRefusal returns the last call that EC2 refused, until a call of the same action
// succeeds. ok is false when there is none.
func (x *Executor) LastRefusal() (r Refusal, ok bool) {
	x.refused.mu.Lock()
	defer x.refused.mu.Unlock()
	if x.refused.last == nil {
		return Refusal{}, false
	}
	return *x.refused.last, true
}
