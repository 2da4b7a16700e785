package trunk

import (
	"fmt"
	"time"
)

// Config is the operator's configuration. DefaultConfig holds the defaults.
type Config struct {
	// Quarantine is the deny-all group of branches that no pod uses. Without it no branch is
	// kept warm and none is used again.
	Quarantine Groups
	// Warm is how many quarantined branches are kept for pods to come.
	Warm int
	// Exact are the branches that are kept with the groups of pods to come.
	Exact []Exact
	// WarmFrom is the least number of branches of an instance type at which branches are kept
	// warm: on a smaller instance, each is needed by pods.
	WarmFrom int
	// CoolDown is how long no pod uses a branch after its pod, and no branch a VLAN after its
	// branch.
	CoolDown time.Duration
	// IdleAfter is how long a branch beyond the warm ones is kept.
	IdleAfter time.Duration
	// MinAge is how old an unowned branch must be before it is deleted, and how long EC2 may
	// not show what it has created.
	MinAge time.Duration
	// Collect is the most unowned branches that are given up within MinAge: plans follow each other at once.
	Collect int
	// DryRun: unowned branches are reported and not given up.
	DryRun bool
	// Back-off after a failure: RetryMin after the first, twice as long after each further one,
	// up to RetryMax.
	RetryMin time.Duration
	RetryMax time.Duration
}

// Exact is a number of warm branches that carry the groups of pods to come.
type Exact struct {
	Groups Groups
	Count  int
}

// DefaultConfig keeps no warm branches: that needs a quarantine group. The cool-down is that of
// AWS's VPC resource controller.
func DefaultConfig() Config {
	return Config{
		WarmFrom: 18, CoolDown: time.Minute, IdleAfter: 5 * time.Minute,
		MinAge: 5 * time.Minute, Collect: 5, RetryMin: 2 * time.Second, RetryMax: 5 * time.Minute,
	}
}

// leastCoolDown is that of AWS's VPC resource controller. Source: pkg/provider/branch/cooldown
// of github.com/aws/amazon-vpc-resource-controller-k8s.
const leastCoolDown = 30 * time.Second

// Validate names the first invalid value of c.
func (c Config) Validate() error {
	if (c.Warm > 0 || len(c.Exact) > 0) && len(c.Quarantine) == 0 {
		return fmt.Errorf("warm branches need a quarantine group: set it, or set their number to 0")
	}
	for _, e := range c.Exact {
		if len(e.Groups) == 0 || e.Count < 1 {
			return fmt.Errorf("warm branches with %s: %d: must have groups, and be at least 1", e.Groups, e.Count)
		}
	}
	for _, v := range []struct {
		name         string
		value, least time.Duration
	}{
		{"cool-down of branches", c.CoolDown, leastCoolDown},
		{"idle time of branches", c.IdleAfter, time.Second},
		{"age of unowned branches", c.MinAge, time.Minute},
		{"first back-off", c.RetryMin, time.Second},
		{"longest back-off", c.RetryMax, c.RetryMin},
	} {
		if v.value < v.least {
			return fmt.Errorf("%s %s: must be at least %s", v.name, v.value, v.least)
		}
	}
	for _, v := range []struct {
		name         string
		value, least int
	}{{"warm branches", c.Warm, 0}, {"branches given up at once", c.Collect, 1}} {
		if v.value < v.least {
			return fmt.Errorf("%s %d: must be at least %d", v.name, v.value, v.least)
		}
	}
	return nil
}

// quarantines reports whether an action gives the quarantine groups to a branch that no pod has.
func (c Config) quarantines(a Action) bool {
	return a.Pod == "" && len(c.Quarantine) > 0 && (a.Kind == CreateBranch || a.Kind == SetGroups) && a.Groups.Equal(NewGroups(c.Quarantine...))
}

// pause is the back-off after a number of failures.
func (c Config) pause(tries int) time.Duration {
	d := c.RetryMin
	for range tries - 1 {
		if d *= 2; d >= c.RetryMax {
			return c.RetryMax
		}
	}
	return d
}
