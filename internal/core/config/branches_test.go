package config

import (
	"maps"
	"strings"
	"testing"
)

func TestNumbersOfBranchesByInstanceType(t *testing.T) {
	const name = "branch-limits"
	c, err := Load(Sources{Flags: map[string]string{name: " m9.large=9, u-6tb1.metal = 107,t3=0,m9=120,"}})
	if want := map[string]int{"m9.large": 9, "u-6tb1.metal": 107, "t3": 0, "m9": 120}; err != nil || !maps.Equal(c.BranchLimits, want) {
		t.Errorf("%v, %v; want %v", c.BranchLimits, err, want)
	}
	for _, wrong := range []string{"m9", "m9.large=", "=9", "m9.large=-1", "m9.large=121", "M9=1", "m9.a.b=1", "m9=1,m9=2", "m9=1;m8=2"} {
		if _, err := Load(Sources{Flags: map[string]string{name: wrong}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestSecurityGroupsForPodsAreOffUnlessSet(t *testing.T) {
	if c, err := Load(Sources{}); err != nil || c.SecurityGroups != SecurityGroupsOff {
		t.Errorf("%q, %v; want off", c.SecurityGroups, err)
	}
	for name, value := range map[string]string{"security-groups-for-pods": "on", "quarantine-group": "default", "branch-cool-down": "29s", "warm-branches": "5"} {
		if _, err := Load(Sources{Flags: map[string]string{name: value}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	c, err := Load(Sources{Flags: map[string]string{"warm-branches": "5", "quarantine-group": "sg-0123456789abcdef0", "security-groups-for-pods": "own"}})
	if err != nil || c.SecurityGroups != SecurityGroupsOwn || c.WarmBranches != 5 {
		t.Errorf("%q, %d, %v", c.SecurityGroups, c.WarmBranches, err)
	}
}

func TestExactBranchesByGroups(t *testing.T) {
	const name, one, two = "exact-branches", "sg-0123456789abcdef0", "sg-0123456789abcdef1"
	load := func(v string) (Config, error) {
		return Load(Sources{Flags: map[string]string{name: v, "quarantine-group": "sg-00000000000000000"}})
	}
	c, err := load(one + "=5, " + two + " + " + one + " = 2," + two + "=80")
	if want := map[string]int{one: 5, one + "+" + two: 2, two: 80}; err != nil || !maps.Equal(c.ExactBranches, want) {
		t.Errorf("%v, %v; want %v", c.ExactBranches, err, want)
	}
	for _, wrong := range []string{one, one + "=0", one + "=81", "web=1", "=1", one + "+=1", one + "+" + one + "=1", one + "=1," + one + "=2"} {
		if _, err := load(wrong); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := Load(Sources{Flags: map[string]string{name: one + "=1"}}); err == nil || !strings.Contains(err.Error(), "quarantine-group") {
		t.Errorf("without a quarantine group: %v", err)
	}
}

func TestNodesEnforceGroupsWhereNoBranchDoes(t *testing.T) {
	for _, c := range []struct {
		flags map[string]string
		want  bool
		err   string
	}{
		{nil, false, ""},
		{map[string]string{"security-groups-for-pods": "ebpf"}, true, ""},
		{map[string]string{"security-groups-for-pods": "ebpf", "network-policy": "off"}, false, "the programs of network policies enforce security groups"},
		{map[string]string{"security-groups-for-pods": "ebpf", "backend": "podcidr"}, false, "no security groups without EC2"},
		{map[string]string{"network-policy": "off"}, false, ""},
		{map[string]string{"backend": "podcidr"}, false, ""},
		{map[string]string{"security-groups-for-pods": "own"}, true, ""},
		{map[string]string{"security-groups-for-pods": "managed"}, true, ""},
		{map[string]string{"security-groups-for-pods": "own", "network-policy": "off"}, false, "set pod-security-group-late-match to report or evict, or network-policy to on"},
		{map[string]string{"security-groups-for-pods": "own", "network-policy": "off", "pod-security-group-late-match": "report"}, false, ""},
		{map[string]string{"security-groups-for-pods": "managed", "network-policy": "off", "pod-security-group-late-match": "evict"}, false, ""},
		{map[string]string{"security-groups-for-pods": "own", "pod-security-group-late-match": "report"}, false, ""},
		{map[string]string{"security-groups-for-pods": "own", "pod-security-group-late-match": "enforce"}, true, ""},
		{map[string]string{"security-groups-for-pods": "managed", "pod-security-group-late-match": "enforce", "network-policy": "off"}, false, "network-policy: off from flag"},
		{map[string]string{"pod-security-group-late-match": "enforce"}, false, ""},
		{map[string]string{"security-groups-for-pods": "auto"}, true, ""},
		{map[string]string{"security-groups-for-pods": "auto", "pod-security-group-late-match": "report"}, true, ""},
		{map[string]string{"security-groups-for-pods": "auto", "network-policy": "off"}, false, "the programs of network policies enforce security groups"},
		{map[string]string{"security-groups-for-pods": "auto", "backend": "podcidr"}, false, "no security groups without EC2"},
		{map[string]string{"security-groups-for-pods": "auto", "pod-security-group-late-match": "evict"}, false, "none is evicted"},
		{map[string]string{"pod-security-group-late-match": "never"}, false, "pod-security-group-late-match"},
	} {
		got, err := Load(Sources{Flags: c.flags})
		if got.NodeGroups() != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v, %v; want %v, %q", c.flags, got.NodeGroups(), err, c.want, c.err)
		}
	}
}

// Late matches can be left to other means only where pods have branches; elsewhere the programs are needed.
func TestAnErrorOffersOnlySettingsThatHelp(t *testing.T) {
	for mode, want := range map[string]string{
		"own": ": set pod-security-group-late-match to report or evict, or network-policy to on", "managed": ": set pod-security-group-late-match to report or evict, or network-policy to on",
		"ebpf": ": set network-policy to on", "auto": ": set network-policy to on",
	} {
		_, err := Load(Sources{Flags: map[string]string{"security-groups-for-pods": mode, "network-policy": "off"}})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q at its end", mode, err, want)
		}
	}
}

func TestLateMatchesAreEvictedOnlyWherePodsHaveBranches(t *testing.T) {
	for mode, want := range map[string]bool{"own": true, "managed": true, "ebpf": false, "off": false} {
		c, err := Load(Sources{Flags: map[string]string{"security-groups-for-pods": mode, "pod-security-group-late-match": "evict"}})
		if err != nil || c.EvictsLateMatches() != want || c.NodeGroups() != (mode == "ebpf") {
			t.Errorf("%s: evicts %v, nodes enforce %v, %v", mode, c.EvictsLateMatches(), c.NodeGroups(), err)
		}
	}
	if c, err := Load(Sources{Flags: map[string]string{"security-groups-for-pods": "own"}}); err != nil || c.EvictsLateMatches() {
		t.Errorf("by default pods are evicted, %v", err)
	}
}

// No VPC is known there, and groups that the node were to enforce would keep every pod from starting.
func TestANodeWithoutACloudEnforcesNoGroups(t *testing.T) {
	for _, mode := range []string{SecurityGroupsOwn, SecurityGroupsManaged} {
		c := Config{SecurityGroups: mode, LateMatch: LateMatchEnforce}
		if c.On(BackendPodCIDR).NodeGroups() || !c.On(BackendENI).NodeGroups() {
			t.Errorf("%s: without a cloud %v, with one %v", mode, c.On(BackendPodCIDR).NodeGroups(), c.On(BackendENI).NodeGroups())
		}
	}
	for _, mode := range []string{SecurityGroupsOff, SecurityGroupsEBPF, SecurityGroupsAuto} {
		c := Config{SecurityGroups: mode, LateMatch: LateMatchEnforce}
		if got := c.On(BackendPodCIDR).LateMatch; got != LateMatchEnforce {
			t.Errorf("%s: late matches are %s, want the setting as it is", mode, got)
		}
	}
}
