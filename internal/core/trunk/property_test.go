package trunk_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func drawConfig(t *rapid.T) trunk.Config {
	c := trunk.DefaultConfig()
	c.MinAge = 2 * time.Minute
	if rapid.Bool().Draw(t, "quarantine") {
		c.Quarantine = trunk.NewGroups("sg-deny")
		c.WarmFrom = rapid.SampledFrom([]int{1, 18}).Draw(t, "warmFrom")
		c.Warm = rapid.IntRange(0, 4).Draw(t, "warm")
		if n := rapid.IntRange(0, 2).Draw(t, "exact"); n > 0 {
			c.Exact = []trunk.Exact{{Groups: trunk.NewGroups("sg-a"), Count: n}}
		}
	}
	return c
}

// drawGroups are few, so that pods share them.
func drawGroups(t *rapid.T) []vpc.SecurityGroupID {
	return rapid.SampledFrom([][]vpc.SecurityGroupID{{"sg-a"}, {"sg-b"}, {"sg-b", "sg-a"}, {"sg-a", "sg-b", "sg-b"}}).Draw(t, "groups")
}

// TestNoVLANIsHeldTwiceAndNoPodIsUnprotected drives a node with pods that come, change their
// groups and end, with calls and replies that are lost, throttling, restarts, stale descriptions,
// stale watches, leaked branches and brakes. The simulation and the world check the guarantees at
// every call and step. At the end every pod that the node has a branch for is bound with exactly
// its groups, the plan is at its fixpoint, and once all pods have ended no branch is left beyond
// the warm ones; none at all once the instance is terminated.
func TestNoVLANIsHeldTwiceAndNoPodIsUnprotected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{1, 3, 9, 18, 30}).Draw(t, "limit")
		w := newWorld(t, drawConfig(t), limit,
			trunk.Subnet{ID: "subnet-a", Total: 12, Free: rapid.IntRange(2, 12).Draw(t, "free")}, trunk.Subnet{ID: "subnet-b", Total: 60, Free: 60})
		if rapid.Bool().Draw(t, "ready") {
			w.settle()
		}
		faults := append(slices.Repeat([]string{""}, rapid.IntRange(1, 12).Draw(t, "good")), "reply lost", "call lost", string(trunk.FailThrottled))
		w.fault = func(trunk.Action) string { return rapid.SampledFrom(faults).Draw(t, "fault") }
		drive := func(t *rapid.T) {
			for range rapid.IntRange(1, 8).Draw(t, "rounds") {
				w.begin()
				w.finishAll()
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			}
		}
		pick := func(t *rapid.T) *pod {
			var live []*pod
			for _, p := range w.pods {
				if !p.Ended {
					live = append(live, p)
				}
			}
			if len(live) == 0 {
				return nil
			}
			return rapid.SampledFrom(live).Draw(t, "pod")
		}
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				for range rapid.IntRange(1, 5).Draw(t, "pods") {
					w.start(len(w.pods), drawGroups(t)...)
				}
			},
			"change": func(t *rapid.T) {
				if p := pick(t); p != nil {
					w.change(p, drawGroups(t)...)
				}
			},
			"end": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "pods") {
					if p := pick(t); p != nil {
						w.end(p)
					}
				}
			},
			"hide": func(t *rapid.T) { // the watch shows other pods than before
				for _, p := range w.pods {
					p.hidden = rapid.Bool().Draw(t, "hidden")
				}
				w.begin()
				for _, p := range w.pods {
					p.hidden = false
				}
			},
			"drive":       drive,
			"drive again": drive, // more often than the others
			"drive on":    drive,
			"plan":        func(*rapid.T) { w.begin() },
			"finish": func(t *rapid.T) {
				for range min(len(w.flights), rapid.IntRange(1, 6).Draw(t, "calls")) {
					w.finish(rapid.IntRange(0, len(w.flights)-1).Draw(t, "which"))
				}
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			},
			"restart": func(t *rapid.T) {
				w.restart(func(trunk.Action) bool { return rapid.Bool().Draw(t, "arrives") })
			},
			"observe": func(t *rapid.T) {
				w.observe(time.Duration(rapid.IntRange(0, 30).Draw(t, "stale")) * time.Second)
			},
			"brake": func(t *rapid.T) {
				w.brake = rapid.SampledFrom([]cloud.Brake{cloud.BrakeOff, cloud.BrakeOff, cloud.FreezeRelease, cloud.FreezeAll}).Draw(t, "brake")
			},
			"tamper": func(t *rapid.T) { // another program changes the groups, or ends the association
				var own []*eni
				for _, e := range w.ec2.branches() {
					if e.Association != "" && !e.leaked && (w.ec2.used(e) || !e.dirty) {
						own = append(own, e)
					}
				}
				if len(own) == 0 {
					return
				}
				e := rapid.SampledFrom(own).Draw(t, "branch")
				e.tampered = true
				if rapid.Bool().Draw(t, "disassociate") {
					e.Association, e.VLAN = "", 0
				} else {
					e.Groups, e.quiet = trunk.NewGroups("sg-other"), time.Time{}
				}
			},
			"leak": func(t *rapid.T) { w.leak(rapid.IntRange(1, 120).Draw(t, "vlan")) },
		})
		w.fault, w.brake = func(trunk.Action) string { return "" }, cloud.BrakeOff
		w.finishAll()
		w.pass(25*time.Minute, time.Minute)
		for _, e := range w.ec2.branches() {
			e.tampered = false
		}
		w.check()
		served(t, w)
		if n := w.begin(); n != 0 {
			t.Fatalf("not at the fixpoint: %s", w.decided)
		}
		for _, p := range w.pods {
			w.end(p)
		}
		w.pass(30*time.Minute, time.Minute)
		if got, most := len(w.ec2.branches()), warmest(w); got > most {
			t.Fatalf("%d branches are left, at most %d are kept warm\n%s\n%s", got, most, w.state, w.decided)
		}
		w.ec2.ended = true
		w.pass(5*time.Minute, time.Minute)
		if got := len(w.ec2.branches()); got > 0 || len(w.state.Branches) > 0 {
			t.Fatalf("%d branches are left of a terminated instance\n%s\n%s", got, w.state, w.decided)
		}
	})
}

// leak makes a branch that no state has.
func (w *world) leak(vlan int) {
	taken := 0
	for _, e := range w.ec2.branches() {
		if e.Association != "" {
			taken++
		}
		if e.VLAN == vlan || e.leaked {
			return
		}
	}
	if taken >= w.ec2.limits.Branches {
		return
	}
	w.ec2.subnet("subnet-b").Free--
	e := w.ec2.make(vpc.TypeBranch, "subnet-b", "", trunk.NewGroups("sg-a"), w.now)
	e.Association, e.VLAN, e.leaked = "trunk-assoc-leaked", vlan, true
}

func warmest(w *world) int {
	if w.ec2.limits.Branches < w.c.WarmFrom {
		return 0
	}
	n := w.c.Warm
	for _, e := range w.c.Exact {
		n += e.Count
	}
	return min(n, 2*w.ec2.limits.Branches/3)
}

// served fails the test if a pod has other groups than it wants, or no branch although the node
// can have one more.
func served(t *rapid.T, w *world) {
	live, bound := 0, 0
	for _, p := range w.pods {
		if p.Ended {
			continue
		}
		live++
		e := w.of(p)
		if e == nil {
			continue
		}
		bound++
		if !e.Groups.Equal(p.Groups) {
			t.Fatalf("%s has %s, it wants %s\n%s\n%s", p.UID, e.Groups, p.Groups, w.state, w.decided)
		}
	}
	if want := min(live, w.ec2.limits.Branches); bound != want {
		t.Fatalf("%d of %d pods are bound, want %d\n%s\n%s", bound, live, want, w.state, w.decided)
	}
}
