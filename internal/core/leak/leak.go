// Package leak decides which network interfaces nobody owns any more and may be
// deleted. An interface leaks when a node dies between making it and attaching it,
// or between detaching it and deleting it.
//
// Pure: the caller brings what EC2 and the nodes said, and what this package
// answered last time. app/controller calls it and acts. It deletes only what is
// marked as ours, old, attached to nothing, and disowned in two separate passes;
// it prefers a leak to a mistake, and stops altogether when it would want too much.
package leak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Interface is an ENI as EC2 described it.
type Interface struct {
	ID     vpc.ENIID
	Status string // EC2's: available, attaching, in-use, detaching
	Tags   map[string]string
}

// Report is what a live node said of its interfaces.
type Report struct {
	Instance vpc.InstanceID
	At       time.Time
	Owns     map[vpc.ENIID]bool
}

// Instances is which instances exist. One that EC2 does not list is gone, as are
// terminated ones.
type Instances map[vpc.InstanceID]bool

// Sighting remembers that an interface looked leaked.
type Sighting struct {
	First  time.Time // when it was first seen so
	Passes int       // in how many passes in a row
}

// Policy bounds the collector.
type Policy struct {
	Cluster string        // only interfaces tagged for it; empty: those with no cluster tag
	MinAge  time.Duration // since creation, and of a report since then
	Passes  int           // confirmations needed, at least 2
	Cap     int           // deletions per pass
	Share   float64       // stop when the leaked are more than this share of ours, 0–1
	Floor   int           // up to this many leaked are never too many
}

// DefaultPolicy is what the controller uses.
func DefaultPolicy(cluster string) Policy {
	return Policy{Cluster: cluster, MinAge: 5 * time.Minute, Passes: 2, Cap: 25, Share: 0.2, Floor: 5}
}

// Input is one pass.
type Input struct {
	Now        time.Time
	Policy     Policy
	Interfaces []Interface
	Instances  Instances
	Reports    []Report
	// Complete is false when any page of any inventory was not read.
	Complete bool
	Seen     map[vpc.ENIID]Sighting // of the pass before
}

// Verdict is what was decided about one interface.
type Verdict struct {
	ID  vpc.ENIID
	Why string
}

// Decision is what a pass came to.
type Decision struct {
	Delete []Verdict // confirmed, oldest sighting first, at most Cap
	Wait   []Verdict // look leaked and are not confirmed, or are beyond the cap
	Keep   []Verdict // ours and not leaked
	// Halt says why nothing may be deleted in this pass; empty is no halt.
	Halt string
	// Alarm: the halt is one that a person must look at.
	Alarm bool
	Seen  map[vpc.ENIID]Sighting // for the next pass
}

func (d Decision) String() string {
	s := fmt.Sprintf("delete %d, wait %d, keep %d", len(d.Delete), len(d.Wait), len(d.Keep))
	if d.Halt != "" {
		s += ", halted: " + d.Halt
	}
	return s
}

// Plan decides one pass. Interfaces that are not marked as this cluster's are in
// none of the lists: they are nobody's business here.
func Plan(in Input) Decision {
	d := Decision{Seen: map[vpc.ENIID]Sighting{}}
	if !in.Complete {
		// What was seen before stands: a failed read neither confirms nor clears.
		d.Halt = "the inventory is incomplete"
		d.Seen = maps.Clone(in.Seen)
		return d
	}
	reports := map[vpc.InstanceID]Report{}
	for _, r := range in.Reports {
		reports[r.Instance] = r
	}
	ours := 0
	for _, eni := range in.Interfaces {
		if !in.Policy.marks(eni) {
			continue
		}
		ours++
		leaked, why := in.disowned(eni, reports)
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
		d.Wait = append(d.Wait, Verdict{eni.ID, why})
	}
	if leaked := len(d.Wait); leaked > in.Policy.Floor && float64(leaked) > in.Policy.Share*float64(ours) {
		d.Alarm = true
		d.Halt = fmt.Sprintf("%d of %d interfaces look leaked, more than %.0f %%: somebody must look first", leaked, ours, in.Policy.Share*100)
		return d
	}
	d.confirm(in)
	return d
}

// marks reports whether an interface is ours to judge.
func (p Policy) marks(e Interface) bool {
	return e.Tags[vpc.TagManagedBy] == Mark && e.Tags[vpc.TagInstanceID] != "" &&
		e.Tags[vpc.TagClusterName] == p.Cluster && e.Tags[vpc.TagNoManage] != "true"
}

// Mark is the value of vpc.TagManagedBy on what we made.
const Mark = "trunkline"

// disowned reports whether nobody owns an interface, and why or why not.
func (in Input) disowned(e Interface, reports map[vpc.InstanceID]Report) (bool, string) {
	owner := vpc.InstanceID(e.Tags[vpc.TagInstanceID])
	if e.Status != "available" {
		return false, "it is " + e.Status
	}
	created, err := time.Parse(time.RFC3339, e.Tags[vpc.TagCreatedAt])
	if err == nil && in.Now.Sub(created) < in.Policy.MinAge {
		return false, fmt.Sprintf("it was made %s ago", in.Now.Sub(created).Round(time.Second))
	}
	r, ok := reports[owner]
	if !in.Instances[owner] {
		if ok && in.Now.Sub(r.At) < in.Policy.MinAge {
			return false, "EC2 does not list its instance " + string(owner) + ", whose node reported just now"
		}
		return true, "its instance " + string(owner) + " is gone"
	}
	switch {
	case !ok:
		return false, "its instance " + string(owner) + " lives and has not reported"
	case r.Owns[e.ID]:
		return false, "the node of " + string(owner) + " counts it as its own"
	case err != nil:
		return false, "its instance " + string(owner) + " lives and nothing says when it was made"
	case r.At.Before(created.Add(in.Policy.MinAge)):
		return false, "the report of " + string(owner) + " is from before it could know of it"
	}
	return true, "the node of " + string(owner) + " does not count it as its own"
}

// confirm moves what was seen often and long enough from Wait to Delete.
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
			v.Why += fmt.Sprintf("; %d are deleted in this pass already", in.Policy.Cap)
		default:
			d.Delete = append(d.Delete, v)
			continue
		}
		wait = append(wait, v)
	}
	d.Wait = wait
}
