package ipam_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// idleAfter is the idle time of a ledger after events: "detach", "unassign", "create" or
// "assign", each with its minutes from the beginning. Each is of another interface, and fails,
// which does not count.
func idleAfter(t *testing.T, configured time.Duration, events ...any) time.Duration {
	t.Helper()
	l := ipam.New(ipam.Settings{CoolDown: 30 * time.Second, IdleAfter: configured - 30*time.Second})
	for device := range 8 {
		e := given(device+1, ipam.Ready, ipam.Free, ipam.Free)
		records := []ipam.Record{{Op: ipam.PutENI, ENI: &e.ENI}}
		for _, a := range e.Addresses {
			records = append(records, ipam.Record{Op: ipam.PutAddress, Address: &a})
		}
		if err := l.Replay(records); err != nil {
			t.Fatal(err)
		}
	}
	now := epoch
	for i := 0; i < len(events); i += 2 {
		now = epoch.Add(time.Duration(events[i+1].(int)) * time.Minute)
		id := cloud.ActionID(fmt.Sprint("act-", i))
		device := i/2 + 1
		a := cloud.Action{ID: id, ENI: given(device, ipam.Ready).ID, Device: device, Subnet: "subnet-0", Count: 1}
		switch events[i] {
		case "detach":
			a.Kind = cloud.Detach
		case "unassign":
			a.Kind, a.Addresses = cloud.UnassignAddresses, []netip.Addr{addressIn(device, 1)}
		case "assign":
			a.Kind = cloud.AssignAddresses
		case "create":
			a.Kind, a.ENI, a.Device = cloud.CreateENI, "", 10+device
		}
		if _, err := l.Begin(a, now); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Fail(id, cloud.Failure{Reason: cloud.FailOther, Definite: true}, now); err != nil {
			t.Fatal(err)
		}
	}
	return l.View(now).Idle
}

func TestAReleaseThatWasTooEarlyMakesTheNextOneLater(t *testing.T) {
	short := 90 * time.Second
	for name, c := range map[string]struct {
		configured time.Duration
		events     []any
		want       time.Duration
	}{
		"no release":               {short, nil, short},
		"growth without a release": {short, []any{"create", 0, "assign", 1}, short},
		"a release":                {short, []any{"detach", 0}, short},
		"a new interface soon after a detachment": {short, []any{"detach", 0, "create", 59}, 4 * short},
		"addresses soon after a release":          {short, []any{"unassign", 0, "assign", 59}, 4 * short},
		"an hour after it":                        {short, []any{"detach", 0, "create", 60}, short},
		"growth twice after one release":          {short, []any{"detach", 0, "create", 1, "assign", 2}, 4 * short},
		"growth after two releases":               {short, []any{"detach", 0, "unassign", 1, "create", 2}, 4 * short},
		"two that were too early":                 {short, []any{"detach", 0, "create", 1, "detach", 10, "create", 11}, 16 * short},
		"three: an hour at most":                  {short, []any{"detach", 0, "create", 1, "detach", 10, "create", 11, "detach", 40, "create", 41}, time.Hour},
		"a long one that is configured":           {2 * time.Hour, []any{"detach", 0, "create", 1}, 2 * time.Hour},
		"a release within the hour":               {short, []any{"detach", 0, "create", 1, "detach", 10, "create", 11, "detach", 69}, 16 * short},
		"a release after the hour":                {short, []any{"detach", 0, "create", 1, "detach", 10, "create", 11, "detach", 70}, 4 * short},
		"two releases after an hour each":         {short, []any{"detach", 0, "create", 1, "detach", 60, "detach", 120}, short},
	} {
		t.Run(name, func(t *testing.T) {
			if got := idleAfter(t, c.configured, c.events...); got != c.want {
				t.Errorf("addresses are released after %s, want %s", got, c.want)
			}
		})
	}
}
