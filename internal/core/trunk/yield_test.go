package trunk_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
)

// planKinds counts what is planned, by kind.
func planKinds(s trunk.Snapshot, c trunk.Config) string {
	count := make(map[trunk.Kind]int)
	for _, a := range trunk.Plan(s, c, epoch).Actions {
		count[a.Kind]++
	}
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprintf("%d %s", count[kind], kind))
	}
	return strings.Join(out, ", ")
}

// vlansCool is a cool-down of 40 VLANs.
func vlansCool(s *trunk.Snapshot) {
	for n := range 40 {
		s.VLANs[120-n] = trunk.VLAN{Owner: "gone", Until: epoch.Add(time.Minute)}
	}
}

// Pods come first: warm branches that would be of the last third are given up as pods come. Those that
// are kept are associated.
func TestWarmBranchesOfTheLastThirdAreGivenUp(t *testing.T) {
	deny, sgX := trunk.NewGroups("sg-deny"), trunk.NewGroups("sg-x")
	limit := func(n int) func(*trunk.Snapshot) { return func(s *trunk.Snapshot) { s.Limits.Branches = n } }
	subnets := func(list ...trunk.Subnet) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Node.Subnets = list }
	}
	of30 := func(free int) trunk.Subnet { return trunk.Subnet{ID: "subnet-a", Total: 30, Free: free} }
	used := func(b *trunk.Branch) { in(trunk.Bound)(b); b.Pod, b.Used = "pod-0", true }
	ended := func(b *trunk.Branch) { used(b); b.Pod = "pod-9" }
	unneeded := func(b *trunk.Branch) { in(trunk.Idle)(b); b.Since = epoch.Add(-time.Hour) }
	elsewhere := func(b *trunk.Branch) { unneeded(b); b.Subnet = "subnet-b" }
	creating := func(b *trunk.Branch) { in(trunk.Creating)(b); b.Pod, b.Intent = "pod-0", &trunk.Intent{} }
	lost := func(b *trunk.Branch) {
		creating(b)
		b.Intent = &trunk.Intent{Lost: true, Action: of(trunk.CreateBranch, forPod("pod-0", sgX))}
	}
	without := func(n int, name string) func(*trunk.Snapshot) { // a VLAN
		return func(s *trunk.Snapshot) {
			rows(n, name, deny, in(trunk.Tagging))(s)
			for id, b := range s.Branches {
				if strings.HasPrefix(string(id), name) {
					delete(s.VLANs, b.VLAN)
					b.VLAN = 0
					s.Branches[id] = b
				}
			}
		}
	}
	users := func(more ...trunk.Pod) func(*trunk.Snapshot) {
		return pods(append([]trunk.Pod{wanting("pod-0", "sg-x")}, more...)...)
	}
	three := users(wanting("pod-1", "sg-a"), wanting("pod-2", "sg-a"), wanting("pod-3", "sg-a"))
	end := trunk.Pod{UID: "pod-9", Ended: true}
	spare := rows(3, "w", deny, in(trunk.Associating))
	for name, tt := range map[string]struct {
		node trunk.Snapshot
		want string
	}{
		"six of eight beside ten of pods":                  {has(rows(10, "p", sgX, used), rows(8, "w", deny, unneeded), users()), "6 Disassociate"},
		"none beside four of pods":                         {has(rows(4, "p", sgX, used), rows(8, "w", deny, unneeded), users()), ""},
		"ten of twenty beside 70 VLANs":                    {has(limit(500), vlansCool, rows(30, "p", sgX, used), rows(20, "w", deny, unneeded), users()), "10 Disassociate"},
		"those without a VLAN take none":                   {has(limit(500), vlansCool, rows(30, "p", sgX, used), rows(9, "a", deny, unneeded), rows(3, "b", deny, unneeded), without(3, "w"), users()), "3 DeleteBranch, 2 Disassociate"},
		"two beside three that are created for pods":       {has(rows(8, "p", sgX, used), spare, three), "1 Associate, 3 CreateBranch, 2 DeleteBranch"},
		"and beside their VLANs":                           {has(limit(500), vlansCool, rows(36, "p", sgX, used), spare, three), "1 Associate, 3 CreateBranch, 2 DeleteBranch"},
		"two of five beside one that a pod gets":           {has(rows(8, "p", sgX, used), rows(6, "w", deny, unneeded), users(wanting("pod-1", "sg-a"))), "2 Disassociate, 1 SetGroups"},
		"none beside nine of pods, of which one has ended": {has(rows(8, "p", sgX, used), rows(1, "e", sgX, ended), spare, users(end)), "3 Associate, 1 Release"},
		"one that is created again counts once":            {has(rows(8, "p", sgX, used), rows(1, "c", nil, lost), spare, users()), "3 Associate, 1 CreateBranch"},
		"two of six in the last third of the subnet":       {has(subnets(of30(6)), rows(6, "w", deny, unneeded)), "4 Disassociate"},
		"all with the last address taken":                  {has(subnets(of30(0)), rows(6, "w", deny, unneeded)), "6 Disassociate"},
		"addresses for pods are taken":                     {has(subnets(of30(10)), rows(4, "c", nil, creating), rows(6, "w", deny, unneeded), users()), "4 Disassociate"},
		"addresses of a subnet are of its branches only":   {has(subnets(of30(10), trunk.Subnet{ID: "subnet-b", Total: 30, Free: 5}), rows(8, "w", deny, unneeded), rows(3, "x", deny, elsewhere)), "3 Disassociate"},
		"none where addresses are not counted":             {has(subnets(of30(-1)), rows(6, "w", deny, unneeded)), ""},
		"none where those of one subnet are not":           {has(subnets(of30(-1), trunk.Subnet{ID: "subnet-b", Total: 30, Free: 0}), rows(6, "w", deny, unneeded)), ""},
	} {
		if got := planKinds(tt.node, warmConfig(120)); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Branches with groups that are not wanted any more hold what new ones would take until they are given up.
func TestWhatBecomesOfWarmBranchesThatMatchNoGroups(t *testing.T) {
	sgA, sgX, deny := trunk.NewGroups("sg-a"), trunk.NewGroups("sg-x"), trunk.NewGroups("sg-deny")
	limit := func(n int) func(*trunk.Snapshot) { return func(s *trunk.Snapshot) { s.Limits.Branches = n } }
	separate := func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Used, b.Association = true, "" }
	used := func(since time.Duration) func(*trunk.Branch) {
		return func(b *trunk.Branch) {
			in(trunk.Bound)(b)
			b.Pod, b.Used, b.Since = "pod-0", true, epoch.Add(-since)
		}
	}
	ended := pods(trunk.Pod{UID: "pod-0", Ended: true, Name: "shop/pod-0"})
	idle, generic := in(trunk.Idle), warmConfig(2)
	const createA, create = "CreateBranch in subnet-a with sg-a", "CreateBranch in subnet-a with sg-deny"
	for name, tt := range map[string]struct {
		c trunk.Config
		planned
	}{
		"exact ones wait for a third of the branches": {warmConfig(0, exactly(12, "sg-a")), planned{node: has(rows(12, "w", sgX, idle)), next: 4 * time.Minute}},
		"and for a third of the VLANs":                {warmConfig(0, exactly(40, "sg-a")), planned{node: has(limit(500), vlansCool, rows(40, "w", sgX, idle)), next: 4 * time.Minute}},
		"none becomes exact without quarantine":       {warmConfig(0, exactly(2, "sg-a")), planned{node: has(rows(2, "w", sgX, idle)), does: times(2, createA), next: 4 * time.Minute}},
		"none that a brake holds is kept":             {warmConfig(0, exactly(1, "sg-a")), planned{node: has(rows(1, "w", deny, idle), func(s *trunk.Snapshot) { s.Brake = cloud.FreezeAll }), next: 4 * time.Minute}},
		"one that is being made is quarantined later": {generic, planned{node: has(rows(1, "v", deny, idle), rows(1, "w", sgX, in(trunk.Associating))), does: "Associate eni-w0 with eni-1 under VLAN 2"}},
		"one without an association is deleted":       {generic, planned{node: has(rows(1, "v", deny, idle), rows(1, "w", sgX, separate)), does: create + "; DeleteBranch eni-w0"}},
		"new ones wait for the last of two pods":      {generic, planned{node: has(rows(1, "w", deny, idle), rows(1, "p", sgA, used(time.Second)), rows(1, "q", sgA, used(3*time.Second)), pods(wanting("pod-0", "sg-a"))), next: 4 * time.Second}},
		"a pod that ends does not delay them":         {generic, planned{node: has(rows(1, "w", deny, idle), rows(1, "p", sgA, used(time.Hour)), ended), does: "Release p0 from pod-0; " + create}},
	} {
		t.Run(name, func(t *testing.T) { tt.check(t, tt.c) })
	}
}
