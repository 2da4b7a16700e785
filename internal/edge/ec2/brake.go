package ec2

import (
	"fmt"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// breakerHolds is how long an open breaker stays open without another failure.
const breakerHolds = 2 * time.Minute

// brakes are the operator's brake and the breaker, which opens when EC2 keeps failing.
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

func (b *brakes) put(v cloud.Brake) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.operator = v
}

// ofOperator returns the operator's brake.
func (b *brakes) ofOperator() cloud.Brake {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.operator
}

// note counts calls in a row that failed at EC2 itself. Any other answer, a refusal
// too, shows that EC2 works.
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

func (b *brakes) now(now time.Time) (cloud.Brake, string) {
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

// allow refuses what the brake in force forbids, with ErrFrozen.
func (b *brakes) allow(k cloud.Kind, now time.Time) error {
	v, why := b.now(now)
	if !v.Allows(k) {
		return fmt.Errorf("%w (%s, %s)", ErrFrozen, v, why)
	}
	return nil
}
