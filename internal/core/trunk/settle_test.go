package trunk_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// inFlight is a state with a branch that has a call in flight.
func inFlight(a trunk.Action, edit func(*trunk.Branch)) trunk.State {
	return with(func(b *trunk.Branch) {
		edit(b)
		b.Intent = &trunk.Intent{Action: a, Tries: 1, At: epoch}
	})
}

func TestASuccessTakesABranchToItsNextStage(t *testing.T) {
	now := epoch.Add(time.Minute)
	sgB := trunk.NewGroups("sg-b")
	set := of(trunk.SetGroups, forPod("", sgB))
	for name, tt := range map[string]struct {
		action  trunk.Action
		branch  func(*trunk.Branch)
		outcome trunk.Outcome
		want    func(*trunk.Branch) // of the branch before
	}{
		"tagged":                         {of(trunk.TagBranch), in(trunk.Tagging), trunk.Outcome{}, in(trunk.Associating)},
		"tagged, and given up meanwhile": {of(trunk.TagBranch), in(trunk.Deleting), trunk.Outcome{}, nil},
		"associated":                     {of(trunk.Associate), in(trunk.Associating), trunk.Outcome{Association: "assoc-1"}, func(b *trunk.Branch) { b.Stage, b.Association = trunk.Idle, "assoc-1" }},
		"associated, its pod ended":      {of(trunk.Associate), func(b *trunk.Branch) { b.Stage, b.Association = trunk.Cooling, "" }, trunk.Outcome{Association: "assoc-1"}, func(b *trunk.Branch) { b.Association = "assoc-1" }},
		"other groups":                   {set, in(trunk.Idle), trunk.Outcome{}, func(b *trunk.Branch) { b.Groups = sgB }},
		"other groups of one that cools": {set, in(trunk.Cooling), trunk.Outcome{}, func(b *trunk.Branch) { b.Groups, b.Since = sgB, now }},
		"bound":                          {of(trunk.Bind), in(trunk.Binding), trunk.Outcome{}, in(trunk.Bound)},
		"disassociated":                  {of(trunk.Disassociate), in(trunk.Disassociating), trunk.Outcome{}, func(b *trunk.Branch) { in(trunk.Deleting)(b); b.VLAN = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := inFlight(tt.action, tt.branch)
			s.Backoffs["branch/b"] = trunk.Backoff{Tries: 2}
			want := s.Branches["b"]
			want.Intent, want.Changed = nil, now
			if tt.want != nil {
				tt.want(&want)
			}
			if want.Stage != s.Branches["b"].Stage {
				want.Since = now
			}
			next := trunk.Settle(s, "x", tt.outcome, trunk.DefaultConfig(), now)
			if got := next.Branches["b"]; !reflect.DeepEqual(got, want) || len(next.Backoffs) != 0 {
				t.Errorf("%+v, want %+v; %v", got, want, next.Backoffs)
			}
			if cools := next.VLANs[7].Until.Equal(now.Add(time.Minute)); cools != (name == "disassociated") {
				t.Errorf("VLAN 7: %+v", next.VLANs[7])
			}
		})
	}
	if s := trunk.Settle(inFlight(of(trunk.DeleteBranch), in(trunk.Deleting)), "x", trunk.Outcome{}, trunk.DefaultConfig(), now); len(s.Branches) != 0 {
		t.Errorf("deleted: %s", s)
	}
}

func TestACreatedBranchHasTheAddressesAndGroupsThatEC2Gave(t *testing.T) {
	now := epoch.Add(time.Minute)
	create := of(trunk.CreateBranch, forPod("pod-1", trunk.NewGroups("sg-a")))
	create.Subnet = "subnet-a"
	o := trunk.Outcome{ENI: "eni-5", MAC: vpc.MAC{2, 5}, IPv4: netip.MustParseAddr("10.0.0.5"), IPv6: netip.MustParseAddr("fd00::5")}
	s := inFlight(create, func(b *trunk.Branch) { in(trunk.Creating)(b); b.ENI, b.Groups, b.Pod, b.VLAN = "", nil, "pod-1", 0 })
	for _, key := range []string{"branch/b", "subnet/subnet-a", "subnet/subnet-b", "pod/pod-1", "pod/pod-2", "warm"} {
		s.Backoffs[key] = trunk.Backoff{Tries: 1}
	}
	next := trunk.Settle(s, "x", o, trunk.DefaultConfig(), now)
	want := trunk.Branch{ID: "b", ENI: o.ENI, MAC: o.MAC, IPv4: o.IPv4, IPv6: o.IPv6, Subnet: "subnet-a", Groups: trunk.NewGroups("sg-a"), Pod: "pod-1", Stage: trunk.Tagging, Since: now, Changed: now}
	if got := next.Branches["b"]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(next.Backoffs) != 3 || next.Backoffs["subnet/subnet-b"].Tries+next.Backoffs["pod/pod-2"].Tries+next.Backoffs["warm"].Tries != 3 {
		t.Errorf("back-offs %v, want those of others", next.Backoffs)
	}
	o.Groups = trunk.Groups{"sg-z", "sg-y", "sg-z"}
	if got := trunk.Settle(s, "x", o, trunk.DefaultConfig(), now).Branches["b"].Groups; !got.Equal(trunk.NewGroups("sg-y", "sg-z")) {
		t.Errorf("groups by the reply: %s", got)
	}
	warm := inFlight(of(trunk.CreateBranch), in(trunk.Creating))
	warm.Backoffs["warm"], warm.Backoffs["pod/pod-1"] = trunk.Backoff{Tries: 1}, trunk.Backoff{Tries: 1}
	if next := trunk.Settle(warm, "x", o, trunk.DefaultConfig(), now); len(next.Backoffs) != 1 || next.Backoffs["pod/pod-1"].Tries != 1 {
		t.Errorf("back-offs %v, want that of the pod", next.Backoffs)
	}
}

func TestTheAddressesOfANewBranchAreTakenFromOneThatHadThem(t *testing.T) {
	o := trunk.Outcome{ENI: "eni-5", MAC: vpc.MAC{2, 5}, IPv4: netip.MustParseAddr("10.0.0.5"), IPv6: netip.MustParseAddr("fd00::5")}
	other := trunk.Branch{ID: "c", ENI: "eni-3", MAC: vpc.MAC{2, 3}, IPv4: netip.MustParseAddr("10.0.0.3"), IPv6: netip.MustParseAddr("fd00::3"), Stage: trunk.Bound}
	for name, tt := range map[string]struct{ had, left func(*trunk.Branch) }{
		"none":     {func(*trunk.Branch) {}, func(*trunk.Branch) {}},
		"the MAC":  {func(b *trunk.Branch) { b.MAC = o.MAC }, func(b *trunk.Branch) { b.MAC = vpc.MAC{} }},
		"the IPv4": {func(b *trunk.Branch) { b.IPv4 = o.IPv4 }, func(b *trunk.Branch) { b.IPv4 = netip.Addr{} }},
		"the IPv6": {func(b *trunk.Branch) { b.IPv6 = o.IPv6 }, func(b *trunk.Branch) { b.IPv6 = netip.Addr{} }},
	} {
		s := inFlight(of(trunk.CreateBranch), in(trunk.Creating))
		before, want := other, other
		tt.had(&before)
		tt.left(&want)
		s.Branches["c"] = before
		next := trunk.Settle(s, "x", o, trunk.DefaultConfig(), epoch)
		if got := next.Branches["c"]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if got := next.Branches["b"]; got.MAC != o.MAC || got.IPv4 != o.IPv4 || got.IPv6 != o.IPv6 {
			t.Errorf("%s: the new branch %+v", name, got)
		}
	}
}

// EC2 has the quarantine groups again.
func TestASuccessInQuarantineEndsItsBackOff(t *testing.T) {
	deny := trunk.NewGroups("sg-deny")
	for name, tt := range map[string]struct {
		action trunk.Action
		config trunk.Config
		want   bool // the back-off ends
	}{
		"a branch is quarantined":       {of(trunk.SetGroups, forPod("", deny)), warmConfig(0), true},
		"one is created in quarantine":  {of(trunk.CreateBranch, forPod("", deny)), warmConfig(0), true},
		"a pod has these groups":        {of(trunk.SetGroups, forPod("pod-1", deny)), warmConfig(0), false},
		"other groups":                  {of(trunk.SetGroups, forPod("", trunk.NewGroups("sg-a"))), warmConfig(0), false},
		"another call":                  {of(trunk.TagBranch, forPod("", deny)), warmConfig(0), false},
		"no groups, without quarantine": {of(trunk.SetGroups), trunk.DefaultConfig(), false},
	} {
		s := inFlight(tt.action, in(trunk.Idle))
		s.Backoffs["quarantine/sg-deny"], s.Backoffs["quarantine/sg-old"] = trunk.Backoff{Tries: 1}, trunk.Backoff{Tries: 1}
		next := trunk.Settle(s, "x", trunk.Outcome{}, tt.config, epoch)
		if ends := len(next.Backoffs) == 0; ends != tt.want {
			t.Errorf("%s: %v", name, next.Backoffs)
		}
	}
}
