package ec2_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

// denies refuses calls as EC2 does when the permission depends on the tag of an interface
// that does not exist.
func denies(action string, nth int) faults.Call {
	return faults.Call{Action: action, Do: faults.Fail, Code: "UnauthorizedOperation", Status: 403, Nth: nth, Count: -1}
}

func TestDeletingADeletedInterfaceSucceedsAlthoughPolicyDeniesTheCall(t *testing.T) {
	for _, c := range []struct {
		name   string
		before []faults.Call // faults of the first call
		took   time.Duration // at most
	}{
		{"its deletion's reply was lost", []faults.Call{{Action: "DeleteNetworkInterface", Do: faults.LoseReply}}, 5 * time.Second},
		{"another client deleted it", nil, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				eni := w.created(1)
				if c.before == nil {
					w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
				}
				w.set(faults.Plan{Calls: append(c.before, denies("DeleteNetworkInterface", len(c.before)+1))})
				began := time.Now()
				w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
				if took := time.Since(began); took > c.took {
					t.Errorf("took %s, want at most %s", took, c.took)
				}
				if r, ok := w.LastRefusal(); ok {
					t.Errorf("%v is reported as a refusal", r.Error)
				}
			})
		})
	}
}

func TestAFinishedDetachmentSucceedsAlthoughPolicyDeniesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.attached(1, 1)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "DetachNetworkInterface", Do: faults.LoseReply}, denies("DetachNetworkInterface", 2)}})
		w.do(cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: eni.Attachment.ID})
	})
}

func TestAttachingADeletedInterfaceIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		eni := w.created(1)
		w.do(cloud.Action{Kind: cloud.DeleteENI, ENI: eni.ID})
		w.set(faults.Plan{Calls: []faults.Call{denies("AttachNetworkInterface", 1)}})
		_, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.Attach, ENI: eni.ID, Instance: w.instance, Device: 1}))
		if !ec2.IsNotFound(err) {
			t.Errorf("attach a deleted interface: %v, want NotFound", err)
		}
		if r, ok := w.LastRefusal(); ok {
			t.Errorf("%v is reported as a refusal", r.Error)
		}
	})
}

func TestAMissingPermissionIsReportedWithinAMinute(t *testing.T) {
	for action, in := range map[string]func(*world) cloud.Action{
		"DeleteNetworkInterface": func(w *world) cloud.Action { return cloud.Action{Kind: cloud.DeleteENI, ENI: w.created(1).ID} },
		"AttachNetworkInterface": func(w *world) cloud.Action {
			return cloud.Action{Kind: cloud.Attach, ENI: w.created(1).ID, Instance: w.instance, Device: 1}
		},
		"DetachNetworkInterface": func(w *world) cloud.Action {
			eni := w.attached(1, 1)
			return cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: eni.Attachment.ID}
		},
	} {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				prepared := in(w)
				w.set(faults.Plan{Calls: []faults.Call{denies(action, 1)}})
				began := time.Now()
				_, err := w.Do(t.Context(), w.withID(prepared))
				if !ec2.IsUnauthorized(err) || len(w.journal.inFlight()) != 0 {
					t.Errorf("refused with %v, journal %v; want that error and nothing open", err, w.journal.inFlight())
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("reported after %s", took)
				}
				if r, ok := w.LastRefusal(); !ok || r.Action != action {
					t.Errorf("the last refusal is %v", r.Error)
				}
			})
		})
	}
}

// Before the cure the agent sent each refused call five times, every 38 seconds.
func TestACallThatPolicyDeniesIsSentOnceWhereNothingElseExplainsTheRefusal(t *testing.T) {
	for action, in := range map[string]func(*world) cloud.Action{
		"DeleteNetworkInterface": func(w *world) cloud.Action { return cloud.Action{Kind: cloud.DeleteENI, ENI: w.created(1).ID} },
		"DetachNetworkInterface": func(w *world) cloud.Action {
			eni := w.attached(1, 1)
			return cloud.Action{Kind: cloud.Detach, ENI: eni.ID, Attachment: eni.Attachment.ID}
		},
		"AssignPrivateIpAddresses": func(w *world) cloud.Action {
			return cloud.Action{Kind: cloud.AssignAddresses, ENI: w.created(1).ID, Count: 1}
		},
	} {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				prepared := in(w)
				w.set(faults.Plan{Calls: []faults.Call{denies(action, 1)}})
				before := w.wire.count(action)
				if _, err := w.Do(t.Context(), w.withID(prepared)); !ec2.IsUnauthorized(err) {
					t.Errorf("refused with %v", err)
				}
				if n := w.wire.count(action) - before; n != 1 {
					t.Errorf("%d calls, want 1", n)
				}
			})
		})
	}
}
