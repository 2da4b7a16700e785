package ipam_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

func drawConfig(t *rapid.T) ipam.Config {
	c := ipam.DefaultConfig()
	switch rapid.IntRange(0, 2).Draw(t, "warmth") {
	case 0:
		c.WarmIPs, c.Headroom = rapid.IntRange(0, 10).Draw(t, "warm"), rapid.IntRange(0, 10).Draw(t, "headroom")
	case 1:
		c.WarmIPs, c.Headroom, c.WarmENIs = 0, 0, rapid.IntRange(1, 2).Draw(t, "warmENIs")
	case 2:
		c.MinIPs = rapid.IntRange(0, 40).Draw(t, "min")
	}
	c.MaxENIs = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "maxENIs")
	c.Seed = rapid.Uint64().Draw(t, "seed")
	return c
}

func drawLimits(t *rapid.T) ipam.Limits {
	return ipam.Limits{
		ENIs: rapid.IntRange(1, 4).Draw(t, "enis"), AddressesPerENI: rapid.IntRange(2, 15).Draw(t, "perENI"),
		MaxPods: rapid.SampledFrom([]int{0, 8, 58}).Draw(t, "maxPods"),
	}
}

// TestNoAddressIsHeldTwiceAndAllPodsAreServed drives a node with random pods, delays,
// orders of completion and refusals. The world checks after each step that no address
// has two holders, that none in use is released, that no limit is exceeded and that the
// replayed ledger is equal. At the end the node must reach its fixpoint and have served
// every pod that it has capacity for.
func TestNoAddressIsHeldTwiceAndAllPodsAreServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := drawLimits(t)
		w := newWorld(t, limits, drawConfig(t), rapid.IntRange(4, 70).Draw(t, "size0"), rapid.IntRange(0, 70).Draw(t, "size1"))
		refusals := rapid.IntRange(0, 6).Draw(t, "refusals")
		w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
			if refusals == 0 || !rapid.Bool().Draw(t, "refuse") {
				return nil
			}
			refusals--
			return &cloud.Failure{
				Reason:   rapid.SampledFrom([]cloud.FailReason{cloud.FailThrottled, cloud.FailOther, cloud.FailSubnetExhausted}).Draw(t, "why"),
				Definite: rapid.Bool().Draw(t, "definite"),
			}
		}
		live, next := []int{}, 0
		t.Repeat(map[string]func(*rapid.T){
			"bind": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "pods") {
					w.bind(next)
					next++
				}
			},
			"add": func(t *rapid.T) {
				for _, p := range slices.Clone(w.pending) {
					var n int
					fmt.Sscanf(p.UID, "uid-%d", &n)
					if _, err := w.add(n); err != nil {
						break
					}
					live = append(live, n)
				}
			},
			"del": func(t *rapid.T) {
				for range min(len(live), rapid.IntRange(1, 20).Draw(t, "pods")) {
					i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
					w.del(live[i])
					live = slices.Delete(live, i, i+1)
				}
			},
			"plan":   func(*rapid.T) { w.begin() },
			"settle": func(*rapid.T) { w.settle() },
			"finish": func(t *rapid.T) {
				if len(w.flights) > 0 {
					w.finish(rapid.IntRange(0, len(w.flights)-1).Draw(t, "which"))
				}
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
			},
			"restart": func(t *rapid.T) { // only the journal is kept
				w.ledger, w.shadow = w.shadow, ipam.New(w.config.Settings())
				if err := w.shadow.Replay(w.ledger.Records()); err != nil {
					t.Fatal(err)
				}
				w.journal(w.ledger.Restart(w.now))
				w.flights = w.ledger.View(w.now).InFlight
			},
		})
		w.finishAll()
		refusals = 0
		for i := range w.pending {
			w.pending[i].Waiting = true
		}
		w.pass(5*time.Minute, 30*time.Second)
		serve(t, w)
		w.pass(30*time.Minute, 2*time.Minute)
		if n := w.begin(); n != 0 {
			t.Fatalf("not at the fixpoint: %s", w.decided)
		}
	})
}

// serve adds every pending pod and fails if one gets no address although EC2 has
// capacity for it.
func serve(t *rapid.T, w *world) {
	for range 20 {
		for _, p := range slices.Clone(w.pending) {
			var n int
			fmt.Sscanf(p.UID, "uid-%d", &n)
			if _, err := w.add(n); err != nil {
				break
			}
		}
		w.pass(40*time.Second, 10*time.Second)
	}
	if len(w.pending) == 0 {
		return
	}
	n := w.decided.Numbers
	if w.ec2.limits.MaxPods > 0 && n.Assigned >= w.ec2.limits.MaxPods {
		return
	}
	for _, e := range w.ec2.enis {
		if len(e.addrs) < w.ec2.limits.AddressesPerENI-1 && e.subnet.free() > 0 {
			t.Fatalf("%d pods are not served although %s has free slots\n%s\n%s", len(w.pending), e.id, w.snapshot(), w.decided)
		}
	}
	for _, s := range w.ec2.subnets {
		if len(w.ec2.enis) < n.MaxENIs && s.free() >= 2 {
			t.Fatalf("%d pods are not served although %s has free addresses\n%s\n%s", len(w.pending), s.id, w.snapshot(), w.decided)
		}
	}
}

// TestChurnAtAConstantNumberOfPodsMakesNoCalls: after the first idle time the pool
// neither grows nor shrinks.
func TestChurnAtAConstantNumberOfPodsMakesNoCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, m5xlarge(), drawConfig(t))
		w.quick = true // TestNoAddressIsHeldTwiceAndAllPodsAreServed replays
		pods := rapid.IntRange(1, 25).Draw(t, "pods")
		every := time.Duration(rapid.IntRange(30, 90).Draw(t, "every")) * time.Second
		batch := rapid.IntRange(1, min(pods, 5)).Draw(t, "batch")
		next, oldest := 0, 0
		start := func() {
			w.bind(next)
			for range 50 {
				w.settle()
				if _, err := w.add(next); err == nil {
					break
				}
				w.now = w.now.Add(5 * time.Second)
			}
			next++
		}
		for range pods {
			start()
		}
		churn := func(d time.Duration) {
			for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(every) {
				for range batch {
					w.del(oldest)
					oldest++
				}
				for range batch {
					start()
				}
				w.settle()
			}
		}
		churn(8 * time.Minute)
		w.ec2.calls = make(map[cloud.Kind]int)
		churn(6 * time.Minute)
		if len(w.ec2.calls) != 0 {
			t.Fatalf("calls in the steady state: %v\n%s\n%s", w.ec2.calls, w.snapshot(), w.decided)
		}
	})
}

// TestABurstUsesTheFewestCallsPossible compares the plan for a burst with an exhaustive
// search over which interfaces to grow and how many to create.
func TestABurstUsesTheFewestCallsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := ipam.Limits{ENIs: rapid.IntRange(1, 8).Draw(t, "enis"), AddressesPerENI: rapid.IntRange(2, 15).Draw(t, "perENI")}
		c := ipam.DefaultConfig()
		c.WarmIPs, c.Headroom = 0, 0
		w := newWorld(t, limits, c)
		var slots []int
		for range rapid.IntRange(0, limits.ENIs-1).Draw(t, "more") {
			e := w.ec2.makeENI(w.ec2.subnets[0], rapid.IntRange(0, limits.AddressesPerENI-1).Draw(t, "full"), w.now)
			e.attached, e.device = true, len(w.ec2.enis)-1
		}
		w.ledger = ipam.New(c.Settings())
		w.shadow = ipam.New(c.Settings())
		w.observe()
		w.settle() // interfaces are set up
		have := 0
		for _, e := range w.ec2.enis {
			slots = append(slots, limits.AddressesPerENI-1-len(e.addrs))
			have += len(e.addrs)
		}
		pods := rapid.IntRange(0, 120).Draw(t, "pods")
		for n := range pods {
			w.bind(n)
		}
		w.begin()
		short := min(pods, limits.ENIs*(limits.AddressesPerENI-1)) - have
		got, requested := 0, 0
		for _, a := range w.decided.Actions {
			if a.Kind == cloud.AssignAddresses || a.Kind == cloud.CreateENI {
				got++
				requested += a.Count
			}
		}
		if requested != max(0, short) {
			t.Fatalf("requests %d addresses, want %d\n%s", requested, short, w.decided)
		}
		if want := fewest(slots, short, limits.AddressesPerENI-1); got != want {
			t.Fatalf("%d calls for %d addresses with free slots %v, want %d\n%s", got, short, slots, want, w.decided)
		}
	})
}

// fewest is the fewest calls by trying every subset of interfaces. Free slots are used
// before a new interface is created, which takes seconds and one more address.
func fewest(slots []int, short, perENI int) int {
	if short <= 0 {
		return 0
	}
	best, total, usable := len(slots)+1, 0, 0
	for _, r := range slots {
		total += r
		if r > 0 {
			usable++
		}
	}
	if total < short {
		return usable + (short-total+perENI-1)/perENI
	}
	for set := range 1 << len(slots) {
		sum, n := 0, 0
		for i, r := range slots {
			if set>>i&1 == 1 {
				sum += r
				n++
			}
		}
		if sum >= short {
			best = min(best, n)
		}
	}
	return best
}
