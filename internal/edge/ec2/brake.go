package ec2

import (
	"fmt"
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
	failures int
	first    time.Time // of the failures in a row
	last     time.Time
	why      string
}

func newBrakes(calls int, after time.Duration) *brakes {
	return &brakes{calls: calls, after: after}
}

func (b *brakes) setOperator(v cloud.Brake) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.operator = v
}

// operatorBrake returns the operator's brake.
func (b *brakes) operatorBrake() cloud.Brake {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.operator
}

// note counts calls in a row that got no reply, failed inside EC2 or were throttled. Any
// other reply resets the count, also a refusal: EC2 processed the call.
func (b *brakes) note(err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil || !isAmbiguous(err) && !IsThrottled(err) {
		b.failures = 0
		return
	}
	if b.failures == 0 {
		b.first = now
	}
	b.failures++
	b.last, b.why = now, err.Error()
}

// inForce returns the brake that applies, with its reason.
func (b *brakes) inForce(now time.Time) (cloud.Brake, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.operator != cloud.BrakeOff {
		return b.operator, "set by the operator"
	}
	if b.failures >= b.calls && b.last.Sub(b.first) >= b.after && now.Sub(b.last) < breakerHolds {
		return cloud.AllocateOnly, fmt.Sprintf("%d EC2 calls in a row failed over %s, the last with: %s",
			b.failures, b.last.Sub(b.first).Round(time.Second), b.why)
	}
	return cloud.BrakeOff, ""
}

// allow returns an error that wraps ErrFrozen if the brake in force forbids k.
func (b *brakes) allow(k cloud.Kind, now time.Time) error {
	v, why := b.inForce(now)
	if !v.Allows(k) {
		return fmt.Errorf("%w (%s, %s)", ErrFrozen, v, why)
	}
	return nil
}
