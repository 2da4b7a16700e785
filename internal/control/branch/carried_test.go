package branch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// EC2 is read once for all branches of the node every ten minutes, and sooner after an error or
// while a branch has other groups.
func TestTheAuditReadsTheGroupsOfBranchesAtIntervals(t *testing.T) {
	reads, fails := 0, false
	now := time.Unix(1000, 0)
	c := newCarried(func(_ context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error) {
		reads++
		if !slices.Equal(ids, []vpc.ENIID{"eni-1", "eni-2"}) {
			t.Errorf("reads %v", ids)
		}
		if fails {
			return nil, errors.New("throttled")
		}
		return map[vpc.ENIID][]vpc.SecurityGroupID{"eni-1": {"sg-b", "sg-a"}}, nil
	}, now)
	pass := func(after time.Duration, want int) (pods []securitygroup.Wired) {
		t.Helper()
		now = now.Add(after)
		before := reads
		pods = []securitygroup.Wired{{}, {Branch: "eni-1"}, {Branch: "eni-2"}}
		if err := c.enter(t.Context(), pods, now); (err != nil) != (fails && reads > before) {
			t.Errorf("error %v", err)
		}
		if reads != want {
			t.Errorf("%d reads, want %d", reads, want)
		}
		return pods
	}
	pods := pass(carriedFirst, 1)
	if !slices.Equal(pods[1].Groups, []string{"sg-a", "sg-b"}) || !pods[1].Known || pods[0].Known || pods[2].Known {
		t.Errorf("groups %+v", pods)
	}
	pass(carriedEvery-time.Second, 1)
	pass(time.Second, 2)
	// A branch has other groups from here on: after one minute, then two, four, eight, ten and ten.
	for i, pause := range []time.Duration{1, 2, 4, 8, 10, 10} {
		c.differ(true)
		pass(pause*time.Minute-time.Second, 2+i)
		c.differ(true)
		pass(time.Second, 3+i)
	}
	c.differ(false)
	fails = true
	pass(carriedEvery, 9)
	c.differ(false)
	pass(carriedAgain-time.Second, 9)
	pass(time.Second, 10)
	c.differ(false) // as in each pass of the audit
	pass(2*carriedAgain-time.Second, 10)
	if pods := pass(0, 10); !pods[1].Known {
		t.Error("an error has dropped what was read before")
	}
	fails = false
	pass(time.Second, 11)
	if err := c.enter(t.Context(), []securitygroup.Wired{{}}, now.Add(time.Hour)); err != nil || reads != 11 {
		t.Errorf("a node without branches reads EC2: %v", err)
	}
}

// The controller has not seen a policy that this node has seen: the ADD waits for the record of the groups.
func TestABranchWithOtherGroupsByTrunklinesRecordWaits(t *testing.T) {
	_, record := ownBranch()
	record.SecurityGroups = []string{"sg-node"}
	s := kubetest.New(t)
	s.Put(cniNodes, object(instance, record))
	store := statetest.Open(t, t.TempDir())
	statetest.Update(t, store, func(tx *state.Tx) error { return tx.PutNode(state.Node{Instance: instance}) })
	decided := securitygroup.Decision{Verdict: securitygroup.Selected, Groups: []string{"sg-a", "sg-b"}, Why: "selected by web"}
	c := New(Deps{State: store, Record: ownRecord(t, s), Owned: func() bool { return true }, Policies: policies{&decided}})
	pod := kube.Pod{UID: "uid-web", ServiceAccount: "default"}
	carries := func() error { return c.carries(t.Context(), pod, vpc.ENIID(record.ENIID)) }
	if err := carries(); !waits(err) || !strings.Contains(err.Error(), "selected by web") {
		t.Errorf("other groups: %v", err)
	}
	record.SecurityGroups = []string{"sg-b", "sg-a"}
	s.Put(cniNodes, object(instance, record))
	if err := carries(); err != nil {
		t.Errorf("its groups: %v", err)
	}
	decided.Verdict, decided.Groups = securitygroup.NotSelected, nil
	if err := carries(); err != nil {
		t.Errorf("not selected any more: %v", err)
	}
	if err := c.noBranch(pod); !waits(err) || !strings.Contains(err.Error(), "no SecurityGroupPolicy selects the pod") {
		t.Errorf("without an annotation: %v", err)
	}
}

type policies struct{ *securitygroup.Decision }

func (p policies) Decide(securitygroup.Pod) (securitygroup.Decision, bool) { return *p.Decision, true }
