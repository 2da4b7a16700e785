package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// faults hinder a part of the enforcement; all else is enforced (ADR 0032).
type faults struct {
	policies map[policy.Ref]*odd // that ask for something that they cannot get
	shown    []string            // of those that select a pod of the node, as of the last pass
	// cut are endpoints with a link that takes no programs: nothing is forwarded to or from them.
	cut map[endpoint.ID]string
	// unguarded are interfaces of the node, by name, that take no program.
	unguarded map[string]string
	crowded   int       // size of the table of connections while that is nearly full
	tries     int       // to attach what is missing, since all was attached
	next      time.Time // of the next audit
	// attached are the links that had programs at the last audit.
	attached map[int]bool
}

// odd is a policy of which parts cannot be honoured.
type odd struct {
	uid      string
	problems []string
	reported time.Time // by events
}

// oddEvery is how often the same problems of a policy are reported: the API server keeps events for
// an hour.
const oddEvery = 55 * time.Minute

// noteOdd notes the problems of a policy as it is now.
func (f *faults) noteOdd(ref policy.Ref, uid string, problems []string) {
	before := f.policies[ref]
	switch {
	case len(problems) == 0:
		delete(f.policies, ref)
	case before == nil || before.uid != uid || !slices.Equal(before.problems, problems):
		f.policies[ref] = &odd{uid: uid, problems: problems}
	}
}

// problems are those of a policy.
func (f *faults) problems(ref policy.Ref) []string {
	if o := f.policies[ref]; o != nil {
		return o.problems
	}
	return nil
}

// reportOdd writes events of the policies that select a pod of this node. Other nodes that have one
// write the same, which the API server keeps once. The node's condition has them as well.
func reportOdd(c *Controller, now time.Time) {
	if !c.on.Load() {
		return
	}
	var shown []string
	for _, ref := range slices.SortedFunc(maps.Keys(c.faults.policies), policy.Ref.Compare) {
		o := c.faults.policies[ref]
		if !policy.Selects(c.engine, ref) {
			continue
		}
		shown = append(shown, fmt.Sprintf("a part of %s cannot be honoured, and allows nothing: %s", ref, strings.Join(o.problems, "; ")))
		if now.Sub(o.reported) < oddEvery {
			continue
		}
		o.reported = now
		for _, text := range o.problems {
			c.Events.PolicyWarning(ref, o.uid, "NotHonoured", "A part of the policy cannot be honoured, and allows nothing: "+text)
		}
	}
	if !slices.Equal(shown, c.faults.shown) {
		c.faults.shown = shown
		c.Report()
	}
}

func newFaults() *faults {
	return &faults{policies: map[policy.Ref]*odd{}, cut: map[endpoint.ID]string{}, unguarded: map[string]string{}}
}

// auditEvery is how often attachments are compared with what they must be. The kernel's notifications of
// traffic control (RTNLGRP_TC) are not watched: each ADD would cause some.
const auditEvery = 5 * time.Second

// due reports whether attachments are to be compared.
func (f *faults) due(now time.Time) bool { return !f.next.IsZero() && !now.Before(f.next) }

// plan sets the time of the next audit: while something is missing after 1 s, 2 s and so on up to the
// next full pass.
func (f *faults) plan(now time.Time) {
	if len(f.cut)+len(f.unguarded) == 0 {
		f.tries, f.next = 0, now.Add(auditEvery)
		return
	}
	f.next = now.Add(min(time.Second<<min(f.tries, 10), fullEvery))
	f.tries++
}

// Faults names what hinders a part of the enforcement on the node, and what of policies cannot be
// honoured there.
func Faults(c *Controller) (list []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on.Load() {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(c.faults.cut)) {
		list = append(list, fmt.Sprintf("pod %s is cut off: %s", refOf(c.wired[id].endpoint), c.faults.cut[id]))
	}
	for _, name := range slices.Sorted(maps.Keys(c.faults.unguarded)) {
		list = append(list, unguarded(name, c.faults.unguarded[name]))
	}
	if c.faults.crowded != 0 {
		list = append(list, crowded(c.faults.crowded))
	}
	if refused := c.datapath.Found().Refused; refused != "" {
		list = append(list, "network-policy-map-sizes is not in force: "+refused)
	}
	return append(list, c.faults.shown...)
}

func unguarded(name, why string) string {
	return fmt.Sprintf("interface %s has no program that drops what policies have not judged, if the rules of nftables are removed: %s", name, why)
}

// noteLink notes whether the link of an endpoint takes its programs. While it does not, the
// endpoint has no policies in force, and the program forward drops its packets.
func noteLink(c *Controller, id endpoint.ID, failed error) {
	before, was := c.faults.cut[id]
	ref := refOf(c.wired[id].endpoint)
	switch {
	case failed == nil && was:
		delete(c.faults.cut, id)
		c.datapath.State.SetInForce(id, uint32(c.engine.InForce(id)))
		c.Log.Info("policy programs are attached to the link of a pod that was cut off", "pod", ref.String())
		c.Report()
	case failed != nil:
		c.datapath.State.SetInForce(id, bpf.SetPending)
		why := failed.Error()
		if c.faults.cut[id] = why; why == before {
			return
		}
		c.Log.Error("a pod is cut off: its link takes no policy programs", "pod", ref.String(), "error", failed)
		pod := kube.PodRef{Namespace: ref.Namespace, Name: ref.Name}
		c.Events.PodWarning(pod, uidOf(c.Pods, pod), "CutOff", "The pod's link takes no programs of network policies, so nothing is forwarded to or from the pod until it does: "+why)
		c.Report()
	}
}

func uidOf(pods Pods, ref kube.PodRef) string {
	for _, p := range pods.Pods() {
		if p.PodRef == ref {
			return p.UID
		}
	}
	return ""
}

// noteDevice notes whether an interface of the node takes its program.
func noteDevice(c *Controller, name string, failed error) {
	before, was := c.faults.unguarded[name]
	switch {
	case failed == nil && was:
		delete(c.faults.unguarded, name)
		c.Report()
	case failed != nil:
		why := failed.Error()
		if c.faults.unguarded[name] = why; why == before {
			return
		}
		c.Log.Error("an interface of the node takes no policy program", "link", name, "error", failed)
		c.Events.NodeWarning("NotGuarded", "Network policies are enforced, but "+unguarded(name, why))
		c.Report()
	}
}

// held are the sets of endpoints that are cut off: they are put in force again later.
func held(c *Controller) (sets []uint32) {
	for id := range c.faults.cut {
		sets = append(sets, uint32(c.engine.InForce(id)))
	}
	return sets
}
