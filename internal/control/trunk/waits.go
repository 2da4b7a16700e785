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
	// waitsRepeat is the time between two reports of the same reason: the API server keeps events for an hour.
	waitsRepeat = 55 * time.Minute
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
	for _, p := range merged(problems) {
		current[p.Pod] = true
		of, before := w[p.Pod]
		if !before {
			of.since = now
		}
		due := of.since.Add(waitsAfter)
		switch {
		case of.reported.IsZero():
		case of.why == p.Why:
			due = of.reported.Add(waitsRepeat)
		default:
			due = of.reported.Add(waitsAgain)
		}
		if !now.Before(due) {
			of.reported, of.why = now, p.Why
			report = append(report, p)
			due = now.Add(waitsRepeat)
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
		w[p.Pod] = of
	}
	maps.DeleteFunc(w, func(uid core.PodUID, _ wait) bool { return !current[uid] })
	return report, next
}

// merged is the first problem of each pod, and all problems of the node as one.
func merged(problems []core.Problem) (out []core.Problem) {
	at := map[core.PodUID]int{}
	for _, p := range problems {
		i, before := at[p.Pod]
		switch {
		case !before:
			at[p.Pod] = len(out)
			out = append(out, p)
		case p.Pod == "":
			out[i].Why += "; " + p.Why
		}
	}
	return out
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
