package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Places that passes look at, for people and metrics.
const (
	inLinks  = "link"
	inFilter = "nftables"
)

// standing is how long something must be wrong in the kernel, and beyond repair from
// here, to be called drift: a pod's link goes with its namespace a moment before its
// DEL comes.
const standing = 10 * time.Second

// defect is what passes over the kernel could not put right.
type defect struct {
	since time.Time
	told  bool
}

// applyLinks makes links, addresses, routes, rules and neighbours agree with the
// book and tells what others had done to them. next is when to look again although
// nothing happens; zero: no reason to.
func (a *Agent) applyLinks(ctx context.Context) (next time.Time, err error) {
	if err := a.rename(ctx); err != nil {
		return time.Time{}, err
	}
	list, err := a.host.Apply(ctx, a.wantHost)
	return a.found(inLinks, list, time.Now()), err
}

// applyFilter is applyLinks for nftables.
func (a *Agent) applyFilter(ctx context.Context) (next time.Time, err error) {
	list, err := a.filter.Apply(ctx, a.wantFilter)
	return a.found(inFilter, list, time.Now()), err
}

// found takes what a pass found not as it should be. What was of our own doing is no
// news; what others did is told at once when it was put right. What could not be is
// told after a while, whoever did it: no work of ours takes so long.
func (a *Agent) found(where string, list []hostnet.Drift, now time.Time) (next time.Time) {
	var repaired, stand []string
	for _, d := range list {
		switch {
		case d.Own && d.Repaired:
			a.log.Debug("put in place", "where", where, "what", d.String())
		case d.Repaired:
			repaired = append(repaired, d.String())
		default:
			if d.Own && !a.wasTold(where, d.String()) { // an ADD or DEL may be at it; see how it came out
				next = now.Add(time.Second)
			}
			stand = append(stand, d.String())
		}
	}
	if len(repaired) > 0 {
		a.changed(where, repaired, fmt.Sprintf("The node's network was changed by somebody else and has been put right: %s. "+
			"If it happens again, look for another program on the node that manages routes, rules or nftables.", some(repaired)))
	}
	told, due := a.unrepaired(where, stand, now)
	if len(told) > 0 {
		a.changed(where, told, fmt.Sprintf("The node's network is not as it should be and cannot be put right from here: %s. "+
			"A pod whose interface is gone gets a new one when it is deleted and made again.", some(told)))
		if where == inLinks {
			a.doubtEC2("a link is not there")
		}
	}
	if !due.IsZero() && (next.IsZero() || due.Before(next)) {
		next = due
	}
	return next
}

// changed tells of drift: each in the log and the counter, all in one event.
func (a *Agent) changed(where string, list []string, message string) {
	for _, what := range list {
		a.log.Warn("the node's network was changed from outside", "where", where, "what", what)
	}
	a.metrics.drift.WithLabelValues(where).Add(float64(len(list)))
	a.events.NodeWarning("NetworkDrift", message)
}

// unrepaired keeps, per place, what the last pass could not put right and since
// when; told is what is drift by now and was not told before, due when the next will
// be.
func (a *Agent) unrepaired(where string, list []string, now time.Time) (told []string, due time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := map[string]defect{}
	for _, what := range list {
		d, known := a.broken[where][what]
		if !known {
			d.since = now
		}
		switch at := d.since.Add(standing); {
		case d.told:
		case !now.Before(at):
			d.told = true
			told = append(told, what)
		case due.IsZero() || at.Before(due):
			due = at
		}
		left[what] = d
	}
	a.broken[where] = left
	if len(told) > 0 {
		a.report.Mark()
	}
	return told, due
}

func (a *Agent) wasTold(where, what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broken[where][what].told
}

// standingDrift lists what has been wrong in the kernel for long.
func (a *Agent) standingDrift() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, place := range a.broken {
		for what, d := range place {
			if d.told {
				list = append(list, what)
			}
		}
	}
	slices.Sort(list)
	return list
}

// some joins the first few of a list, and counts the rest.
func some(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
}
