package ipam_test

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// TestNoPlanChangesBeforeItsNextTime brings a node into a random state and then stops
// all events. Before Decision.Next, a plan made at any second must have no action and
// the same Condition.CanAdd.
func TestNoPlanChangesBeforeItsNextTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.IdleAfter, c.ReleaseEvery, c.DemandFor = 60*time.Second, 10*time.Second, 2*time.Minute
		w := newWorld(t, drawLimits(t), c, rapid.IntRange(4, 70).Draw(t, "size"))
		w.quick = true // TestNoAddressIsHeldTwiceAndAllPodsAreServed replays
		next := 0
		var live []int
		t.Repeat(map[string]func(*rapid.T){
			"bind": func(t *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(t, "pods") {
					w.bind(next)
					if _, err := w.add(next); err == nil {
						live = append(live, next)
					}
					next++
				}
			},
			"del": func(t *rapid.T) {
				for range min(len(live), rapid.IntRange(1, 10).Draw(t, "pods")) {
					w.del(live[0])
					live = live[1:]
				}
			},
			"settle": func(*rapid.T) { w.settle() },
			"refused": func(t *rapid.T) {
				why := rapid.SampledFrom([]cloud.FailReason{cloud.FailOther, cloud.FailSubnetExhausted, cloud.FailENILimit}).Draw(t, "why")
				w.ec2.refuse = func(a cloud.Action) *cloud.Failure { return failed(why, "no") }
				w.begin()
				w.finishAll()
				w.ec2.refuse = nil
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 100).Draw(t, "seconds")) * time.Second)
			},
		})
		w.settle()
		wakes := 0
		for end := w.now.Add(8 * time.Minute); w.now.Before(end); {
			was := w.decided
			w.now = w.now.Add(time.Second)
			due := !was.Next.IsZero() && !w.now.Before(was.Next)
			if now := ipam.Plan(w.snapshot(), w.config, w.now); !due && (len(now.Actions) > 0 || now.Condition.CanAdd != was.Condition.CanAdd) {
				t.Fatalf("the plan changed at %s, before the announced %s:\n%s\nbefore:\n%s\n%s", w.now, was.Next, now, was, w.snapshot())
			}
			if due {
				wakes++
				w.settle()
			}
		}
		if wakes > 120 {
			t.Errorf("%d plans in eight minutes without an event, want at most 120", wakes)
		}
	})
}

func TestThePlanIsDueWhenThePeakOfTheIdleTimeFalls(t *testing.T) {
	w := testWorld(t, m5xlarge(), func(c *ipam.Config) {
		c.WarmIPs, c.Headroom, c.CoolDown, c.IdleAfter, c.ReleaseEvery = 1, 0, 30*time.Second, time.Minute, time.Second
	})
	for n := range 10 {
		w.bind(n)
		w.settle()
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	w.now = w.now.Add(10 * time.Minute)
	w.settle()
	gone := w.now
	for n := range 10 {
		w.del(n)
	}
	w.settle()
	// The peak falls one idle time, with jitter, after the cool-downs of 30 s end.
	idle := w.config.Settings().IdleAfter
	if want := gone.Add(30*time.Second + idle); !w.decided.Next.Equal(want) {
		t.Errorf("plans again at %s, want %s, %s after the pods were deleted\n%s", w.decided.Next, want, want.Sub(gone), w.decided)
	}
	w.now = w.decided.Next
	if w.begin() == 0 || w.decided.Actions[0].Kind != cloud.UnassignAddresses {
		t.Errorf("at that time: %s", w.decided)
	}
}

// A row without an end must not keep the cool-downs after it from ending.
func TestACoolDownWithoutAnEndIsOver(t *testing.T) {
	l := ipam.New(ipam.DefaultConfig().Settings())
	address := func(addr string, until time.Time) ipam.Record {
		return ipam.Record{Op: ipam.PutAddress, Address: &ipam.Address{Addr: netip.MustParseAddr(addr), ENI: "eni-1", State: ipam.Cooling, Until: until}}
	}
	err := l.Replay([]ipam.Record{
		{Op: ipam.PutENI, ENI: &ipam.ENI{ID: "eni-1", Type: vpc.TypeInterface, Primary: true, Phase: ipam.Ready}},
		address("10.0.0.7", time.Time{}), address("10.0.0.8", epoch),
	})
	if err != nil {
		t.Fatal(err)
	}
	if e := l.View(epoch.Add(time.Second)).ENIs[0]; e.Count(ipam.Free) != 2 {
		t.Errorf("both cool-downs are over; the addresses are %v", e.Addresses)
	}
}
