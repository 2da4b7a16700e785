package ec2_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// TestABrakeSetWhileAReplyIsLostLeavesTheActionOpen: EC2 may have unassigned the
// addresses, so the failure must not be definite.
func TestABrakeSetWhileAReplyIsLostLeavesTheActionOpen(t *testing.T) {
	for _, brake := range []cloud.Brake{cloud.FreezeRelease, cloud.FreezeAll} {
		t.Run(string(brake), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				eni := w.attached(4, 1)
				in := w.withID(cloud.Action{Kind: cloud.UnassignAddresses, ENI: eni.ID, Addresses: eni.Addresses[:2]})
				w.wire.cut(nil, func(action string) error {
					if strings.HasPrefix(action, "Unassign") {
						w.SetBrake(brake, "")
						return errCut
					}
					return nil
				})
				out, err := w.Do(t.Context(), in)
				if !errors.Is(err, ec2.ErrOpen) || ec2.FailureOf(err).Definite {
					t.Fatalf("%+v, %v: want it open, EC2 has %v", out, err, w.describe(eni.ID).Addresses)
				}
				if open := w.journal.inFlight(); len(open) != 1 || open[0].ID != in.ID {
					t.Errorf("open in the journal: %v", open)
				}
				// The action stays open while the brake is set, also after a restart.
				if got := w.recoverAll(); !errors.Is(got[0].Err, ec2.ErrOpen) {
					t.Errorf("recovered under the brake: %+v", got[0])
				}
				w.wire.cut(nil, nil)
				w.SetBrake(cloud.BrakeOff, "")
				time.Sleep(time.Minute)
				if got := w.recoverAll(); got[0].Err != nil {
					t.Errorf("recovered: %+v", got[0])
				}
				if slices.Contains(w.describe(eni.ID).Addresses, in.Addresses[0]) {
					t.Errorf("EC2 still has %s", in.Addresses[0])
				}
			})
		})
	}
}
