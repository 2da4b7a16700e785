package ec2

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// breakerHolds is how long an open breaker stays open without another failure.
const breakerHolds = 2 * time.Minute

// brakes are the operator's brake and the circuit breaker, which opens when calls in a
// row fail for a time.
type brakes struct {
	calls int
	after time.Duration

	mu       sync.Mutex
	operator cloud.Brake
	asked    string // why the operator's brake is in force
	failures int
	first    time.Time // of the failures in a row
	last     time.Time
	why      string
}

func newBrakes(calls int, after time.Duration) *brakes {
	return &brakes{calls: calls, after: after}
}

// setOperator sets the operator's brake and its reason, and reports whether that is another
// brake. The breaker is not changed.
func (b *brakes) setOperator(v cloud.Brake, why string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = b.operator != v
	b.operator, b.asked = v, why
	return changed
}

// operatorBrake returns the operator's brake.
func (b *brakes) operatorBrake() cloud.Brake {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.operator
}

// note counts calls in a row that got no reply, no connection, or failed inside EC2. Any other
// reply resets the count, also a refusal: EC2 processed the call. Two are not counted and reset
// nothing: a throttled call, because EC2 throttles each action on its own and so does budgets,
// and one without credentials, because it says nothing of EC2.
func (b *brakes) note(err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case IsThrottled(err), errors.Is(err, errCredentials):
		return
	case err == nil, !isAmbiguous(err) && !unsent(err):
		b.failures = 0
		return
	}
	if b.failures == 0 {
		b.first = now
	}
	b.failures++
	b.last, b.why = now, err.Error()
}

// inForce returns the strictest brake that applies, with the reasons of all.
func (b *brakes) inForce(now time.Time) (v cloud.Brake, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var reasons []string
	if b.failures >= b.calls && b.last.Sub(b.first) >= b.after && now.Sub(b.last) < breakerHolds {
		v = cloud.AllocateOnly
		reasons = append(reasons, fmt.Sprintf("%d EC2 calls in a row failed over %s, the last with: %s",
			b.failures, b.last.Sub(b.first).Round(time.Second), b.why))
	}
	if b.operator != cloud.BrakeOff { // at least as strict
		v = b.operator
		set := "set by the operator"
		if b.asked != "" {
			set += ": " + b.asked
		}
		reasons = slices.Insert(reasons, 0, set)
	}
	return v, strings.Join(reasons, "; ")
}

// allow returns an error that wraps ErrFrozen if the brake in force forbids k.
func (b *brakes) allow(k cloud.Kind, now time.Time) error {
	v, why := b.inForce(now)
	if !v.Allows(k) {
		return fmt.Errorf("%w (%s, %s)", ErrFrozen, v, why)
	}
	return nil
}
