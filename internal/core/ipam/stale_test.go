package ipam_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/ipam"
)

// described is what EC2 had at a time.
type described struct {
	at   time.Time
	seen []ipam.Observed
}

// TestAStaleDescribeNeitherFreesNorAddsAddresses drives a node with random pods, and observes
// EC2 by describes that are up to a minute old. Nothing but the node changes EC2, so an address
// that the ledger has as free must be on its interface at EC2, and one in use stays in use.
func TestAStaleDescribeNeitherFreesNorAddsAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.CoolDown, c.IdleAfter, c.ReleaseEvery, c.DemandFor = 5*time.Second, 10*time.Second, time.Second, 20*time.Second
		c.MinENIAge = time.Second
		w := newWorld(t, drawLimits(t), c, rapid.IntRange(10, 70).Draw(t, "size"))
		w.quick = true
		history := []described{{w.now, w.ec2.describe()}}
		live, next := []int{}, 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				history = append(history, described{w.now, w.ec2.describe()})
				for _, e := range w.ledger.View(w.now).ENIs {
					for _, a := range e.Addresses {
						if at := w.ec2.enis[e.ID]; a.State == ipam.Free && (at == nil || !at.addrs[a.Addr]) {
							t.Fatalf("%s is free, and EC2 does not have it on %s", a.Addr, e.ID)
						}
					}
				}
			},
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "pods") {
					w.bind(next)
					if _, err := w.add(next); err == nil {
						live = append(live, next)
					}
					next++
				}
			},
			"del": func(t *rapid.T) {
				for range min(len(live), rapid.IntRange(1, 12).Draw(t, "pods")) {
					w.del(live[0])
					live = live[1:]
				}
			},
			"begin": func(*rapid.T) { w.begin() },
			"finish": func(t *rapid.T) {
				if n := len(w.flights); n > 0 {
					w.finish(rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
			"observe": func(t *rapid.T) {
				age := time.Duration(rapid.IntRange(0, 59).Draw(t, "age")) * time.Second
				i := slices.IndexFunc(history, func(d described) bool { return d.at.After(w.now.Add(-age)) })
				if i < 0 {
					i = len(history)
				}
				w.ledger.Observe(history[max(0, i-1)].seen, w.now)
				w.check()
			},
		})
	})
}
