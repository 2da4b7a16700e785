package controller

import (
	"net/http"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/faults"
)

func TestADryRunBindsNothing(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("n1", r.alive)
	o := r.c.o
	o.DryRun = true
	if err := newBinder(o).pass(t.Context(), r.at); err != nil || r.bound(r.alive) != "" {
		t.Errorf("%v, bound to %q", err, r.bound(r.alive))
	}
	if calls := r.calls.Since(0, "CreateTags"); len(calls) > 0 {
		t.Errorf("%d tags written, want none", len(calls))
	}
}

// Each start of the controller meets interfaces that an earlier one has bound.
func TestAnInterfaceThatIsBoundIsNotTaggedAgain(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	r.node("n1", r.alive)
	for range 2 {
		if err := newBinder(r.c.o).pass(t.Context(), r.at); err != nil {
			t.Fatal(err)
		}
	}
	if calls := r.calls.Since(0, "CreateTags"); len(calls) != 1 {
		t.Errorf("%d tags written by two controllers, want one", len(calls))
	}
}

// An instance can leave the cluster and join it again with the tag removed.
func TestANodeThatReturnsIsBoundAgain(t *testing.T) {
	r := newRealRig(t, shippedPolicy(t))
	b := newBinder(r.c.o)
	pass := func() {
		t.Helper()
		if err := b.pass(t.Context(), r.at); err != nil {
			t.Fatal(err)
		}
	}
	r.node("n1", r.alive)
	pass()
	r.Delete(nodes, "n1")
	pass()
	primary := string(r.cloud.State().Primary(r.alive).ID)
	if err := r.cloud.Untag([]string{primary}, map[string]*string{vpc.TagInstanceID: nil}); err != nil {
		t.Fatal(err)
	}
	r.node("n1", r.alive)
	pass()
	if got := r.bound(r.alive); got != string(r.alive) {
		t.Errorf("bound to %q, want %s", got, r.alive)
	}
}

// A failed read is repeated in the next pass, and is no state in which nothing is due.
func TestAPassThatReadsNothingIsAnError(t *testing.T) {
	for name, refuse := range map[string]func(r *realRig){
		"the API server refuses brakes": func(r *realRig) { r.Refuse("/apis/trunkline.dev/v1alpha1/brakes", http.StatusForbidden) },
		"the API server refuses nodes":  func(r *realRig) { r.Refuse(nodes, http.StatusForbidden) },
		"EC2 refuses": func(r *realRig) {
			r.set(faults.Plan{Calls: []faults.Call{{Action: "DescribeNetworkInterfaces", Do: faults.Fail, Code: "UnauthorizedOperation", Status: 403, Count: -1}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRealRig(t, shippedPolicy(t))
			r.node("n1", r.alive)
			b := newBinder(r.c.o)
			refuse(r)
			if err := b.pass(t.Context(), r.at); err == nil {
				t.Error("no error")
			}
			r.set(faults.Plan{})
			r.Refuse("/apis/trunkline.dev/v1alpha1/brakes", 0)
			r.Refuse(nodes, 0)
			if err := b.pass(t.Context(), r.at.Add(time.Hour)); err != nil || r.bound(r.alive) != string(r.alive) {
				t.Errorf("once it answers: %v, bound to %q", err, r.bound(r.alive))
			}
		})
	}
}
