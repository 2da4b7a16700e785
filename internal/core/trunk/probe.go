package trunk

import "time"

// Probe is what EC2 answered to a dry run of the calls that branches need.
type Probe struct {
	Refusal string    // EC2's code and words; empty: they are allowed
	Since   time.Time // of the first refusal in a row
	Until   time.Time // the refusal holds; a later probe extends it
	Tries   int       // refusals in a row
}

// Probed delays the trunk while EC2 refuses the calls that branches need: an interface that no branch
// can be associated with would take a slot of the instance. The back-off has EC2's words.
func Probed(s State, p Probe) State {
	b, paused := s.Backoffs[keyTrunk]
	if p.Refusal == "" {
		if !paused || b.Reason != FailRefused {
			return s
		}
		s = s.clone()
		delete(s.Backoffs, keyTrunk)
		return s
	}
	next := Backoff{Since: p.Since, Until: p.Until, Tries: p.Tries, Reason: FailRefused, Message: p.Refusal}
	if paused && b == next {
		return s
	}
	s = s.clone()
	s.Backoffs[keyTrunk] = next
	return s
}

// TrunkPaused reports whether a back-off delays what makes the trunk.
func (s State) TrunkPaused(now time.Time) bool {
	b, paused := s.Backoffs[keyTrunk]
	return paused && now.Before(b.Until)
}
