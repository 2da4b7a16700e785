package trunk_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// unowned has n branches that no state has, shown twice and old enough to be given up.
func unowned(n int, edits ...func(*trunk.Snapshot)) trunk.Snapshot {
	return noBranch(func(s *trunk.Snapshot) {
		for i := range n {
			id := vpc.ENIID(fmt.Sprint("eni-u", i))
			s.Unowned[id] = trunk.Unowned{Seen: trunk.Seen{ENI: id}, First: epoch.Add(-5 * time.Minute), Passes: 2}
		}
		for _, edit := range edits {
			edit(s)
		}
	})
}

func one(edit func(*trunk.Unowned)) func(*trunk.Snapshot) {
	return func(s *trunk.Snapshot) {
		u := s.Unowned["eni-u0"]
		edit(&u)
		s.Unowned["eni-u0"] = u
	}
}

func TestWhichUnownedBranchesAreGivenUp(t *testing.T) {
	associated := func(u *trunk.Unowned) { u.Seen.Association, u.Seen.VLAN = "assoc-u", 8 }
	withBranches := func(n int) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) {
			for i := range n {
				b := with(func(b *trunk.Branch) { in(trunk.Creating)(b); b.Pod = "pod-x" }).Branches["b"]
				b.ID, b.ENI, b.VLAN, b.Intent = trunk.BranchID(fmt.Sprint("c", i)), "", 0, &trunk.Intent{}
				s.Branches[b.ID] = b
			}
			s.Pods = []trunk.Pod{wanting("pod-x", "sg-a")}
		}
	}
	done := func(n int, since time.Time) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Collected = trunk.Collected{Since: since, Count: n} }
	}
	shared := func(s *trunk.Snapshot) { s.Shared = true }
	terminated := func(s *trunk.Snapshot) { s.Terminated = true }
	names := func(ended bool) func(*trunk.Snapshot) {
		return func(s *trunk.Snapshot) { s.Pods = []trunk.Pod{{UID: "pod-1", ENI: "eni-u0", Ended: ended}} }
	}
	const lost = "6 branches at EC2 are not in the state, which has %d: none is deleted"
	del := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprint("DeleteBranch eni-u", i))
		}
		return strings.Join(all, "; ")
	}
	for name, p := range map[string]planned{
		"one":                                   {node: unowned(1), does: del(1)},
		"one that is associated":                {node: unowned(1, one(associated), func(s *trunk.Snapshot) { s.VLANs[8] = trunk.VLAN{Owner: "eni-u0"} }), does: "Disassociate eni-u0 (assoc-u)"},
		"not one with the VLAN of another":      {node: unowned(1, one(associated))},
		"not one that was shown once":           {node: unowned(1, one(func(u *trunk.Unowned) { u.Passes = 1 }))},
		"not a new one":                         {node: unowned(1, one(func(u *trunk.Unowned) { u.First = u.First.Add(time.Second) })), next: time.Second},
		"not one that a pod names":              {node: unowned(1, names(false))},
		"one that an ended pod names":           {node: unowned(1, names(true)), does: del(1)},
		"one of a pod of a terminated instance": {node: unowned(1, names(false), terminated), does: del(1)},
		"five, without others":                  {node: unowned(5), does: del(5)},
		"not six, the state is lost":            {node: unowned(6), waits: fmt.Sprintf(lost, 0)},
		"not six beside five":                   {node: unowned(6, withBranches(5)), waits: fmt.Sprintf(lost, 5)},
		"five of six beside six":                {node: unowned(6, withBranches(6)), does: del(5), next: 5 * time.Minute},
		"five of six of a terminated instance":  {node: unowned(6, terminated), does: del(5), next: 5 * time.Minute},
		"three more within the interval":        {node: unowned(5, done(2, epoch.Add(-time.Minute))), does: del(3), next: 4 * time.Minute},
		"none more within the interval":         {node: unowned(1, done(5, epoch.Add(-time.Minute))), next: 4 * time.Minute},
		"five more after the interval":          {node: unowned(5, done(5, epoch.Add(-5*time.Minute))), does: del(5)},
		"more of a terminated instance":         {node: unowned(1, done(5, epoch.Add(-time.Minute)), terminated), does: del(1)},
		"not one of another controller":         {node: unowned(1, shared)},
		"ours beside those of another":          {node: unowned(1, shared, one(func(u *trunk.Unowned) { u.Seen.Intent = "act-1" })), does: del(1)},
		"six of another controller":             {node: unowned(6, shared)},
		"none with a brake, and none later":     {node: unowned(5, done(1, epoch), func(s *trunk.Snapshot) { s.Brake = cloud.FreezeRelease })},
	} {
		t.Run(name, func(t *testing.T) { p.check(t, trunk.DefaultConfig()) })
	}
	c := trunk.DefaultConfig()
	c.DryRun = true
	planned{node: unowned(2), waits: ": dry run: 2 branches that neither the state nor a pod has are not given up: eni-u0 eni-u1"}.check(t, c)
	d := trunk.Plan(unowned(1, one(associated), func(s *trunk.Snapshot) { s.VLANs[8] = trunk.VLAN{Owner: "eni-u0"} }), trunk.DefaultConfig(), epoch)
	if a := d.Actions[0]; a.VLAN != 8 || a.Why != "EC2 showed it 2 times since 11:55:00, and neither the state nor a pod has it" {
		t.Errorf("%+v", a)
	}
}

func TestTheObservationsOfAnUnownedBranchAreCounted(t *testing.T) {
	s := with(func(b *trunk.Branch) { b.Changed = epoch })
	stray := shown(func(e *trunk.Seen) { e.ENI, e.VLAN, e.Association, e.Intent = "eni-9", 9, "assoc-9", "" })
	mine, own := shown(func(*trunk.Seen) {}), seenTrunk(2)
	made := shown(func(e *trunk.Seen) { e.ENI, e.Intent, e.VLAN, e.Association = "eni-8", "b", 0, "" })
	next := observed(s, epoch, true, own, mine, stray, made)
	want := trunk.Unowned{Seen: stray, First: epoch, Passes: 1}
	if got := next.Unowned; len(got) != 1 || !reflect.DeepEqual(got["eni-9"], want) || next.VLANs[9] != (trunk.VLAN{Owner: "eni-9"}) {
		t.Errorf("%+v, VLAN 9 %+v, want %+v", got, next.VLANs[9], want)
	}
	if next.Trunk.ENI != "eni-1" || observed(trunk.New(instance), epoch, true, stray).Trunk.Stage != trunk.Absent {
		t.Errorf("it is taken for the trunk: %s", next)
	}
	changed := stray
	changed.Groups = nil
	next = observed(next, epoch.Add(time.Minute), true, own, mine, changed)
	want.Seen, want.Passes = changed, 2
	if got := next.Unowned["eni-9"]; !reflect.DeepEqual(got, want) {
		t.Errorf("the second time: %+v, want %+v", got, want)
	}
	if got := observed(next, epoch.Add(2*time.Minute), false, own, mine).Unowned["eni-9"]; got.Passes != 2 {
		t.Errorf("not all was read: %+v", got)
	}
	if got := observed(next, epoch.Add(2*time.Minute), true, own, mine).Unowned; len(got) != 0 {
		t.Errorf("it is gone: %+v", got)
	}
	b := next.Branches["b"]
	b.ENI = "eni-9"
	next.Branches["b"] = b
	if got := observed(next, epoch.Add(2*time.Minute), false, own, changed).Unowned; len(got) != 0 {
		t.Errorf("the state has it: %+v", got)
	}
}

func TestAnUnownedBranchHasItsVLANUnlessAnotherUsesIt(t *testing.T) {
	stray := shown(func(e *trunk.Seen) { e.ENI, e.Association, e.Intent = "eni-9", "assoc-9", "" }) // with VLAN 7
	call := func(b *trunk.Branch) { b.Intent = &trunk.Intent{Action: of(trunk.TagBranch)} }
	for name, tt := range map[string]struct {
		branch func(*trunk.Branch)
		ledger trunk.VLAN // of VLAN 7; zero is none
		want   trunk.BranchID
		moved  bool
	}{
		"it is free":                        {nil, trunk.VLAN{}, "eni-9", false},
		"it has cooled down":                {nil, trunk.VLAN{Owner: "old", Until: epoch}, "eni-9", false},
		"it cools down":                     {nil, trunk.VLAN{Owner: "old", Until: epoch.Add(1)}, "old", false},
		"a branch that is tagged has it":    {in(trunk.Associating), trunk.VLAN{Owner: "b"}, "eni-9", true},
		"a branch that is to be tagged":     {in(trunk.Tagging), trunk.VLAN{Owner: "b"}, "eni-9", true},
		"a branch that is being associated": {func(b *trunk.Branch) { in(trunk.Associating)(b); call(b) }, trunk.VLAN{Owner: "b"}, "b", false},
		"an associated branch has it":       {in(trunk.Idle), trunk.VLAN{Owner: "b"}, "b", false},
		"a branch that is given up has it":  {in(trunk.Deleting), trunk.VLAN{Owner: "b"}, "b", false},
	} {
		s := trunk.New(instance)
		if tt.branch != nil {
			s = with(func(b *trunk.Branch) { tt.branch(b); b.Changed = epoch })
		}
		delete(s.VLANs, 7)
		if tt.ledger != (trunk.VLAN{}) {
			s.VLANs[7] = tt.ledger
		}
		next := observed(s, epoch, true, stray)
		b := next.Branches["b"]
		if next.VLANs[7].Owner != tt.want || (b.Stage == trunk.Tagging && b.VLAN == 0) != tt.moved || next.Unowned["eni-9"].Passes != 1 {
			t.Errorf("%s: %+v, %s", name, next.VLANs[7], b)
		}
	}
	s := trunk.New(instance)
	if next := observed(s, epoch, true, shown(func(e *trunk.Seen) { e.VLAN, e.Intent = 0, "" })); len(next.VLANs) != 0 || len(next.Unowned) != 1 {
		t.Errorf("without a VLAN: %v, %v", next.VLANs, next.Unowned)
	}
}

func TestTheVLANOfABranchThatDoesNotExistCoolsDown(t *testing.T) {
	cools := epoch.Add(time.Minute)
	for name, tt := range map[string]struct {
		ledger   trunk.VLAN
		complete bool
		seen     bool
		want     trunk.VLAN
	}{
		"of a branch that is not shown":   {trunk.VLAN{Owner: "eni-9"}, true, false, trunk.VLAN{Owner: "eni-9", Until: cools}},
		"not all was read":                {trunk.VLAN{Owner: "eni-9"}, false, false, trunk.VLAN{Owner: "eni-9"}},
		"of a branch that is shown":       {trunk.VLAN{Owner: "eni-9"}, true, true, trunk.VLAN{Owner: "eni-9"}},
		"of an unknown branch":            {trunk.VLAN{}, true, false, trunk.VLAN{Until: cools}},
		"of an unknown branch, shown now": {trunk.VLAN{}, true, true, trunk.VLAN{Owner: "eni-9"}},
		"of an unknown branch, cooling":   {trunk.VLAN{Until: epoch.Add(1)}, true, true, trunk.VLAN{Until: epoch.Add(1)}},
		"of a branch of the state":        {trunk.VLAN{Owner: "b"}, true, false, trunk.VLAN{Owner: "b"}},
		"it cools down":                   {trunk.VLAN{Owner: "eni-9", Until: epoch.Add(1)}, true, false, trunk.VLAN{Owner: "eni-9", Until: epoch.Add(1)}},
	} {
		s := with(func(b *trunk.Branch) { b.Changed = epoch })
		s.VLANs[9] = tt.ledger
		seen := []trunk.Seen{shown(func(*trunk.Seen) {})}
		if tt.seen {
			seen = append(seen, shown(func(e *trunk.Seen) { e.ENI, e.VLAN, e.Intent = "eni-9", 9, "" }))
		}
		if got := observed(s, epoch, tt.complete, seen...).VLANs[9]; got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
