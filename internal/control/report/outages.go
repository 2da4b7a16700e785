package report

import (
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/control/state"
)

// facts lists what is known of the node from services, and since when.
func facts(n state.Node) (all []introspection.Fact) {
	for _, f := range state.Facts() {
		if at := n.Read[f]; !at.IsZero() {
			all = append(all, introspection.Fact{What: string(f), Read: at})
		}
	}
	return all
}

// outages lists the services that do not answer. The API server is one if reports cannot
// be written to it; they are from the time on at which calls are served.
func (r *Reporter) outages(now time.Time) (all []introspection.Outage) {
	sources := r.State.Sources()
	r.mu.Lock()
	if !r.server.Since.IsZero() {
		sources = append(sources, r.server)
	}
	r.mu.Unlock()
	for _, s := range sources {
		if why := s.Problem(now); why != "" {
			all = append(all, introspection.Outage{Service: string(s.Name), Since: s.Since, Why: why, Prevents: s.Name.Prevents()})
		}
	}
	return all
}

// noteServer records the end of a report to the API server.
func (r *Reporter) noteServer(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = r.server.After(err, time.Now())
}
