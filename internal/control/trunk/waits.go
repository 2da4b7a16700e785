package trunk

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
)

const (
	// waitsAfter is how long a pod or node waits for something until that is reported: most waits are for a
	// call in flight.
	waitsAfter = 10 * time.Second
	// waitsAgain is the least time between two reports of one pod or node, of which the reason changes.
	waitsAgain = time.Minute
	// eventWaits is the reason of an event of a node that waits. That of a pod is eventNotAllocated.
	eventWaits = "TrunkENIWaiting"
)

// waits are the pods that wait for a branch, and the node itself under no uid, with what was reported.
type waits map[core.PodUID]wait

type wait struct {
	since, reported time.Time
	why             string // reported last
}

// update takes the problems of a plan over and returns those to report now, and when it is to be called
// again; zero: with the next plan.
func (w waits) update(problems []core.Problem, now time.Time) (report []core.Problem, next time.Time) {
	current := map[core.PodUID]bool{}
	for _, p := range problems {
		if current[p.Pod] {
			continue // the node has several: the first one
		}
		current[p.Pod] = true
		of, before := w[p.Pod]
		if !before {
			of.since = now
		}
		due := of.since.Add(waitsAfter)
		if !of.reported.IsZero() {
			due = of.reported.Add(waitsAgain)
		}
		switch {
		case of.why == p.Why:
		case now.Before(due):
			if next.IsZero() || due.Before(next) {
				next = due
			}
		default:
			of.reported, of.why = now, p.Why
			report = append(report, p)
		}
		w[p.Pod] = of
	}
	maps.DeleteFunc(w, func(uid core.PodUID, _ wait) bool { return !current[uid] })
	return report, next
}

// waitReporter reports what a node and its pods wait for.
type waitReporter struct{ *node }

// emit reports problems of a plan and returns when the next report is due. Refusals have been reported
// at once.
func (n waitReporter) emit(problems []core.Problem, now time.Time) time.Time {
	problems = slices.DeleteFunc(slices.Clone(problems), func(p core.Problem) bool {
		_, byEC2 := n.rec.state.Refused[p.Pod]
		_, refused := n.said.refused[types.UID(p.Pod)]
		return byEC2 || refused
	})
	report, next := n.said.waits.update(problems, now)
	for _, p := range report {
		if p.Pod == "" {
			n.c.o.Log.Warn("waits", "node", n.name, "why", p.Why)
			n.c.o.Events.NodeEvent(n.name, corev1.EventTypeWarning, eventWaits, securitygroup.Cut(p.Why))
			continue
		}
		n.c.o.Log.Info("waits for a branch", "node", n.name, "pod", n.rec.names[p.Pod].String(), "why", p.Why)
		n.podEvent(p.Pod, corev1.EventTypeWarning, eventNotAllocated, textNotAllocated+securitygroup.Cut(p.Why))
	}
	return next
}
