package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Places that are compared, for people and metrics.
const (
	inLinks  = "link"
	inFilter = "nftables"
)

// applyLinks makes links, addresses, routes, rules and neighbours agree with the
// state and reports drift. next is when to compare again although nothing happens;
// zero: no need.
func (a *Agent) applyLinks(ctx context.Context) (next time.Time, err error) {
	if err := a.rename(ctx); err != nil {
		return time.Time{}, err
	}
	list, err := a.host.Apply(ctx, a.wantHost)
	return a.reportDrift(inLinks, list, time.Now()), err
}

// applyFilter is applyLinks for nftables.
func (a *Agent) applyFilter(ctx context.Context) (next time.Time, err error) {
	list, err := a.filter.Apply(ctx, a.wantFilter)
	return a.reportDrift(inFilter, list, time.Now()), err
}

// reportDrift takes what a comparison found and reports what others changed.
func (a *Agent) reportDrift(where string, list []hostnet.Drift, now time.Time) (next time.Time) {
	a.mu.Lock()
	tracker, known := a.drift[where]
	if !known {
		tracker = &drift.Tracker{}
		a.drift[where] = tracker
	}
	found := tracker.Note(list, now)
	a.mu.Unlock()
	for _, what := range found.Own {
		a.log.Debug("put in place", "where", where, "what", what)
	}
	if len(found.Repaired) > 0 {
		a.changed(where, found.Repaired, fmt.Sprintf("Another program changed the node's network, and it has been put right: %s. "+
			"If it happens again, look for another program on the node that manages routes, rules or nftables.", drift.Summary(found.Repaired)))
	}
	if len(found.Standing) > 0 {
		a.report.Mark()
		a.changed(where, found.Standing, fmt.Sprintf("The node's network is not as it should be and cannot be put right from here: %s. "+
			"A pod whose interface is gone gets a new one when it is deleted and made again.", drift.Summary(found.Standing)))
		if where == inLinks {
			a.requestEC2Resync("a link is not there")
		}
	}
	return found.Next
}

// changed reports drift: each in the log and the counter, all in one event.
func (a *Agent) changed(where string, list []string, message string) {
	for _, what := range list {
		a.log.Warn("the node's network was changed from outside", "where", where, "what", what)
	}
	a.metrics.drift.WithLabelValues(where).Add(float64(len(list)))
	a.events.NodeWarning("NetworkDrift", message)
}

// standingDrift lists what cannot be repaired, sorted.
func (a *Agent) standingDrift() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, tracker := range a.drift {
		list = append(list, tracker.Current()...)
	}
	slices.Sort(list)
	return list
}
