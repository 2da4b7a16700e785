package ec2

import (
	"fmt"
	"sync"
	"time"
)

// Brake limits what may be asked of EC2.
type Brake string

// Brakes.
const (
	NoBrake       Brake = ""
	FreezeRelease Brake = "freeze release" // nothing is given back
	FreezeAll     Brake = "freeze all"     // nothing is changed
	AllocateOnly  Brake = "allocate only"  // as FreezeRelease, by the breaker
)

// breakerHolds is how long an open breaker stays open without another failure.
const breakerHolds = 2 * time.Minute

// brakes holds the operator's brake and the breaker.
type brakes struct {
	calls int
	after time.Duration

	mu       sync.Mutex
	operator Brake
	failures int
	first    time.Time // of the failures in a row
	last     time.Time
	why      string
}

func newBrakes(calls int, after time.Duration) *brakes {
	return &brakes{calls: calls, after: after}
}

func (b *brakes) put(v Brake) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.operator = v
}

// set returns the operator's brake.
func (b *brakes) set() Brake {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.operator
}

// note counts calls that failed for reasons of EC2's own; any other answer, a
// refusal too, shows that EC2 works.
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

func (b *brakes) now(now time.Time) (Brake, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.operator != NoBrake {
		return b.operator, "set by the operator"
	}
	if b.failures >= b.calls && b.last.Sub(b.first) >= b.after && now.Sub(b.last) < breakerHolds {
		return AllocateOnly, fmt.Sprintf("%d EC2 calls in a row failed over %s, the last with: %s",
			b.failures, b.last.Sub(b.first).Round(time.Second), b.why)
	}
	return NoBrake, ""
}

// allow refuses what the brake forbids with ErrFrozen.
func (b *brakes) allow(k Kind, now time.Time) error {
	v, why := b.now(now)
	if v == FreezeAll || v != NoBrake && k.frees() {
		return fmt.Errorf("%w (%s, %s)", ErrFrozen, v, why)
	}
	return nil
}
