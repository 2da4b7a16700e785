package pool

import (
	"cmp"
	"slices"
	"time"
)

// Reads of EC2 are for a reason: an account's nodes share its budget of calls. Instance
// metadata costs nothing, and its differences from the ledger are a reason. An idle node
// makes five reads in two intervals of observeEvery, and so at most six an hour: one of its
// interfaces each, and every second time a survey of three more: of strays, subnets and
// route tables. A plan that needs the subnets requests them before.
const (
	// metadataEvery is how often metadata is read.
	metadataEvery = 30 * time.Second
	// observeEvery is how often the interfaces of the node are read from EC2 without another
	// reason, and blindEvery while metadata does not answer. Their tags are not in metadata.
	observeEvery = 30 * time.Minute
	blindEvery   = 10 * time.Minute
	// recheckAfter is when a difference between EC2 and the ledger is observed again. The
	// pause doubles while the differences stay the same.
	recheckAfter = 10 * time.Second
	// requestEvery is the least time between two requests for the same reason: the read for
	// the first one did not resolve it. The pauses between reads for the same difference
	// from metadata double, from twice that.
	requestEvery = time.Minute
)

// interval is observeEvery, plus or minus a tenth by the node's name, so that a fleet that
// was started together does not call EC2 at the same time.
func interval(node string) time.Duration {
	var seed uint64
	for _, r := range node {
		seed = seed*31 + uint64(r)
	}
	return observeEvery + time.Duration(seed%uint64(observeEvery/5)) - observeEvery/10
}

// reading is what one pass reads from EC2; zero is nothing.
type reading struct {
	why        string
	interfaces bool // of the instance: one call, and the strays if one is missing
	strays     bool // unattached interfaces with the instance's tag: one call, with interfaces
	subnets    bool // of the zone, with their route tables: two calls
}

func (r reading) any() bool { return r.interfaces || r.subnets }

func (r reading) and(more reading) reading {
	return reading{
		why: cmp.Or(r.why, more.why), interfaces: r.interfaces || more.interfaces,
		strays: r.strays || more.strays, subnets: r.subnets || more.subnets,
	}
}

// everything is the first reading of a process, and the one after an error that contradicts
// what is known.
func everything(why string) reading {
	return reading{why: why, interfaces: true, strays: true, subnets: true}
}

// schedule decides when EC2 is read. It has no lock: Observer guards it.
type schedule struct {
	every     time.Duration // between two regular observations
	observed  time.Time     // the interfaces were read by this process; zero: not yet
	surveyed  time.Time     // strays, subnets and route tables were read
	subnets   time.Time     // the subnets were read, or that was tried
	asking    time.Time     // a plan requested to read them; zero: it was done, or tried
	requested reading
	last      asked            // the last request
	answered  time.Time        // metadata answered
	doubts    []string         // of the last comparison with metadata
	checked   map[string]check // of these doubts, those for which EC2 was read
	recheck   time.Time        // when the differences are observed again; zero: not
	rechecks  int              // observations in a row with the same differences
	differ    int              // differences at the last observation
}

// asked is a request for an observation.
type asked struct {
	why string
	at  time.Time
}

// check is a read of EC2 for a doubt that did not end it.
type check struct {
	at    time.Time
	count int
}

// request requests a reading of the interfaces. It reports whether that is a new request.
func (s *schedule) request(why string, now time.Time) bool {
	if why == s.last.why && now.Sub(s.last.at) < requestEvery {
		return false
	}
	s.requested, s.last = s.requested.and(reading{why: why, interfaces: true}), asked{why, now}
	return true
}

// compare enters the differences that metadata shows.
func (s *schedule) compare(doubts []string, now time.Time) {
	s.answered, s.doubts = now, doubts
	for doubt := range s.checked {
		if !slices.Contains(doubts, doubt) {
			delete(s.checked, doubt)
		}
	}
}

// due is what is to be read from EC2 now.
func (s *schedule) due(now time.Time) reading {
	if s.observed.IsZero() {
		return s.requested.and(everything("EC2 was not observed yet"))
	}
	r := s.requested
	every := s.every
	if now.Sub(s.answered) >= blindEvery {
		every = min(every, blindEvery)
	}
	survey := now.Sub(s.surveyed) >= 2*s.every
	if survey || now.Sub(s.observed) >= every {
		r = r.and(reading{why: "a regular observation", interfaces: true, strays: survey, subnets: survey})
	}
	if !s.recheck.IsZero() && !now.Before(s.recheck) {
		r = r.and(reading{why: "EC2 and the ledger differ", interfaces: true})
	}
	for _, doubt := range s.doubts {
		c, known := s.checked[doubt]
		if !known || now.Sub(c.at) >= min(requestEvery<<min(c.count, 10), s.every) {
			return r.and(reading{why: doubt, interfaces: true})
		}
	}
	return r
}

// read enters a reading that ended. One that failed is due again, except that a plan does
// not wait for subnets that cannot be read.
func (s *schedule) read(r reading, failed error, now time.Time) {
	if r.subnets {
		// Plans repeat their request meanwhile.
		s.subnets, s.requested.subnets, s.asking = now, false, time.Time{}
	}
	if failed != nil {
		s.requested = s.requested.and(r)
		return
	}
	if r.strays && r.subnets {
		s.surveyed = now
	}
	if !r.interfaces {
		return
	}
	s.observed, s.recheck = now, time.Time{}
	if s.checked == nil {
		s.checked = make(map[string]check)
	}
	for _, doubt := range s.doubts {
		s.checked[doubt] = check{now, s.checked[doubt].count + 1}
	}
}

// compared enters how many differences an observation found, and reports whether that is
// another number than before.
func (s *schedule) compared(differ int, now time.Time) (changed bool) {
	s.rechecks++
	if changed = differ != s.differ; changed {
		s.differ, s.rechecks = differ, 0
	}
	if differ > 0 {
		s.recheck = now.Add(min(recheckAfter<<min(s.rechecks, 10), s.every))
	}
	return changed
}
