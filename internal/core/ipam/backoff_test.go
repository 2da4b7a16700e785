package ipam_test

import (
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// nextProcess replays the journal into the ledger of another process.
func nextProcess(t *testing.T, w *world) *ipam.Ledger {
	t.Helper()
	next := ipam.New(w.config.Settings())
	if err := next.Replay(w.ledger.Records()); err != nil {
		t.Fatal(err)
	}
	next.Restart(w.now)
	return next
}

// refusedOften has EC2 refuse an action several times, each once the pause of the one before is
// over.
func (w *world) refusedOften(t *testing.T, why cloud.FailReason) ipam.Backoff {
	t.Helper()
	var last ipam.Backoff
	for range 5 {
		a := cloud.Action{ID: "refused", Kind: cloud.AssignAddresses, ENI: "eni-00", Count: 1, Why: "a test"}
		if _, err := w.ledger.Begin(a, w.now); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Fail(a.ID, *failed(why, "no"), w.now); err != nil {
			t.Fatal(err)
		}
		last = w.ledger.View(w.now).Backoffs[0]
		if w.now = last.Until; last.Tries == 5 {
			w.now = last.Since
		}
	}
	return last
}

// An agent that crashes again and again would otherwise repeat a refused call at each start. A
// person who restarts it, because the cause has ended, waits for a minute at most.
func TestABackoffOfAnyCauseSurvivesARestart(t *testing.T) {
	for _, why := range append(causes(), cloud.FailSubnetExhausted, cloud.FailENILimit) {
		w := testWorld(t, m5xlarge(), nil)
		w.quick = true
		before := w.refusedOften(t, why)
		if latest := w.now.Add(time.Minute); before.Until.After(latest) {
			before.Until = latest
		}
		after := nextProcess(t, w).View(w.now).Backoffs
		if len(after) != 1 || after[0] != before {
			t.Errorf("%s: back-offs %+v after a restart, want %+v", why, after, before)
		}
	}
}

// A describe that EC2 answered shows that the credentials are valid again.
func TestAnObservationEndsTheBackoffsOfRefusedCredentials(t *testing.T) {
	for why, ended := range map[cloud.FailReason]bool{
		cloud.FailCredentials: true, cloud.FailThrottled: false, cloud.FailUnauthorized: false, cloud.FailOther: false,
	} {
		w := testWorld(t, m5xlarge(), nil)
		w.quick = true
		w.refusedOften(t, why)
		w.observe()
		if left := w.ledger.View(w.now).Backoffs; (len(left) == 0) != ended {
			t.Errorf("%s: back-offs %+v after an observation, want ended: %v", why, left, ended)
		}
	}
}

func TestASuccessEndsTheBackoffsOfRefusedCredentialsOfOtherActions(t *testing.T) {
	w := testWorld(t, m5xlarge(), nil)
	w.quick = true
	w.refusedOften(t, cloud.FailCredentials)
	create := cloud.Action{ID: "c", Kind: cloud.CreateENI, Subnet: w.ec2.subnets[0].id, SubnetCIDR: w.ec2.subnets[0].cidr, Count: 1, Why: "a test"}
	if _, err := w.ledger.Begin(create, w.now); err != nil {
		t.Fatal(err)
	}
	result, failure := w.ec2.execute(create, w.now)
	if failure != nil {
		t.Fatalf("%+v", failure)
	}
	if _, err := w.ledger.Settle("c", result, w.now); err != nil {
		t.Fatal(err)
	}
	if left := w.ledger.View(w.now).Backoffs; len(left) > 0 {
		t.Errorf("back-offs %+v after EC2 accepted the credentials", left)
	}
}

// Its first pause after a restart with a clock that was set back is the longest one at most.
func TestAClockSetBackKeepsTheBackoffOfARefusalForPermission(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailUnauthorized)
	before := w.ledger.View(w.now).Backoffs
	w.pass(before[0].Until.Sub(w.now)+time.Second, time.Second) // the second refusal: two minutes
	w.pass(w.ledger.View(w.now).Backoffs[0].Until.Sub(w.now)+time.Second, time.Second)
	b := w.ledger.View(w.now).Backoffs[0]
	w.now = w.now.Add(-24 * time.Hour)
	left := nextProcess(t, w).View(w.now).Backoffs
	if pause := b.Until.Sub(b.Since); pause != 4*time.Minute || len(left) != 1 || left[0].Tries != b.Tries || left[0].Until.Sub(w.now) > 16*time.Minute {
		t.Errorf("back-off %+v (a pause of %s) became %+v at %s", b, pause, left, w.now)
	}
}

// Another program attached it elsewhere. Each run of the action makes several calls.
func TestADeletionOfAnInterfaceInUseIsRepeatedLessAndLessOftenAndNamed(t *testing.T) {
	w := withRefusedDetach(t, cloud.FailOther)
	id := w.ledger.View(w.now).ENIs[1].ID
	w.ec2.refuse = func(a cloud.Action) *cloud.Failure {
		if a.Kind == cloud.DeleteENI {
			return failed(cloud.FailInUse, "Network interface is currently in use.")
		}
		return nil
	}
	w.pass(2*time.Hour, 5*time.Second)
	if n := w.ec2.calls[cloud.DeleteENI]; n < 5 || n > 12 {
		t.Errorf("%d deletions tried within two hours, want 5 to 12: after 1, 2, 4, 8 and then 16 minutes", n)
	}
	if why := w.ledger.View(w.now).Denied(id); !strings.Contains(why, "EC2 refuses DeleteENI because it is attached: Network interface is currently in use., tried ") {
		t.Errorf("the interface says %q", why)
	}
}
