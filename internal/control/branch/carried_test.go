package branch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// EC2 is read once for all branches of the node every ten minutes, and each minute after an error or
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
	c.again()
	pass(0, 2)
	c.again()
	pass(carriedAgain-time.Second, 2)
	fails = true
	pass(time.Second, 3)
	pass(carriedAgain-time.Second, 3)
	if pods := pass(0, 3); !pods[1].Known {
		t.Error("an error has dropped what was read before")
	}
	fails = false
	pass(time.Second, 4)
	if err := c.enter(t.Context(), []securitygroup.Wired{{}}, now.Add(time.Hour)); err != nil || reads != 4 {
		t.Errorf("a node without branches reads EC2: %v", err)
	}
}
