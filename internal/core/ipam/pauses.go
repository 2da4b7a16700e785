package ipam

import (
	"fmt"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Denied says which actions on an interface EC2 refused for a cause that another program or an
// operator must end, and when they are repeated; empty without any.
func (v View) Denied(id vpc.ENIID) string {
	var out []string
	for _, b := range v.Backoffs {
		kind, object, _ := strings.Cut(b.Key, "/")
		if object != string(id) {
			continue
		}
		switch b.Reason {
		case cloud.FailUnauthorized:
			out = append(out, fmt.Sprintf("EC2 refuses %s for permission: %s", kind, b.obstacle()))
		case cloud.FailInUse:
			out = append(out, fmt.Sprintf("EC2 refuses %s because it is attached: %s", kind, b.obstacle()))
		case cloud.FailSubnetExhausted, cloud.FailAddressLimit, cloud.FailENILimit, cloud.FailThrottled, cloud.FailCredentials, cloud.FailNotFound, cloud.FailFrozen, cloud.FailOther:
		}
	}
	return strings.Join(out, "; ")
}

// schedule is when to plan again if no event occurs before.
type schedule struct {
	now  time.Time
	next time.Time // zero: only on events
}

// at requests a plan at t. A time that has passed is no request.
func (s *schedule) at(t time.Time) {
	if t.After(s.now) && (s.next.IsZero() || t.Before(s.next)) {
		s.next = t
	}
}

// pauses are the back-offs of a plan.
type pauses struct {
	active map[string]Backoff // that have not ended, by key
	ended  map[string]bool    // after which the action has not succeeded yet, by key
	// ends is when the first back-off ends that applied to this plan.
	ends     time.Time
	schedule *schedule
}

func newPauses(all []Backoff, s *schedule) *pauses {
	p := &pauses{active: make(map[string]Backoff), ended: make(map[string]bool), schedule: s}
	for _, b := range all {
		if s.now.Before(b.Until) {
			p.active[b.Key] = b
		} else {
			p.ended[b.Key] = true
		}
	}
	return p
}

// apply returns the first of the keys that is paused, and requests a plan when its
// back-off ends.
func (p *pauses) apply(keys ...string) (Backoff, bool) {
	for _, k := range keys {
		if b, ok := p.active[k]; ok {
			p.schedule.at(b.Until)
			if p.ends.IsZero() || b.Until.Before(p.ends) {
				p.ends = b.Until
			}
			return b, true
		}
	}
	return Backoff{}, false
}
