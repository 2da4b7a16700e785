package trunk

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// A time that has passed, of something that a pass could not do, does not have the passes follow each other.
func TestTheNextPassIsNeverDueInThePast(t *testing.T) {
	now := time.Unix(1000, 0)
	past, later := now.Add(-time.Second), now.Add(time.Minute)
	n := &node{}
	n.times.host, n.times.observe, n.times.gone, n.seen.custom.recheck = past, past, past, past
	if got := n.next(core.Decision{}, now); !got.IsZero() {
		t.Errorf("the next pass is due at %s", got)
	}
	n.times.observe = later
	if got := n.next(core.Decision{}, now); !got.Equal(later) {
		t.Errorf("the next pass is due at %s, want %s", got, later)
	}
	n.times.bound = now
	if got := n.next(core.Decision{Next: later.Add(-time.Second)}, now); !got.Equal(now.Add(boundWithin)) {
		t.Errorf("the next pass is due at %s, want that which writes a binding", got)
	}
}

func TestEachProblemOfANodeIsReportedAndRepeatedBeforeItsEventExpires(t *testing.T) {
	reporter, epoch := waits{}, time.Unix(1_000_000, 0)
	of := func(whys ...string) (problems []core.Problem) {
		problems = []core.Problem{{Pod: "pod", Why: "its subnet is full"}, {Pod: "pod", Why: "of less weight"}}
		for _, why := range whys {
			problems = append(problems, core.Problem{Why: why})
		}
		return problems
	}
	for _, tt := range []struct {
		after    time.Duration
		problems []core.Problem
		want     []string
		next     time.Duration
	}{
		{0, of("one", "two"), nil, 10 * time.Second},
		{10 * time.Second, of("one", "two"), []string{"its subnet is full", "one; two"}, 10*time.Second + 55*time.Minute},
		{20 * time.Second, of("one", "two", "three"), nil, 70 * time.Second},
		{70 * time.Second, of("one", "two", "three"), []string{"one; two; three"}, 10*time.Second + 55*time.Minute},
		{time.Hour, of("one", "two", "three"), []string{"its subnet is full", "one; two; three"}, time.Hour + 55*time.Minute},
		{time.Hour + time.Second, nil, nil, 0},
		{time.Hour + 2*time.Second, of("one"), nil, time.Hour + 12*time.Second},
	} {
		report, next := reporter.update(tt.problems, epoch.Add(tt.after))
		var got []string
		for _, p := range report {
			got = append(got, p.Why)
		}
		want := time.Time{}
		if tt.next > 0 {
			want = epoch.Add(tt.next)
		}
		if !slices.Equal(got, tt.want) || !next.Equal(want) {
			t.Errorf("after %v: reported %q, want %q; next after %v, want %v", tt.after, got, tt.want, next.Sub(epoch), tt.next)
		}
	}
}

// What the next process would refuse is no record of a call.
func TestAnInvalidRecordIsNotWritten(t *testing.T) {
	client, err := kube.FromREST(kubetest.New(t).REST())
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecord("i-0123456789abcdef0")
	n := &node{c: &Controller{o: Options{Events: kube.NewEvents(client.Core, "")}}, name: "n1", rec: rec, written: written{object: &vpcresources.CNINode{}}}
	s := rec.state
	for _, id := range []core.BranchID{"one", "two"} {
		s.Branches[id] = core.Branch{ID: id, ENI: "eni-0123456789abcdef0", Stage: core.Tagging, Subnet: "subnet-0123456789abcdef0", Since: time.Unix(1000, 0), Changed: time.Unix(1000, 0)}
	}
	if err := n.write(t.Context(), &vpcresources.CNINode{}, s); !errors.Is(err, vpcresources.ErrHeldTwice) {
		t.Errorf("two branches with one interface: %v", err)
	}
	if !strings.Contains(n.said.record, "eni-0123456789abcdef0") {
		t.Errorf("reported: %q", n.said.record)
	}
}
