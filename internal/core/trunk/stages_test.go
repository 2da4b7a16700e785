package trunk_test

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
)

// with is a node with a trunk and one branch, eni-2 with VLAN 7, changed by edit.
func with(edit func(*trunk.Branch)) trunk.State {
	s := trunk.New(instance)
	s.Trunk = trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", Device: 2}
	b := trunk.Branch{ID: "b", ENI: "eni-2", Subnet: "subnet-a", VLAN: 7, Groups: trunk.NewGroups("sg-a"), Stage: trunk.Idle, Since: epoch, Association: "assoc-1"}
	edit(&b)
	s.Branches[b.ID], s.VLANs[7] = b, trunk.VLAN{Owner: b.ID}
	return s
}

// in is a branch in a stage, associated where a branch of that stage is.
func in(stage trunk.Stage) func(*trunk.Branch) {
	return func(b *trunk.Branch) {
		b.Stage = stage
		switch stage {
		case trunk.Creating, trunk.Tagging, trunk.Associating, trunk.Deleting:
			b.Association = ""
		default:
		}
	}
}

// of is an action of that branch.
func of(kind trunk.Kind, edit ...func(*trunk.Action)) trunk.Action {
	a := trunk.Action{ID: "x", Kind: kind, Instance: instance, Branch: "b", ENI: "eni-2"}
	for _, f := range edit {
		f(&a)
	}
	return a
}

func vlan(n int) func(*trunk.Action) { return func(a *trunk.Action) { a.VLAN = n } }

func forPod(pod trunk.PodUID, groups trunk.Groups) func(*trunk.Action) {
	return func(a *trunk.Action) { a.Pod, a.Groups = pod, groups }
}

func TestEachActionBeginsOnlyInItsStages(t *testing.T) {
	sgA, deny := trunk.NewGroups("sg-a"), trunk.NewGroups("sg-deny")
	for name, tt := range map[string]struct {
		action trunk.Action
		stages string
	}{
		"a tag":                           {of(trunk.TagBranch, vlan(7)), "tagging"},
		"an association":                  {of(trunk.Associate, vlan(7)), "associating"},
		"an association with other tags":  {of(trunk.Associate, vlan(8)), ""},
		"groups for a pod":                {of(trunk.SetGroups, forPod("pod-1", sgA)), "idle binding"},
		"quarantine":                      {of(trunk.SetGroups, forPod("", deny)), "idle binding bound cooling"},
		"a binding":                       {of(trunk.Bind, forPod("pod-1", sgA)), "idle binding"},
		"a binding with other groups":     {of(trunk.Bind, forPod("pod-1", deny)), ""},
		"quarantine for a pod":            {of(trunk.SetGroups, forPod("pod-1", deny)), "idle binding"},
		"other groups for no pod":         {of(trunk.SetGroups, forPod("", trunk.NewGroups("sg-b"))), "idle binding bound"},
		"a binding of none in quarantine": {of(trunk.Bind, forPod("", deny)), ""},
		"a binding of no pod":             {of(trunk.Bind, forPod("", sgA)), ""},
		"an end of the association":       {of(trunk.Disassociate), "idle binding bound cooling disassociating"},
		"a deletion":                      {of(trunk.DeleteBranch), "creating tagging associating deleting"},
		"a trunk's action":                {of("Paint"), ""},
		"a release of what no pod has":    {of(trunk.Release, forPod("", nil)), ""},
		"a release of another pod's":      {of(trunk.Release, forPod("pod-1", nil)), ""},
		"a creation":                      {of(trunk.CreateBranch), "creating"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, stage := range []trunk.Stage{trunk.Creating, trunk.Tagging, trunk.Associating, trunk.Idle, trunk.Binding, trunk.Bound, trunk.Cooling, trunk.Disassociating, trunk.Deleting} {
				s := with(in(stage))
				next, err := trunk.Begin(s, tt.action, warmConfig(0), epoch)
				if err == nil {
					got = append(got, string(stage))
				} else if !errors.Is(err, trunk.ErrStale) || !reflect.DeepEqual(next, s) {
					t.Errorf("%s: %v, %s", stage, err, next)
				}
			}
			if strings.Join(got, " ") != tt.stages {
				t.Errorf("it begins in %q, want %q", got, tt.stages)
			}
		})
	}
}

// Stages of a trunk are none of a branch.
func TestABranchInAStageOfTrunksIsNotUsed(t *testing.T) {
	for _, stage := range []trunk.Stage{trunk.Absent, trunk.Attaching, trunk.Ready} {
		for _, kind := range []trunk.Kind{trunk.SetGroups, trunk.Bind} {
			if _, err := trunk.Begin(with(in(stage)), of(kind, forPod("pod-1", trunk.NewGroups("sg-a"))), warmConfig(0), epoch); !errors.Is(err, trunk.ErrStale) {
				t.Errorf("%s in %q: %v", kind, stage, err)
			}
		}
	}
}

func TestABranchIsReservedForItsPod(t *testing.T) {
	s := with(func(b *trunk.Branch) { b.Pod = "pod-1" })
	for _, a := range []trunk.Action{
		of(trunk.Bind, forPod("pod-2", trunk.NewGroups("sg-a"))), of(trunk.SetGroups, forPod("pod-2", trunk.NewGroups("sg-b"))),
		of(trunk.Disassociate), of(trunk.Disassociate, forPod("pod-1", nil)),
	} {
		if next, err := trunk.Begin(s, a, warmConfig(0), epoch); !errors.Is(err, trunk.ErrStale) || !reflect.DeepEqual(next, s) {
			t.Errorf("%s: %v", a, err)
		}
	}
	now := epoch.Add(time.Minute)
	next, err := trunk.Begin(s, of(trunk.Bind, forPod("pod-1", trunk.NewGroups("sg-a"))), warmConfig(0), now)
	if b := next.Branches["b"]; err != nil || b.Stage != trunk.Binding || !b.Used || b.Pod != "pod-1" || !b.Since.Equal(now) {
		t.Errorf("its own binding: %v, %+v", err, b)
	}
}

func TestAVLANIsReservedOnlyForOneBranch(t *testing.T) {
	later := epoch.Add(time.Minute)
	for name, tt := range map[string]struct {
		has, asked int
		owner      trunk.VLAN // of the asked one
		at         time.Time
		want       bool
	}{
		"a free one":               {0, 7, trunk.VLAN{}, epoch, true},
		"the first":                {0, 1, trunk.VLAN{}, epoch, true},
		"the last":                 {0, 120, trunk.VLAN{}, epoch, true},
		"none":                     {0, 0, trunk.VLAN{}, epoch, false},
		"one beyond the last":      {0, 121, trunk.VLAN{}, epoch, false},
		"its own again":            {7, 7, trunk.VLAN{Owner: "b"}, epoch, true},
		"another than its own":     {7, 8, trunk.VLAN{}, epoch, false},
		"another's":                {0, 7, trunk.VLAN{Owner: "other"}, epoch, false},
		"one that cools down":      {0, 7, trunk.VLAN{Owner: "other", Until: later}, epoch, false},
		"one that has cooled down": {0, 7, trunk.VLAN{Owner: "other", Until: later}, later, true},
		"its own, which it lost and which cools down": {0, 7, trunk.VLAN{Owner: "b", Until: later}, epoch, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := with(func(b *trunk.Branch) { in(trunk.Tagging)(b); b.VLAN = tt.has })
			delete(s.VLANs, 7)
			if tt.owner != (trunk.VLAN{}) {
				s.VLANs[tt.asked] = tt.owner
			}
			next, err := trunk.Begin(s, of(trunk.TagBranch, vlan(tt.asked)), trunk.DefaultConfig(), tt.at)
			if (err == nil) != tt.want {
				t.Fatalf("%v, want that it begins: %v", err, tt.want)
			}
			if b := next.Branches["b"]; err == nil && (b.VLAN != tt.asked || next.VLANs[tt.asked] != (trunk.VLAN{Owner: "b"}) || next.LastVLAN != tt.asked) {
				t.Errorf("%s, %v, last %d", b, next.VLANs, next.LastVLAN)
			}
		})
	}
}

// A branch of an ended pod is another's once it carries exactly the quarantine groups, no call is in flight,
// and it has cooled down since.
func TestABranchIsAnotherPodsOnlyOnceItHasCooledDownInQuarantine(t *testing.T) {
	deny := trunk.NewGroups("sg-deny")
	cooled := epoch.Add(time.Minute)
	for name, tt := range map[string]struct {
		groups, quarantine trunk.Groups
		at                 time.Time
		want               bool
	}{
		"at the end of its cool-down":    {deny, deny, cooled, true},
		"before":                         {deny, deny, cooled.Add(-1), false},
		"with the groups of its pod":     {trunk.NewGroups("sg-a"), deny, cooled, false},
		"without a quarantine group":     {deny, nil, cooled, false},
		"without any groups":             {nil, nil, cooled, false},
		"quarantine in any order, twice": {trunk.NewGroups("sg-deny", "sg-none"), trunk.Groups{"sg-none", "sg-deny", "sg-none"}, cooled, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := with(func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Groups, b.Used = tt.groups, true })
			c := trunk.DefaultConfig()
			c.Quarantine = tt.quarantine
			next, err := trunk.Begin(s, of(trunk.SetGroups, forPod("pod-2", trunk.NewGroups("sg-b"))), c, tt.at)
			if (err == nil) != tt.want {
				t.Fatalf("%v, want that it begins: %v", err, tt.want)
			}
			if b := next.Branches["b"]; err == nil && (b.Stage != trunk.Idle || b.Used || b.Pod != "pod-2" || !b.Since.Equal(tt.at) || !b.Changed.Equal(tt.at)) {
				t.Errorf("%+v", b)
			}
		})
	}
	s := with(func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Used = true })
	c := trunk.DefaultConfig()
	c.Quarantine = trunk.Groups{"sg-none", "sg-deny"} // in another order than that of the action
	if _, err := trunk.Begin(s, of(trunk.SetGroups, forPod("", trunk.NewGroups("sg-deny", "sg-none"))), c, epoch); err != nil {
		t.Errorf("quarantine: %v", err)
	}
}

func TestTheGroupsOfARunningPodAreSetOnlyForIt(t *testing.T) {
	s := with(func(b *trunk.Branch) { in(trunk.Bound)(b); b.Pod, b.Used = "pod-1", true })
	for name, tt := range map[string]struct {
		action trunk.Action
		want   bool
	}{
		"for the pod":     {of(trunk.SetGroups, forPod("pod-1", trunk.NewGroups("sg-b"))), true},
		"for another pod": {of(trunk.SetGroups, forPod("pod-2", trunk.NewGroups("sg-b"))), false},
		"for no pod":      {of(trunk.SetGroups, forPod("", trunk.NewGroups("sg-b"))), false},
		"a binding again": {of(trunk.Bind, forPod("pod-1", trunk.NewGroups("sg-a"))), false},
		"a deletion":      {of(trunk.DeleteBranch), false},
	} {
		next, err := trunk.Begin(s, tt.action, warmConfig(0), epoch)
		if (err == nil) != tt.want {
			t.Errorf("%s: %v, want that it begins: %v", name, err, tt.want)
		}
		if b := next.Branches["b"]; b.Pod != "pod-1" || b.Stage != trunk.Bound || (b.Intent != nil) != tt.want {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

func TestBeginRecordsWhatARestartNeeds(t *testing.T) {
	now := epoch.Add(time.Hour)
	s := with(func(*trunk.Branch) {})
	s.VLANs[9] = trunk.VLAN{Owner: "old", Until: now}
	s.VLANs[10] = trunk.VLAN{Owner: "old", Until: now.Add(1)}
	create := trunk.Action{ID: "act-9", Kind: trunk.CreateBranch, Instance: instance, Subnet: "subnet-b", Groups: trunk.NewGroups("sg-b"), Pod: "pod-1", Why: "the pod wants it"}
	next, err := trunk.Begin(s, create, trunk.DefaultConfig(), now)
	if err != nil {
		t.Fatal(err)
	}
	recorded := create
	recorded.Began, recorded.Branch = now, "act-9"
	want := trunk.Branch{ID: "act-9", Subnet: "subnet-b", Pod: "pod-1", Stage: trunk.Creating, Since: now, Changed: now}
	got := next.Branches["act-9"]
	if i := got.Intent; i == nil || !reflect.DeepEqual(*i, trunk.Intent{Action: recorded, Tries: 1, At: now}) {
		t.Errorf("the intent: %+v", i)
	}
	if got.Intent = nil; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if _, has := next.VLANs[9]; has || next.VLANs[10].Owner != "old" || len(s.VLANs) != 3 {
		t.Errorf("VLANs %v, want all but the one that has cooled down; of the state before: %v", next.VLANs, s.VLANs)
	}
	if _, err := trunk.Begin(next, create, trunk.DefaultConfig(), now); !errors.Is(err, trunk.ErrStale) {
		t.Errorf("a branch with the ID of another: %v", err)
	}
}

func TestTheNextTryHasTheIntentOfTheFirst(t *testing.T) {
	s := with(func(*trunk.Branch) {})
	a := of(trunk.SetGroups, forPod("pod-1", trunk.NewGroups("sg-b")))
	s, err := trunk.Begin(s, a, trunk.DefaultConfig(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	restarted, before := epoch.Add(time.Minute), s
	s = trunk.Restart(s, restarted)
	if before.Branches["b"].Intent.Lost {
		t.Error("the state that was given has changed")
	}
	if i, _ := s.Call("x"); !i.Lost || !i.Unknown || !i.At.Equal(restarted) || !i.Retry.Equal(restarted) || i.Tries != 1 {
		t.Errorf("after the restart: %+v", i)
	}
	if twice := trunk.Restart(s, restarted.Add(time.Hour)); !reflect.DeepEqual(twice, s) {
		t.Errorf("a second restart changes %s to %s", s, twice)
	}
	other := a
	other.ID = "y"
	if _, err := trunk.Begin(s, other, trunk.DefaultConfig(), restarted); !errors.Is(err, trunk.ErrBusy) {
		t.Errorf("another call: %v", err)
	}
	again := restarted.Add(time.Minute)
	s, err = trunk.Begin(s, a, trunk.DefaultConfig(), again)
	if err != nil {
		t.Fatal(err)
	}
	if i, _ := s.Call("x"); i.Lost || !i.Unknown || !i.At.Equal(again) || !i.Retry.IsZero() || i.Tries != 2 || !i.Action.Began.Equal(epoch) {
		t.Errorf("the next try: %+v", i)
	}
	if b := s.Branches["b"]; b.Pod != "pod-1" || b.Stage != trunk.Idle || !b.Since.Equal(epoch) {
		t.Errorf("%+v", b)
	}
}

func TestANextTryLeavesTheTimeOfItsStage(t *testing.T) {
	for _, a := range []trunk.Action{of(trunk.Disassociate), of(trunk.Bind, forPod("pod-1", trunk.NewGroups("sg-a")))} {
		s, err := trunk.Begin(with(func(*trunk.Branch) {}), a, trunk.DefaultConfig(), epoch.Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		since := s.Branches["b"].Since
		s, err = trunk.Begin(trunk.Restart(s, epoch.Add(time.Hour)), a, trunk.DefaultConfig(), epoch.Add(time.Hour))
		if b := s.Branches["b"]; err != nil || !b.Since.Equal(since) || !since.Equal(epoch.Add(time.Minute)) {
			t.Errorf("%s: %v, %s, want since %s", a, err, b, since)
		}
	}
}

func TestTheTrunkIsMadeStepByStep(t *testing.T) {
	create := trunk.Action{ID: "t-1", Kind: trunk.CreateTrunk, Instance: instance, Subnet: "subnet-a", Groups: trunk.NewGroups("sg-node")}
	attach := trunk.Action{ID: "t-2", Kind: trunk.AttachTrunk, Instance: instance, ENI: "eni-1", Device: 2}
	remove := trunk.Action{ID: "t-3", Kind: trunk.DeleteTrunk, Instance: instance, ENI: "eni-1"}
	c := trunk.DefaultConfig()
	begun := func(s trunk.State, a trunk.Action) trunk.State {
		t.Helper()
		next, err := trunk.Begin(s, a, c, epoch)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	refused := func(s trunk.State, actions ...trunk.Action) {
		t.Helper()
		for _, a := range actions {
			if next, err := trunk.Begin(s, a, c, epoch); !errors.Is(err, trunk.ErrStale) && !errors.Is(err, trunk.ErrBusy) || !reflect.DeepEqual(next, s) {
				t.Errorf("%s of %s: %v", a, s.Trunk, err)
			}
		}
	}
	s := trunk.New(instance)
	refused(s, attach, remove)
	s = begun(s, create)
	if got := s.Trunk; got.Stage != trunk.Creating || got.Subnet != "subnet-a" || !got.Groups.Equal(create.Groups) || got.Intent.Tries != 1 {
		t.Errorf("creating: %+v", got)
	}
	refused(s, create, attach, remove)
	repeated := begun(trunk.Restart(s, epoch), create)
	if got := repeated.Trunk; got.Stage != trunk.Creating || got.Intent.Tries != 2 {
		t.Errorf("created again: %+v", got)
	}
	s = trunk.Settle(s, "t-1", trunk.Outcome{ENI: "eni-1", MAC: [6]byte{2}, Groups: trunk.Groups{"sg-z", "sg-y"}}, c, epoch)
	if want := (trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", MAC: [6]byte{2}, Subnet: "subnet-a", Groups: trunk.NewGroups("sg-y", "sg-z")}); !reflect.DeepEqual(s.Trunk, want) {
		t.Errorf("created: %+v, want %+v", s.Trunk, want)
	}
	other := attach
	other.ENI = "eni-9"
	refused(s, create, other)
	removed := begun(s, remove)
	if removed.Trunk.Stage != trunk.Deleting || removed.Trunk.ENI != "eni-1" {
		t.Errorf("deleting: %+v", removed.Trunk)
	}
	if removed = trunk.Settle(removed, "t-3", trunk.Outcome{}, c, epoch); !reflect.DeepEqual(removed.Trunk, trunk.Trunk{}) {
		t.Errorf("deleted: %+v", removed.Trunk)
	}
	s.Backoffs["trunk"] = trunk.Backoff{Tries: 2}
	s = trunk.Settle(begun(s, attach), "t-2", trunk.Outcome{}, c, epoch)
	if s.Trunk.Stage != trunk.Ready || s.Trunk.Device != 2 || s.Trunk.Intent != nil || len(s.Backoffs) != 0 {
		t.Errorf("attached: %+v, %v", s.Trunk, s.Backoffs)
	}
	refused(s, create, attach, remove)
}

func TestAReleaseForgetsThePod(t *testing.T) {
	now := epoch.Add(time.Minute)
	for name, tt := range map[string]struct {
		branch func(*trunk.Branch)
		stage  trunk.Stage
		intent bool // is left
	}{
		"that used its branch": {func(b *trunk.Branch) { in(trunk.Bound)(b); b.Used = true }, trunk.Cooling, false},
		"that did not use it":  {func(*trunk.Branch) {}, trunk.Idle, false},
		"that was being bound": {func(b *trunk.Branch) {
			in(trunk.Binding)(b)
			b.Used = true
			b.Intent = &trunk.Intent{Action: of(trunk.Bind)}
		}, trunk.Cooling, false},
		"with a change of its groups": {func(b *trunk.Branch) {
			in(trunk.Bound)(b)
			b.Used = true
			b.Intent = &trunk.Intent{Action: of(trunk.SetGroups)}
		}, trunk.Cooling, true},
		"for which it was being tagged": {func(b *trunk.Branch) { in(trunk.Tagging)(b); b.Intent = &trunk.Intent{Action: of(trunk.TagBranch)} }, trunk.Tagging, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := with(func(b *trunk.Branch) { tt.branch(b); b.Pod = "pod-1" })
			s.Refused["pod-1"], s.Backoffs["pod/pod-1"] = trunk.Refusal{Message: "no"}, trunk.Backoff{Tries: 1}
			s.Refused["pod-2"], s.Backoffs["pod/pod-2"] = trunk.Refusal{Message: "no"}, trunk.Backoff{Tries: 1}
			a := of(trunk.Release, forPod("pod-1", nil))
			next, err := trunk.Begin(s, a, trunk.DefaultConfig(), now)
			if err != nil {
				t.Fatal(err)
			}
			b := next.Branches["b"]
			if b.Stage != tt.stage || b.Pod != "" || (b.Intent != nil) != tt.intent || b.Since.Equal(now) != (tt.stage == trunk.Cooling) {
				t.Errorf("%+v", b)
			}
			if len(next.Refused) != 1 || len(next.Backoffs) != 1 {
				t.Errorf("%v, %v, want those of pod-2", next.Refused, next.Backoffs)
			}
			a.Branch = ""
			if next, err = trunk.Begin(s, a, trunk.DefaultConfig(), now); err != nil || len(next.Refused) != 1 || len(next.Backoffs) != 1 || next.Branches["b"].Pod != "pod-1" {
				t.Errorf("of a pod without a branch: %v, %s", err, next)
			}
		})
	}
}

// The VLAN of a branch that was never associated needs no cool-down, unless a pod may have sent under it.
func TestAVLANCoolsDownWhereAPodMayHaveUsedIt(t *testing.T) {
	now := epoch.Add(time.Minute)
	for name, tt := range map[string]struct {
		branch func(*trunk.Branch)
		kind   trunk.Kind
		stage  trunk.Stage
		vlan   int
		until  time.Time // of VLAN 7; zero: it is still the branch's
	}{
		"associated":              {in(trunk.Idle), trunk.Disassociate, trunk.Disassociating, 7, time.Time{}},
		"tagged":                  {in(trunk.Associating), trunk.DeleteBranch, trunk.Deleting, 0, now},
		"tagged, and used before": {func(b *trunk.Branch) { in(trunk.Associating)(b); b.Used = true }, trunk.DeleteBranch, trunk.Deleting, 0, now.Add(time.Minute)},
		"given up before":         {func(b *trunk.Branch) { in(trunk.Deleting)(b); b.Used = true }, trunk.DeleteBranch, trunk.Deleting, 7, time.Time{}},
	} {
		next, err := trunk.Begin(with(tt.branch), of(tt.kind), trunk.DefaultConfig(), now)
		if next.Collected != (trunk.Collected{}) {
			t.Errorf("%s: it counts as unowned: %+v", name, next.Collected)
		}
		if b := next.Branches["b"]; err != nil || b.Stage != tt.stage || b.VLAN != tt.vlan || !b.Since.Equal(now) || !next.VLANs[7].Until.Equal(tt.until) {
			t.Errorf("%s: %v, %s, VLAN 7 %+v", name, err, b, next.VLANs[7])
		}
	}
}

func TestOnlyTheVLANOfABranchCoolsDownWithIt(t *testing.T) {
	s := with(in(trunk.Associating))
	s.VLANs[7] = trunk.VLAN{Owner: "other"}
	next, err := trunk.Begin(s, of(trunk.DeleteBranch), trunk.DefaultConfig(), epoch)
	if err != nil || next.VLANs[7] != (trunk.VLAN{Owner: "other"}) || next.Branches["b"].VLAN != 0 {
		t.Errorf("another has it: %v, %+v", err, next.VLANs[7])
	}
	s = with(func(b *trunk.Branch) { in(trunk.Tagging)(b); b.VLAN = 0 })
	delete(s.VLANs, 7)
	if next, err := trunk.Begin(s, of(trunk.DeleteBranch), trunk.DefaultConfig(), epoch); err != nil || len(next.VLANs) != 0 {
		t.Errorf("without a VLAN: %v, %v", err, next.VLANs)
	}
}

func TestAnUnownedBranchBecomesARowAsItEndsOrIsAdopted(t *testing.T) {
	seen := trunk.Seen{ENI: "eni-7", MAC: [6]byte{2, 7}, IPv4: netip.MustParseAddr("10.0.0.7"), IPv6: netip.MustParseAddr("fd00::7"), Subnet: "subnet-b", VLAN: 8, Association: "assoc-7", Groups: trunk.NewGroups("sg-a")}
	s := with(func(*trunk.Branch) {})
	s.Unowned["eni-7"], s.VLANs[8] = trunk.Unowned{Seen: seen, First: epoch, Passes: 2}, trunk.VLAN{Owner: "eni-7"}
	unowned := func(kind trunk.Kind, pod trunk.PodUID) trunk.Action {
		return trunk.Action{ID: "x", Kind: kind, Instance: instance, ENI: "eni-7", Pod: pod, Association: "assoc-7"}
	}
	now := epoch.Add(time.Hour)
	row := trunk.Branch{ID: "eni-7", ENI: "eni-7", MAC: seen.MAC, IPv4: seen.IPv4, IPv6: seen.IPv6, Subnet: "subnet-b", VLAN: 8, Association: "assoc-7", Groups: seen.Groups, Since: now, Changed: now}
	adopted, err := trunk.Begin(s, unowned(trunk.Adopt, "pod-1"), trunk.DefaultConfig(), now)
	want := row
	want.Stage, want.Pod, want.Used = trunk.Bound, "pod-1", true
	if got := adopted.Branches["eni-7"]; err != nil || !reflect.DeepEqual(got, want) || len(adopted.Unowned) != 0 || adopted.Collected.Count != 0 {
		t.Errorf("adopted: %v, %+v, want %+v", err, got, want)
	}
	ended, err := trunk.Begin(s, unowned(trunk.Disassociate, ""), trunk.DefaultConfig(), now)
	want = row
	want.Stage = trunk.Disassociating
	got := ended.Branches["eni-7"]
	if got.Intent == nil || got.Intent.Action.Branch != "eni-7" {
		t.Errorf("the intent: %+v", got.Intent)
	}
	if got.Intent = nil; err != nil || !reflect.DeepEqual(got, want) || len(ended.Unowned) != 0 || len(s.Unowned) != 1 {
		t.Errorf("given up: %v, %+v, want %+v", err, got, want)
	}
	if ended.Collected != (trunk.Collected{Since: now, Count: 1}) {
		t.Errorf("counted: %+v", ended.Collected)
	}
	s.VLANs[8] = trunk.VLAN{Owner: "b"}
	if _, err := trunk.Begin(s, unowned(trunk.Disassociate, ""), trunk.DefaultConfig(), now); !errors.Is(err, trunk.ErrStale) {
		t.Errorf("another has its VLAN: %v", err)
	}
}

func TestThoseGivenUpAreCountedByIntervals(t *testing.T) {
	c := trunk.DefaultConfig()
	s := trunk.New(instance)
	for i, tt := range []struct {
		at   time.Time
		want trunk.Collected
	}{
		{epoch, trunk.Collected{Since: epoch, Count: 1}},
		{epoch.Add(c.MinAge - 1), trunk.Collected{Since: epoch, Count: 2}},
		{epoch.Add(c.MinAge), trunk.Collected{Since: epoch.Add(c.MinAge), Count: 1}},
	} {
		s.Unowned["eni-7"] = trunk.Unowned{Seen: trunk.Seen{ENI: "eni-7"}}
		delete(s.Branches, "eni-7")
		next, err := trunk.Begin(s, trunk.Action{ID: cloud.ActionID("x" + string(rune('0'+i))), Kind: trunk.DeleteBranch, Instance: instance, ENI: "eni-7"}, c, tt.at)
		if err != nil || next.Collected != tt.want {
			t.Errorf("at %s: %v, %+v, want %+v", tt.at, err, next.Collected, tt.want)
		}
		s = next
	}
}
