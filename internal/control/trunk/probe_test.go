package trunk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/sim/cloud"
)

// trunkBackoff is the back-off of the node's trunk; nil without one.
func trunkBackoff(w *world) *vpcresources.BackoffRecord {
	w.t.Helper()
	var n vpcresources.CNINode
	if !w.Get(cniAt, "n1", &n) || n.Status.Trunkline == nil {
		return nil
	}
	for _, b := range n.Status.Trunkline.Backoffs {
		if b.Key == "trunk" {
			return &b
		}
	}
	return nil
}

// Without the dry run the refusal is found when the first branch is to be associated: with a trunk
// attached and a branch created in vain.
func TestAnAccountThatMayNotUseTrunksIsFoundBeforeAPodWaits(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.elapse(10 * time.Second)
		b := trunkBackoff(w)
		if b == nil || b.Reason != "refused" || !strings.Contains(b.Message, "OperationNotPermitted") {
			w.t.Fatalf("before any pod: %+v", b)
		}
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(3 * time.Hour)
		if n := w.wire.count("CreateNetworkInterface"); n != 0 {
			w.t.Errorf("%d interfaces created in vain", n)
		}
		if n := w.wire.count("AssociateTrunkInterface (dry run)"); n < 6 || n > 8 {
			w.t.Errorf("%d dry runs in three hours", n)
		}
		if b := trunkBackoff(w); b == nil || b.Tries < 6 {
			w.t.Errorf("after three hours: %+v", b)
		}
	}, func(s *cloud.Spec) { s.Quotas.TrunkCalls = false })
}

func TestBranchesAreMadeOnceTheRoleMayAssociateThem(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.wire.inject(func(action string) string {
			if action == "AssociateTrunkInterface (dry run)" {
				return "UnauthorizedOperation"
			}
			return ""
		})
		registry := prometheus.NewRegistry()
		w.registry = registry
		w.boot()
		w.elapse(10 * time.Second)
		if b := trunkBackoff(w); b == nil || !strings.Contains(b.Message, "UnauthorizedOperation") {
			w.t.Fatalf("the role lacks the right: %+v", b)
		}
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.wire.inject(nil)
		w.elapse(31 * time.Minute)
		if b := trunkBackoff(w); b != nil || w.branch("one") == nil {
			w.t.Errorf("the role has the right: %+v, branch %+v", b, w.branch("one"))
		}
		w.start("two", "web")
		w.elapse(30 * time.Second)
		families, err := registry.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range families {
			if h := f.GetMetric()[0].GetHistogram(); f.GetName() == "trunkline_trunk_bound_seconds" {
				if h.GetSampleCount() != 2 || h.GetSampleSum() < 29*60 || h.GetSampleSum() > 32*60 {
					w.t.Errorf("%d pods in %.0f s, want two, of which one waited half an hour", h.GetSampleCount(), h.GetSampleSum())
				}
				return
			}
		}
		w.t.Error("no histogram")
	})
}
