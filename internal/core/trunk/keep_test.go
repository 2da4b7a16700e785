package trunk_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// rows adds branches that have been so for a minute.
func rows(n int, name string, groups trunk.Groups, edit func(*trunk.Branch)) func(*trunk.Snapshot) {
	return func(s *trunk.Snapshot) {
		for i := range n {
			b := with(func(b *trunk.Branch) { b.Groups, b.Since = groups, epoch.Add(-time.Minute); edit(b) }).Branches["b"]
			b.ID, b.ENI, b.VLAN = trunk.BranchID(fmt.Sprint(name, i)), vpc.ENIID(fmt.Sprint("eni-", name, i)), len(s.Branches)+1
			s.Branches[b.ID], s.VLANs[b.VLAN] = b, trunk.VLAN{Owner: b.ID}
		}
	}
}

func has(edits ...func(*trunk.Snapshot)) trunk.Snapshot {
	return noBranch(func(s *trunk.Snapshot) {
		for _, edit := range edits {
			edit(s)
		}
	})
}

func times(n int, action string) (out string) {
	for i := range n {
		if i > 0 {
			out += "; "
		}
		out += action
	}
	return out
}

func TestWhichBranchesAreKeptWarm(t *testing.T) {
	deny, sgA, sgX := trunk.NewGroups("sg-deny"), trunk.NewGroups("sg-a"), trunk.NewGroups("sg-x")
	free := func(free int) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Node.Subnets[0] = trunk.Subnet{ID: "subnet-a", Total: 30, Free: free} }
	}
	limit := func(n int) func(*trunk.Snapshot) { return func(s *trunk.Snapshot) { s.Limits.Branches = n } }
	used := func(b *trunk.Branch) { in(trunk.Bound)(b); b.Pod, b.Used = "pod-0", true }
	cooling := func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Used = true }
	backOff := func(key string, until time.Time) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Backoffs[key] = trunk.Backoff{Until: until, Tries: 1, Message: "no"} }
	}
	users := pods(wanting("pod-0", "sg-x"))
	since := func(d time.Duration) func(*trunk.Branch) {
		return func(b *trunk.Branch) { used(b); b.Since = epoch.Add(-d) }
	}
	unsorted := warmConfig(2)
	unsorted.Quarantine = trunk.Groups{"sg-none", "sg-deny", "sg-none"}
	generic, exact := warmConfig(2), warmConfig(0, exactly(2, "sg-a"))
	const create, createA, wait = "CreateBranch in subnet-a with sg-deny", "CreateBranch in subnet-a with sg-a", "EC2 refuses the quarantine groups sg-deny"
	for name, tt := range map[string]struct {
		c trunk.Config
		planned
	}{
		"what is missing is made":  {generic, planned{node: has(), does: times(2, create)}},
		"exact ones are made":      {exact, planned{node: has(), does: times(2, createA)}},
		"exact ones come first":    {warmConfig(1, exactly(1, "sg-a")), planned{node: has(), does: createA + "; " + create}},
		"what is there is kept":    {generic, planned{node: has(rows(2, "w", deny, in(trunk.Idle)))}},
		"with groups in any order": {unsorted, planned{node: has(rows(2, "w", trunk.NewGroups("sg-deny", "sg-none"), in(trunk.Idle)))}},
		"what is being made is kept": {generic, planned{node: has(rows(2, "w", deny, func(b *trunk.Branch) {
			in(trunk.Idle)(b)
			b.Groups = nil
			b.Intent = &trunk.Intent{Action: of(trunk.SetGroups, forPod("", deny))}
		}))}},
		"what is being created is kept": {generic, planned{node: has(rows(2, "w", nil, func(b *trunk.Branch) {
			in(trunk.Creating)(b)
			b.Intent = &trunk.Intent{Action: of(trunk.CreateBranch, forPod("", deny))}
		}))}},
		"an exact one that is being created is kept": {exact, planned{node: has(rows(2, "w", nil, func(b *trunk.Branch) {
			in(trunk.Creating)(b)
			b.Intent = &trunk.Intent{Action: of(trunk.CreateBranch, forPod("", sgA))}
		}))}},
		"one that becomes exact is kept": {exact, planned{node: has(rows(2, "w", deny, func(b *trunk.Branch) {
			in(trunk.Idle)(b)
			b.Intent = &trunk.Intent{Action: of(trunk.SetGroups, forPod("", sgA))}
		}))}},
		"an exact one that is being tagged is kept": {exact, planned{node: has(rows(2, "w", sgA, func(b *trunk.Branch) { in(trunk.Tagging)(b); b.Intent = &trunk.Intent{Action: of(trunk.TagBranch)} }))}},
		"one that becomes another is not kept": {generic, planned{node: has(rows(2, "w", deny, func(b *trunk.Branch) {
			in(trunk.Idle)(b)
			b.Intent = &trunk.Intent{Action: of(trunk.SetGroups, forPod("", sgX))}
		}))}},
		"one with a call for other than groups is":     {generic, planned{node: has(rows(2, "w", deny, func(b *trunk.Branch) { in(trunk.Tagging)(b); b.Intent = &trunk.Intent{Action: of(trunk.TagBranch)} }))}},
		"one more waits to be given up":                {generic, planned{node: has(rows(3, "w", deny, in(trunk.Idle))), next: 4 * time.Minute}},
		"a quarantined one becomes exact":              {exact, planned{node: has(rows(1, "w", deny, in(trunk.Idle)), rows(1, "v", sgA, in(trunk.Idle))), does: "SetGroups eni-w0 to sg-a"}},
		"one with other groups is quarantined":         {generic, planned{node: has(rows(1, "w", sgX, in(trunk.Idle)), rows(1, "v", deny, in(trunk.Idle))), does: "SetGroups eni-w0 to sg-deny"}},
		"one of an ended pod is quarantined":           {generic, planned{node: has(rows(1, "w", sgX, cooling), rows(1, "v", deny, in(trunk.Idle))), does: "SetGroups eni-w0 to sg-deny"}},
		"one that cools down in quarantine is kept":    {generic, planned{node: has(rows(2, "w", deny, cooling))}},
		"one that is not associated is not":            {generic, planned{node: has(rows(1, "w", sgX, func(b *trunk.Branch) { cooling(b); b.Association = "" }), rows(2, "v", deny, in(trunk.Idle))), does: "DeleteBranch eni-w0"}},
		"none on a smaller type":                       {generic, planned{node: has(limit(17))}},
		"none before the trunk is ready":               {generic, planned{node: has(func(s *trunk.Snapshot) { s.Trunk.Stage, s.Trunk.Intent = trunk.Attaching, &trunk.Intent{} })}},
		"none of a terminated instance":                {generic, planned{node: has(func(s *trunk.Snapshot) { s.Terminated = true })}},
		"none of a node that is replaced":              {generic, planned{node: has(func(s *trunk.Snapshot) { s.Replaced = true }), waits: "the node has another instance now"}},
		"none during a back-off":                       {generic, planned{node: has(backOff("warm", epoch.Add(time.Second))), next: time.Second}},
		"none while EC2 refuses quarantine":            {generic, planned{node: has(backOff("quarantine/sg-deny", epoch.Add(time.Second))), waits: wait, next: time.Second}},
		"that is reported for a cool-down":             {generic, planned{node: has(backOff("quarantine/sg-deny", epoch.Add(1-time.Minute))), does: times(2, create), waits: wait, next: 1}},
		"and not for longer":                           {generic, planned{node: has(backOff("quarantine/sg-deny", epoch.Add(-time.Minute))), does: times(2, create)}},
		"twelve of 18 branches":                        {warmConfig(18), planned{node: has(), does: times(12, create)}},
		"one more than twelve is not kept":             {warmConfig(18), planned{node: has(rows(13, "w", deny, in(trunk.Idle))), next: 4 * time.Minute}},
		"two beside ten of pods":                       {warmConfig(18), planned{node: has(rows(10, "p", sgX, used), users), does: times(2, create)}},
		"none beside twelve of pods":                   {warmConfig(18), planned{node: has(rows(12, "p", sgX, used), users)}},
		"those that are deleted do not count":          {warmConfig(18), planned{node: has(rows(10, "p", sgX, used), rows(1, "d", sgX, in(trunk.Deleting)), users), does: times(2, create) + "; DeleteBranch eni-d0"}},
		"eighty of the VLANs":                          {warmConfig(120), planned{node: has(limit(500)), does: times(80, create)}},
		"twenty of 30 addresses":                       {warmConfig(120), planned{node: has(limit(500), free(30)), does: times(20, create)}},
		"five of 30 addresses, of which 15 are left":   {warmConfig(120), planned{node: has(limit(500), free(15)), does: times(5, create)}},
		"none of the last third of the addresses":      {warmConfig(120), planned{node: has(limit(500), free(10))}},
		"none in a subnet that is not counted":         {warmConfig(120), planned{node: has(limit(500), free(-1))}},
		"not while pods get branches":                  {generic, planned{node: has(rows(1, "w", deny, in(trunk.Idle)), rows(1, "p", sgX, since(time.Second)), users), next: 4 * time.Second}},
		"if less than a quarter is left, also then":    {warmConfig(8), planned{node: has(rows(1, "w", deny, in(trunk.Idle)), rows(1, "p", sgX, since(time.Second)), users), does: create, next: 4 * time.Second}},
		"once pods get none":                           {generic, planned{node: has(rows(1, "w", deny, in(trunk.Idle)), rows(1, "p", sgX, since(5*time.Second)), users), does: create}},
		"a new warm one does not delay them":           {generic, planned{node: has(rows(1, "w", deny, func(b *trunk.Branch) { in(trunk.Idle)(b); b.Since = epoch })), does: create}},
		"a branch of an ended pod does not delay them": {generic, planned{node: has(rows(1, "w", deny, in(trunk.Idle)), rows(1, "p", deny, func(b *trunk.Branch) { cooling(b); b.Since = epoch })), next: 0}},
		"an exact one that a pod gets is not kept":     {warmConfig(0, exactly(1, "sg-a")), planned{node: has(rows(1, "w", sgA, in(trunk.Idle)), pods(wanting("pod-1", "sg-a"))), does: "Bind eni-w0 for pod-1; " + createA, next: 0}},
	} {
		t.Run(name, func(t *testing.T) { tt.check(t, tt.c) })
	}
}

// With no warm branches configured, a quarantined one saves a pod that waits the three calls.
func TestUsedBranchesAreQuarantinedForPodsThatWait(t *testing.T) {
	sgX, deny := trunk.NewGroups("sg-x"), trunk.NewGroups("sg-deny")
	full := func(s *trunk.Snapshot) { s.Limits.Branches = 2; s.Pods = []trunk.Pod{wanting("pod-1", "sg-a")} }
	cooling := func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Used, b.Since = true, epoch }
	const waits = "pod-1: the node has all of the 2 branches"
	for name, tt := range map[string]struct {
		c trunk.Config
		planned
	}{
		"one for one pod":           {warmConfig(0), planned{node: has(rows(2, "u", sgX, cooling), full), does: "SetGroups eni-u0 to sg-deny", waits: waits, next: time.Minute}},
		"one of one branch":         {warmConfig(0), planned{node: has(rows(1, "u", sgX, cooling), full, func(s *trunk.Snapshot) { s.Limits.Branches = 1 }), does: "SetGroups eni-u0 to sg-deny", waits: "pod-1: the node has all of the 1 branches"}},
		"none beside two of those":  {warmConfig(0), planned{node: has(rows(2, "q", deny, cooling), full), waits: waits, next: time.Minute}},
		"none beside an idle one":   {warmConfig(0), planned{node: has(rows(1, "w", deny, func(b *trunk.Branch) { in(trunk.Idle)(b); b.Since = epoch.Add(-time.Second) }), full), does: "SetGroups eni-w0 to sg-a for pod-1"}},
		"two for two pods":          {warmConfig(0), planned{node: has(rows(3, "u", sgX, cooling), full, func(s *trunk.Snapshot) { s.Limits.Branches, s.Pods = 3, append(s.Pods, wanting("pod-2", "sg-b")) }), does: "SetGroups eni-u0 to sg-deny; SetGroups eni-u1 to sg-deny", waits: "pod-2: the node has all", next: time.Minute}},
		"none while none waits":     {warmConfig(0), planned{node: has(rows(2, "u", sgX, cooling)), next: time.Minute}},
		"none beside a quarantined": {warmConfig(0), planned{node: has(rows(1, "q", deny, cooling), rows(1, "u", sgX, cooling), full), waits: waits, next: time.Minute}},
		"none without such a group": {trunk.DefaultConfig(), planned{node: has(rows(2, "u", sgX, cooling), full), waits: waits, next: time.Minute}},
		"none while EC2 refuses it": {warmConfig(0), planned{node: has(rows(2, "u", sgX, cooling), full, func(s *trunk.Snapshot) {
			s.Backoffs["quarantine/sg-deny"] = trunk.Backoff{Until: epoch.Add(time.Second), Tries: 1}
		}), waits: waits, next: time.Second}},
		"none of a node that is replaced": {warmConfig(0), planned{node: has(rows(2, "u", sgX, cooling), full, func(s *trunk.Snapshot) { s.Replaced = true }), waits: "pod-1: the node has another instance now", next: time.Minute}},
		"none of another subnet":          {warmConfig(0), planned{node: has(rows(2, "u", sgX, func(b *trunk.Branch) { cooling(b); b.Subnet = "subnet-z" }), full), waits: waits, next: time.Minute}},
		"none with a call in flight":      {warmConfig(0), planned{node: has(rows(2, "u", sgX, func(b *trunk.Branch) { cooling(b); b.Intent = &trunk.Intent{} }), full), waits: waits}},
		"one that has cooled down now":    {warmConfig(0), planned{node: has(rows(2, "q", deny, func(b *trunk.Branch) { cooling(b); b.Since = epoch.Add(-time.Minute) }), full), does: "SetGroups eni-q0 to sg-a for pod-1", next: 4 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) { tt.check(t, tt.c) })
	}
}

func TestTheLastThirdIsRoundedUp(t *testing.T) {
	for addresses, want := range map[int]int{0: 0, 1: 1, 2: 1, 3: 1, 4: 2, 30: 10, 31: 11} {
		if got := trunk.LastThird(addresses); got != want {
			t.Errorf("of %d: %d, want %d", addresses, got, want)
		}
	}
}
