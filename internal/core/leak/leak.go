// Package leak decides which network interfaces have leaked and may be deleted. An
// interface leaks when a node dies between creating and attaching it, or between
// detaching and deleting it.
//
// Pure: the caller passes in what EC2 and the nodes report, and the result of the
// previous pass. app/controller calls it and deletes. An interface is deleted only if
// it carries our tags, is old enough, is attached to no instance, and has no owner in
// two passes. A pass halts without deletions when it would delete an unusually large
// share of the interfaces: a remaining leak is better than a wrong deletion.
package leak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Interface is an ENI as EC2 describes it.
type Interface struct {
	ID     vpc.ENIID
	Status string // EC2's: available, attaching, in-use, detaching
	Tags   map[string]string
}

// Report is a node's list of its interfaces, from its NodeNetwork.
type Report struct {
	Instance vpc.InstanceID
	At       time.Time
	Owns     map[vpc.ENIID]bool
}

// Instances holds the instances that exist. One that EC2 does not list, or lists as
// terminated, does not exist.
type Instances map[vpc.InstanceID]bool

// Observation records that an interface was found without an owner.
type Observation struct {
	First  time.Time // of the first of these passes
	Passes int       // consecutive passes
}

// Policy bounds the collector.
type Policy struct {
	Cluster string        // only interfaces with this cluster tag; empty: those without one
	MinAge  time.Duration // of an interface, and of it at the time of its node's report
	Passes  int           // consecutive passes that must find no owner, at least 2
	Cap     int           // maximum deletions per pass
	// A pass halts with an alarm when more than AlarmAbove interfaces have leaked and
	// they are more than AlarmShare (0–1) of the cluster's interfaces. An instance that
	// exists counts for AlarmAbove at most: the credentials of a node, once stolen, make
	// any number of interfaces, and must not halt the collection of all others.
	AlarmShare float64
	AlarmAbove int
}

// DefaultPolicy returns the policy of the controller.
func DefaultPolicy(cluster string) Policy {
	return Policy{Cluster: cluster, MinAge: 5 * time.Minute, Passes: 2, Cap: 25, AlarmShare: 0.2, AlarmAbove: 5}
}

// Input is the input of one pass.
type Input struct {
	Now        time.Time
	Policy     Policy
	Interfaces []Interface
	Instances  Instances
	Reports    []Report
	// Complete is false when a page of an inventory could not be read.
	Complete bool
	Seen     map[vpc.ENIID]Observation // Decision.Seen of the previous pass
}

// Verdict is the decision on one interface.
type Verdict struct {
	ID  vpc.ENIID
	Why string
}

// Decision is the result of a pass.
type Decision struct {
	Delete []Verdict // confirmed leaks, oldest first, at most Cap
	Wait   []Verdict // leaks not yet confirmed, or beyond the cap
	Keep   []Verdict // ours and not leaked
	// Halt is the reason why this pass deletes nothing; empty is no halt.
	Halt string
	// Alarm: the halt needs an operator.
	Alarm bool
	Seen  map[vpc.ENIID]Observation // input of the next pass
}

func (d Decision) String() string {
	s := fmt.Sprintf("delete %d, wait %d, keep %d", len(d.Delete), len(d.Wait), len(d.Keep))
	if d.Halt != "" {
		s += ", halted: " + d.Halt
	}
	return s
}

// Plan decides one pass. Interfaces without this cluster's tags are in none of the
// lists.
func Plan(in Input) Decision {
	d := Decision{Seen: map[vpc.ENIID]Observation{}}
	if !in.Complete {
		// Keep earlier observations: a failed read neither confirms nor clears them.
		d.Halt = "the inventory is incomplete"
		d.Seen = maps.Clone(in.Seen)
		return d
	}
	reports := map[vpc.InstanceID]Report{}
	for _, r := range in.Reports {
		reports[r.Instance] = r
	}
	ours, leaksOf := 0, map[vpc.InstanceID]int{}
	for _, eni := range in.Interfaces {
		if !in.Policy.applies(eni) {
			continue
		}
		ours++
		leaked, why := in.leaked(eni, reports)
		if !leaked {
			d.Keep = append(d.Keep, Verdict{eni.ID, why})
			continue
		}
		seen := in.Seen[eni.ID]
		if seen.Passes == 0 {
			seen.First = in.Now
		}
		seen.Passes++
		d.Seen[eni.ID] = seen
		leaksOf[vpc.InstanceID(eni.Tags[vpc.TagInstanceID])]++
		d.Wait = append(d.Wait, Verdict{eni.ID, why})
	}
	leaked := 0
	for owner, n := range leaksOf {
		if in.Instances[owner] {
			n = min(n, in.Policy.AlarmAbove)
		}
		leaked += n
	}
	if leaked > in.Policy.AlarmAbove && float64(leaked) > in.Policy.AlarmShare*float64(ours) {
		d.Alarm = true
		d.Halt = fmt.Sprintf("%d of %d interfaces look leaked, more than %.0f %%: an operator must check them first", leaked, ours, in.Policy.AlarmShare*100)
		return d
	}
	d.confirm(in)
	return d
}

// applies reports whether the tags of e allow the collector to delete it.
func (p Policy) applies(e Interface) bool {
	return slices.Contains(Marks(), e.Tags[vpc.TagManagedBy]) && e.Tags[vpc.TagInstanceID] != "" &&
		e.Tags[vpc.TagClusterName] == p.Cluster && e.Tags[vpc.TagNoManage] != "true"
}

// Mark is the value of vpc.TagManagedBy on interfaces created by the agents.
const Mark = vpc.ManagedBy

// Marks are its values on interfaces created by Trunkline.
func Marks() []string { return []string{Mark, vpc.ManagedByController} }

// leaked reports whether an interface has no owner, with the reason.
func (in Input) leaked(e Interface, reports map[vpc.InstanceID]Report) (bool, string) {
	owner := vpc.InstanceID(e.Tags[vpc.TagInstanceID])
	if e.Status != "available" {
		return false, "it is " + e.Status
	}
	created, err := time.Parse(time.RFC3339, e.Tags[vpc.TagCreatedAt])
	if err == nil && in.Now.Sub(created) < in.Policy.MinAge {
		return false, fmt.Sprintf("created %s ago", in.Now.Sub(created).Round(time.Second))
	}
	r, ok := reports[owner]
	if !in.Instances[owner] {
		if ok && in.Now.Sub(r.At) < in.Policy.MinAge {
			return false, "EC2 does not list its instance " + string(owner) + ", but the node reported recently"
		}
		return true, "its instance " + string(owner) + " does not exist"
	}
	switch {
	case e.Tags[vpc.TagManagedBy] == vpc.ManagedByController:
		return false, "its instance " + string(owner) + " exists, and it is a trunk or a branch, which core/trunk collects"
	case !ok:
		return false, "its instance " + string(owner) + " exists and its node has not reported"
	case r.Owns[e.ID]:
		return false, "the node of " + string(owner) + " reports it as its own"
	case err != nil:
		return false, "its instance " + string(owner) + " exists and the interface has no valid creation time"
	case r.At.Before(created.Add(in.Policy.MinAge)):
		return false, "the latest report of " + string(owner) + " is too old to include it"
	}
	return true, "the node of " + string(owner) + " does not report it as its own"
}

// confirm moves leaks observed in enough passes from Wait to Delete, up to the cap.
func (d *Decision) confirm(in Input) {
	needed := max(2, in.Policy.Passes)
	slices.SortFunc(d.Wait, func(a, b Verdict) int {
		return cmp.Or(d.Seen[a.ID].First.Compare(d.Seen[b.ID].First), cmp.Compare(a.ID, b.ID))
	})
	var wait []Verdict
	for _, v := range d.Wait {
		switch s := d.Seen[v.ID]; {
		case s.Passes < needed:
			v.Why += fmt.Sprintf("; confirmed %d of %d times", s.Passes, needed)
		case len(d.Delete) >= in.Policy.Cap:
			v.Why += fmt.Sprintf("; this pass deletes at most %d", in.Policy.Cap)
		default:
			d.Delete = append(d.Delete, v)
			continue
		}
		wait = append(wait, v)
	}
	d.Wait = wait
}
