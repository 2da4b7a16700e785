package trunk_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// old is when an observation may contradict what was recorded at epoch.
func old() time.Time { return epoch.Add(trunk.DefaultConfig().MinAge) }

// observed is a state after an observation with these interfaces.
func observed(s trunk.State, at time.Time, complete bool, seen ...trunk.Seen) trunk.State {
	return trunk.Observe(s, trunk.Observation{At: at, Complete: complete, Interfaces: seen}, trunk.DefaultConfig(), at)
}

func seenTrunk(device int) trunk.Seen {
	return trunk.Seen{ENI: "eni-1", Type: vpc.TypeTrunk, Intent: "t-1", Subnet: "subnet-a", MAC: vpc.MAC{2, 1}, Groups: trunk.NewGroups("sg-node"), Device: device}
}

// shown is the branch of with as EC2 describes it.
func shown(edit func(*trunk.Seen)) trunk.Seen {
	e := trunk.Seen{ENI: "eni-2", Type: vpc.TypeBranch, Intent: "b", Subnet: "subnet-a", MAC: vpc.MAC{2, 2}, Groups: trunk.NewGroups("sg-a"), Association: "assoc-1", VLAN: 7}
	edit(&e)
	return e
}

func TestATrunkThatEC2ShowsIsTakenOver(t *testing.T) {
	attached := trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", MAC: vpc.MAC{2, 1}, Device: 2, Subnet: "subnet-a", Groups: trunk.NewGroups("sg-node")}
	loose := attached
	loose.Stage, loose.Device = trunk.Attaching, 0
	call := func(kind trunk.Kind, lost bool) *trunk.Intent {
		return &trunk.Intent{Action: trunk.Action{ID: "t-1", Kind: kind}, Lost: lost, At: epoch}
	}
	other := call(trunk.CreateTrunk, true)
	other.Action.ID = "t-9"
	for name, tt := range map[string]struct {
		is   trunk.Trunk
		seen trunk.Seen
		want trunk.Trunk // a zero one: it is unchanged
	}{
		"by a new state":                           {trunk.Trunk{}, seenTrunk(2), attached},
		"by a new state, not attached":             {trunk.Trunk{}, seenTrunk(0), loose},
		"after a lost reply to its creation":       {trunk.Trunk{Stage: trunk.Creating, Intent: call(trunk.CreateTrunk, true)}, seenTrunk(0), loose},
		"not while its creation is in flight":      {trunk.Trunk{Stage: trunk.Creating, Intent: call(trunk.CreateTrunk, false)}, seenTrunk(0), trunk.Trunk{}},
		"not for the creation of another":          {trunk.Trunk{Stage: trunk.Creating, Intent: other}, seenTrunk(0), trunk.Trunk{}},
		"after a lost reply to its attachment":     {trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Intent: call(trunk.AttachTrunk, true)}, seenTrunk(2), attached},
		"attached by another program":              {trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1"}, seenTrunk(2), attached},
		"not while its attachment is in flight":    {trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Intent: call(trunk.AttachTrunk, false)}, seenTrunk(2), trunk.Trunk{}},
		"not while it is not attached":             {trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Intent: call(trunk.AttachTrunk, true)}, seenTrunk(0), trunk.Trunk{}},
		"not another one":                          {trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-9", Intent: call(trunk.AttachTrunk, true)}, seenTrunk(2), trunk.Trunk{}},
		"not in the place of one that is attached": {attached, seenTrunk(2), trunk.Trunk{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := trunk.New(instance)
			s.Trunk = tt.is
			want := tt.want
			if want.Stage == "" {
				want = tt.is
			}
			if got := observed(s, epoch, true, tt.seen).Trunk; !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

func TestALostCallOfTheTrunkThatLeftNothingIsForgotten(t *testing.T) {
	for name, tt := range map[string]struct {
		kind     trunk.Kind
		lost     bool
		at       time.Time
		complete bool
		seen     []trunk.Seen
		want     bool // it is forgotten
	}{
		"a creation":                           {trunk.CreateTrunk, true, old(), true, nil, true},
		"a creation that is in flight":         {trunk.CreateTrunk, false, old(), true, nil, false},
		"a creation that EC2 may not show yet": {trunk.CreateTrunk, true, old().Add(-1), true, nil, false},
		"a creation, not all was read":         {trunk.CreateTrunk, true, old(), false, nil, false},
		"a deletion":                           {trunk.DeleteTrunk, true, old(), true, nil, true},
		"a deletion that EC2 shows":            {trunk.DeleteTrunk, true, old(), true, []trunk.Seen{seenTrunk(0)}, false},
		"an attachment":                        {trunk.AttachTrunk, true, old(), true, nil, false},
	} {
		s := trunk.New(instance)
		s.Trunk = trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1", Intent: &trunk.Intent{Action: trunk.Action{ID: "t-2", Kind: tt.kind}, Lost: tt.lost, At: epoch}}
		if got := observed(s, tt.at, tt.complete, tt.seen...).Trunk.Stage == trunk.Absent; got != tt.want {
			t.Errorf("%s: forgotten %v, want %v", name, got, tt.want)
		}
	}
}

func TestATrunkIsMissingOnlyByTwoObservationsApart(t *testing.T) {
	ready := trunk.Trunk{Stage: trunk.Ready, ENI: "eni-1", Device: 2}
	since := func(tr trunk.Trunk, at time.Time) trunk.Trunk { tr.Missing = at; return tr }
	loose := trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1"}
	deleting := trunk.Trunk{Stage: trunk.Deleting, ENI: "eni-1", Intent: &trunk.Intent{Action: trunk.Action{ID: "t-3", Kind: trunk.DeleteTrunk}, At: epoch}}
	attaching := loose
	attaching.Intent = &trunk.Intent{Action: trunk.Action{ID: "t-2", Kind: trunk.AttachTrunk}, At: epoch}
	for name, tt := range map[string]struct {
		is       trunk.Trunk
		complete bool
		seen     []trunk.Seen
		want     trunk.Trunk
	}{
		"not shown":                            {ready, true, nil, since(ready, old())},
		"not shown, not all was read":          {ready, false, nil, ready},
		"shown without a device":               {ready, true, []trunk.Seen{seenTrunk(0)}, since(ready, old())},
		"without a device, not all was read":   {ready, false, []trunk.Seen{seenTrunk(0)}, since(ready, old())},
		"shown again":                          {since(ready, epoch), true, []trunk.Seen{seenTrunk(2)}, ready},
		"not shown again":                      {since(ready, epoch), true, nil, trunk.Trunk{}},
		"not shown again, not all was read":    {since(ready, epoch), false, nil, since(ready, epoch)},
		"without a device again":               {since(ready, epoch), true, []trunk.Seen{seenTrunk(0)}, loose},
		"not shown again, too early":           {since(ready, epoch.Add(1)), true, nil, since(ready, epoch.Add(1))},
		"not attached yet, and shown":          {since(loose, epoch), true, []trunk.Seen{seenTrunk(0)}, loose},
		"not attached yet, and not shown":      {loose, true, nil, since(loose, old())},
		"while it is being attached":           {attaching, true, nil, attaching},
		"while it is being deleted":            {since(deleting, epoch), true, nil, deleting},
		"of a state without a trunk":           {since(trunk.Trunk{}, epoch), true, nil, trunk.Trunk{}},
		"while it is created, which has begun": {since(trunk.Trunk{Stage: trunk.Creating}, epoch), true, nil, trunk.Trunk{Stage: trunk.Creating}},
	} {
		t.Run(name, func(t *testing.T) {
			s := trunk.New(instance)
			s.Trunk = tt.is
			next := observed(s, old(), tt.complete, tt.seen...)
			if !reflect.DeepEqual(next.Trunk, tt.want) || !next.Observed.Equal(old()) {
				t.Errorf("%+v, want %+v", next.Trunk, tt.want)
			}
		})
	}
}

// EC2 shows a branch without a call in flight otherwise than it is recorded.
func TestWhatAnotherProgramChangedIsTakenOver(t *testing.T) {
	cools := old().Add(time.Minute)
	for name, tt := range map[string]struct {
		branch   func(*trunk.Branch)
		at       time.Time
		complete bool
		seen     []trunk.Seen
		want     func(*trunk.Branch) // nil: it is unchanged
		until    time.Time           // of VLAN 7
	}{
		"nothing":    {in(trunk.Bound), old(), true, []trunk.Seen{shown(func(*trunk.Seen) {})}, nil, time.Time{}},
		"its groups": {in(trunk.Bound), old(), true, []trunk.Seen{shown(func(e *trunk.Seen) { e.Groups = trunk.Groups{"sg-z", "sg-y"} })}, func(b *trunk.Branch) { b.Groups = trunk.NewGroups("sg-y", "sg-z") }, time.Time{}},
		"its groups, which may be those of before": {in(trunk.Bound), old().Add(-1), true, []trunk.Seen{shown(func(e *trunk.Seen) { e.Groups = nil })}, nil, time.Time{}},
		"another association":                      {in(trunk.Bound), old(), true, []trunk.Seen{shown(func(e *trunk.Seen) { e.Association = "assoc-9" })}, func(b *trunk.Branch) { b.Association = "assoc-9" }, time.Time{}},
		"its association has ended":                {in(trunk.Bound), old(), true, []trunk.Seen{shown(func(e *trunk.Seen) { e.Association, e.VLAN = "", 0 })}, func(b *trunk.Branch) { b.Association, b.Stage, b.Since = "", trunk.Associating, old() }, time.Time{}},
		"that of a branch that cools down":         {in(trunk.Cooling), old(), true, []trunk.Seen{shown(func(e *trunk.Seen) { e.Association, e.VLAN = "", 0 })}, func(b *trunk.Branch) { b.Association, b.VLAN, b.Stage, b.Since = "", 0, trunk.Deleting, old() }, cools},
		"that of a branch that is given up":        {in(trunk.Disassociating), old(), true, []trunk.Seen{shown(func(e *trunk.Seen) { e.Association, e.VLAN = "", 0 })}, func(b *trunk.Branch) { b.Association, b.VLAN, b.Stage, b.Since = "", 0, trunk.Deleting, old() }, cools},
		"an association that is not recorded":      {in(trunk.Associating), old(), true, []trunk.Seen{shown(func(*trunk.Seen) {})}, nil, time.Time{}},
		"it is deleted":                            {in(trunk.Idle), old(), true, nil, func(b *trunk.Branch) { b.Association, b.VLAN, b.Stage, b.Since = "", 0, trunk.Deleting, old() }, old()},
		"it is deleted, and a pod had used it":     {func(b *trunk.Branch) { in(trunk.Cooling)(b); b.Used = true }, old(), true, nil, func(b *trunk.Branch) { b.Association, b.VLAN, b.Stage, b.Since = "", 0, trunk.Deleting, old() }, cools},
		"it is not shown, not all was read":        {in(trunk.Idle), old(), false, nil, nil, time.Time{}},
		"a pod's is deleted":                       {func(b *trunk.Branch) { in(trunk.Bound)(b); b.Pod = "pod-1" }, old(), true, nil, nil, time.Time{}},
		"one that does not exist yet is not shown": {func(b *trunk.Branch) { in(trunk.Creating)(b); b.ENI = "" }, old(), true, nil, nil, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := with(func(b *trunk.Branch) { tt.branch(b); b.Changed = epoch })
			want := s.Branches["b"]
			if tt.want != nil {
				tt.want(&want)
			}
			next := observed(s, tt.at, tt.complete, append(tt.seen, seenTrunk(2))...)
			if got := next.Branches["b"]; !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
			if got := next.VLANs[7]; got.Owner != "b" || !got.Until.Equal(tt.until) {
				t.Errorf("VLAN 7: %+v, want until %s", got, tt.until)
			}
		})
	}
}

func TestAnUnknownOutcomeIsTakenFromWhatEC2Shows(t *testing.T) {
	sgB := trunk.NewGroups("sg-b")
	set := of(trunk.SetGroups, forPod("pod-1", sgB))
	gone := func(e *trunk.Seen) { e.Association, e.VLAN = "", 0 }
	for name, tt := range map[string]struct {
		action trunk.Action
		branch func(*trunk.Branch)
		seen   []trunk.Seen
		early  string // what has become of it at epoch, and once the describe is not stale
		late   string
	}{
		"created":                       {of(trunk.CreateBranch), func(b *trunk.Branch) { in(trunk.Creating)(b); b.ENI = "" }, []trunk.Seen{shown(gone)}, "tagging", "tagging"},
		"not created":                   {of(trunk.CreateBranch), func(b *trunk.Branch) { in(trunk.Creating)(b); b.ENI = "" }, nil, "open", "forgotten"},
		"associated":                    {of(trunk.Associate, vlan(7)), in(trunk.Associating), []trunk.Seen{shown(func(*trunk.Seen) {})}, "idle", "idle"},
		"associated under another VLAN": {of(trunk.Associate, vlan(8)), in(trunk.Associating), []trunk.Seen{shown(func(*trunk.Seen) {})}, "open", "associating"},
		"not associated, and shown with its VLAN": {of(trunk.Associate, vlan(7)), in(trunk.Associating), []trunk.Seen{shown(func(e *trunk.Seen) { e.Association = "" })}, "open", "associating"},
		"not associated":                      {of(trunk.Associate, vlan(7)), in(trunk.Associating), []trunk.Seen{shown(gone)}, "open", "associating"},
		"groups set":                          {set, in(trunk.Bound), []trunk.Seen{shown(func(e *trunk.Seen) { e.Groups = sgB })}, "open", "bound"},
		"groups not set":                      {set, in(trunk.Bound), []trunk.Seen{shown(func(*trunk.Seen) {})}, "open", "bound"},
		"groups of a branch that is gone":     {set, in(trunk.Bound), nil, "open", "open"},
		"disassociated":                       {of(trunk.Disassociate), in(trunk.Disassociating), []trunk.Seen{shown(gone)}, "open", "deleting"},
		"not disassociated":                   {of(trunk.Disassociate), in(trunk.Disassociating), []trunk.Seen{shown(func(*trunk.Seen) {})}, "open", "open"},
		"deleted":                             {of(trunk.DeleteBranch), in(trunk.Deleting), nil, "open", "forgotten"},
		"not deleted":                         {of(trunk.DeleteBranch), in(trunk.Deleting), []trunk.Seen{shown(gone)}, "open", "open"},
		"tagged, which is not shown":          {of(trunk.TagBranch), in(trunk.Tagging), []trunk.Seen{shown(gone)}, "open", "open"},
		"bound, which is in no answer of EC2": {of(trunk.Bind), in(trunk.Binding), []trunk.Seen{shown(func(*trunk.Seen) {})}, "open", "open"},
	} {
		t.Run(name, func(t *testing.T) {
			for at, want := range map[time.Time]string{epoch: tt.early, old(): tt.late} {
				s := inFlight(tt.action, func(b *trunk.Branch) { tt.branch(b); b.Changed = epoch })
				s.Branches["b"].Intent.Lost = true
				s.Backoffs["branch/b"] = trunk.Backoff{Tries: 1}
				next := observed(s, at, true, append(tt.seen, seenTrunk(2))...)
				b, exists := next.Branches["b"]
				got := string(b.Stage)
				switch {
				case !exists:
					got = "forgotten"
				case b.Intent != nil:
					got = "open"
				}
				if got != want {
					t.Errorf("at %s it is %s, want %s: %s", at, got, want, next)
				}
				if len(next.Backoffs) == 0 && got == "open" || len(next.Backoffs) == 1 && got == "forgotten" {
					t.Errorf("at %s it is %s, and back-offs are %v", at, got, next.Backoffs)
				}
				if exists && b.Intent == nil && len(tt.seen) > 0 && (!b.Groups.Equal(tt.seen[0].Groups) || !b.Changed.Equal(at)) {
					t.Errorf("at %s it has %s since %s", at, b.Groups, b.Changed)
				}
			}
			s := inFlight(tt.action, tt.branch)
			if next := observed(s, old(), true, append(tt.seen, seenTrunk(2))...); next.Branches["b"].Intent == nil {
				t.Errorf("while the call is in flight: %s", next)
			}
			s.Branches["b"].Intent.Lost, s.Branches["b"].Intent.At = true, old()
			if next := observed(s, old().Add(-1), true, append(tt.seen, seenTrunk(2))...); next.Branches["b"].Intent == nil {
				t.Errorf("by an observation before the call: %s", next)
			}
		})
	}
}

func TestALostReplyIsReplacedByWhatEC2Shows(t *testing.T) {
	created := shown(func(e *trunk.Seen) {
		e.IPv4, e.IPv6, e.Association, e.VLAN, e.Groups = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2"), "", 0, trunk.Groups{"sg-z", "sg-y"}
	})
	s := inFlight(of(trunk.CreateBranch), func(b *trunk.Branch) { in(trunk.Creating)(b); b.ENI, b.VLAN, b.Groups = "", 0, nil })
	s.Branches["b"].Intent.Lost = true
	want := trunk.Branch{ID: "b", ENI: "eni-2", MAC: created.MAC, IPv4: created.IPv4, IPv6: created.IPv6, Subnet: "subnet-a", Groups: trunk.NewGroups("sg-y", "sg-z"), Stage: trunk.Tagging, Since: old(), Changed: old()}
	if got := observed(s, old(), true, created).Branches["b"]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for groups, ends := range map[vpc.SecurityGroupID]bool{"sg-deny": true, "sg-a": false} {
		s := inFlight(of(trunk.SetGroups, forPod("", trunk.NewGroups("sg-deny"))), in(trunk.Cooling))
		s.Branches["b"].Intent.Lost = true
		s.Backoffs["branch/b"] = trunk.Backoff{Tries: 1}
		next := observed(s, old(), true, shown(func(e *trunk.Seen) { e.Groups = trunk.NewGroups(groups) }))
		if b := next.Branches["b"]; b.Since.Equal(old()) != ends || (len(next.Backoffs) == 0) != ends || !b.Groups.Equal(trunk.NewGroups(groups)) {
			t.Errorf("with %s: %s, %v; want that the cool-down begins now: %v", groups, b, next.Backoffs, ends)
		}
	}
}
