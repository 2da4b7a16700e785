package trunk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func exactly(n int, groups ...vpc.SecurityGroupID) trunk.Exact {
	return trunk.Exact{Groups: trunk.NewGroups(groups...), Count: n}
}

func TestEachValueOfAConfigurationHasALeastOne(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*trunk.Config)
		want string // "" is valid
	}{
		{"the defaults", func(*trunk.Config) {}, ""},
		{"the least cool-down", func(c *trunk.Config) { c.CoolDown = 30 * time.Second }, ""},
		{"a shorter cool-down", func(c *trunk.Config) { c.CoolDown = 30*time.Second - 1 }, "cool-down of branches 29.999999999s: must be at least 30s"},
		{"the least idle time", func(c *trunk.Config) { c.IdleAfter = time.Second }, ""},
		{"a shorter idle time", func(c *trunk.Config) { c.IdleAfter = 0 }, "idle time of branches 0s: must be at least 1s"},
		{"the least age", func(c *trunk.Config) { c.MinAge = time.Minute }, ""},
		{"a lower age", func(c *trunk.Config) { c.MinAge = 59 * time.Second }, "age of unowned branches 59s: must be at least 1m0s"},
		{"the shortest back-off", func(c *trunk.Config) { c.RetryMin = time.Second }, ""},
		{"a shorter back-off", func(c *trunk.Config) { c.RetryMin = time.Millisecond }, "first back-off 1ms: must be at least 1s"},
		{"back-offs that do not grow", func(c *trunk.Config) { c.RetryMax = c.RetryMin }, ""},
		{"back-offs that become shorter", func(c *trunk.Config) { c.RetryMax = time.Second }, "longest back-off 1s: must be at least 2s"},
		{"one branch at once", func(c *trunk.Config) { c.Collect = 1 }, ""},
		{"no branch at once", func(c *trunk.Config) { c.Collect = 0 }, "branches given up at once 0: must be at least 1"},
		{"no warm branches", func(c *trunk.Config) { c.Warm = 0 }, ""},
		{"fewer warm branches than none", func(c *trunk.Config) { c.Warm = -1 }, "warm branches -1: must be at least 0"},
		{"warm branches", func(c *trunk.Config) { c.Quarantine, c.Warm = trunk.NewGroups("sg-deny"), 1 }, ""},
		{"warm branches without a quarantine group", func(c *trunk.Config) { c.Warm = 1 }, "warm branches need a quarantine group"},
		{"exact branches", func(c *trunk.Config) { *c = warmConfig(0, exactly(1, "sg-a")) }, ""},
		{"exact branches without a quarantine group", func(c *trunk.Config) { c.Exact = []trunk.Exact{exactly(1, "sg-a")} }, "warm branches need a quarantine group"},
		{"exact branches without groups", func(c *trunk.Config) { *c = warmConfig(0, exactly(1, "sg-a"), exactly(1)) }, "warm branches with no groups: 1: must have groups, and be at least 1"},
		{"no exact branches of some groups", func(c *trunk.Config) { *c = warmConfig(0, exactly(0, "sg-b", "sg-a")) }, "warm branches with sg-a,sg-b: 0: must have groups, and be at least 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := trunk.DefaultConfig()
			tt.edit(&c)
			err := c.Validate()
			if (err != nil) != (tt.want != "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
