package cloud

import (
	"slices"
	"time"
)

// history are the latest States with the time from which each was current, oldest
// first. It is never empty once a State was added.
type history struct {
	versions []version
	retain   time.Duration
}

type version struct {
	since time.Time
	state *State
}

// maxHistory bounds the history, whatever Retain asks for.
const maxHistory = 4096

// add makes s the newest State and drops those that are too old.
func (h *history) add(s *State, now time.Time) {
	h.versions = append(h.versions, version{now, s})
	drop := max(0, len(h.versions)-maxHistory)
	for drop < len(h.versions)-1 && !h.versions[drop+1].since.After(now.Add(-h.retain)) {
		drop++
	}
	h.versions = slices.Delete(h.versions, 0, drop)
}

// at returns the State that was current at a time, or the oldest one retained.
func (h *history) at(t time.Time) *State {
	for i := len(h.versions) - 1; i > 0; i-- {
		if !h.versions[i].since.After(t) {
			return h.versions[i].state
		}
	}
	return h.versions[0].state
}
