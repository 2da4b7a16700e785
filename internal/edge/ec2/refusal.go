package ec2

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Refusal is the last call of an action on an object that EC2 refused.
type Refusal struct {
	Error
	At    time.Time
	Count int // in a row, of the same action, object and code
}

// refusalKept is how long a refusal that is not repeated counts: longer than the longest
// back-off of a call that EC2 refuses.
const refusalKept = 30 * time.Minute

// refusals holds the last refusal of each action on each object. It ends when a call of the
// same action succeeds; a refusal for permission to change an object only if that call is
// on the same object, because permissions depend on the object's tags.
type refusals struct {
	mu   sync.Mutex
	last map[refusalKey]Refusal
}

type refusalKey struct{ action, object string }

func (r *refusals) note(action, object string, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusalKey{action, object}
	var e *Error
	switch {
	case err == nil:
		maps.DeleteFunc(r.last, func(k refusalKey, old Refusal) bool {
			return k.action == action && (k.object == object || !old.ofObject())
		})
	case !errors.As(err, &e) || !refused(e):
	default:
		count := 1
		if was := r.last[key]; was.Code == e.Code {
			count += was.Count
		}
		if r.last == nil {
			r.last = map[refusalKey]Refusal{}
		}
		r.last[key] = Refusal{Error: *e, At: now, Count: count}
	}
	maps.DeleteFunc(r.last, func(_ refusalKey, old Refusal) bool { return now.Sub(old.At) > refusalKept })
}

// ofObject reports whether the refusal is about its object alone.
func (r Refusal) ofObject() bool {
	return r.Code == "UnauthorizedOperation" && !strings.HasPrefix(r.Action, "Describe")
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

// LastRefusal returns the latest refusal that has not ended; see refusals. ok is false
// when there is none.
func (x *Executor) LastRefusal() (r Refusal, ok bool) {
	x.refused.mu.Lock()
	defer x.refused.mu.Unlock()
	for _, one := range x.refused.last {
		newer := cmp.Or(one.At.Compare(r.At), cmp.Compare(one.Action+one.Object, r.Action+r.Object)) > 0
		if !ok || newer {
			r, ok = one, true
		}
	}
	if ok && time.Since(r.At) > refusalKept {
		return Refusal{}, false
	}
	return r, ok
}
