package trunk_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/trunk"
)

// refusedFor is a try that EC2 refused.
func refusedFor(r trunk.Reason) trunk.Failure {
	return trunk.Failure{Reason: r, Definite: true, Message: "no"}
}

func TestABackOffDoublesUpToTheLongest(t *testing.T) {
	c := trunk.DefaultConfig()
	s, want := inFlight(of(trunk.TagBranch), in(trunk.Tagging)), c.RetryMin
	for tries := 1; tries < 12; tries++ {
		s = trunk.Fail(s, "x", refusedFor(trunk.FailThrottled), c, epoch)
		b := s.Backoffs["branch/b"]
		if b != (trunk.Backoff{Since: epoch, Until: epoch.Add(want), Tries: tries, Reason: trunk.FailThrottled, Message: "no"}) {
			t.Errorf("after %d tries: %+v, want %s", tries, b, want)
		}
		want = min(2*want, c.RetryMax)
		row := s.Branches["b"]
		row.Intent = &trunk.Intent{Action: of(trunk.TagBranch)}
		s.Branches["b"] = row
	}
	if want != 5*time.Minute {
		t.Errorf("the longest is %s", want)
	}
	c.RetryMax = 5 * time.Second // no multiple of the first
	for _, want := range []time.Duration{2 * time.Second, 4 * time.Second, 5 * time.Second} {
		tries := map[time.Duration]int{2 * time.Second: 1, 4 * time.Second: 2, 5 * time.Second: 3}[want]
		s := inFlight(of(trunk.TagBranch), in(trunk.Tagging))
		s.Backoffs["branch/b"] = trunk.Backoff{Tries: tries - 1}
		if got := trunk.Fail(s, "x", refusedFor(trunk.FailOther), c, epoch).Backoffs["branch/b"].Until; !got.Equal(epoch.Add(want)) {
			t.Errorf("after %d tries until %s, want %s", tries, got, want)
		}
	}
}

func TestATryWithAnUnknownOutcomeIsRepeated(t *testing.T) {
	now := epoch.Add(time.Minute)
	c := warmConfig(0)
	for name, tt := range map[string]struct {
		unknown bool // before
		failure trunk.Failure
		open    bool
		after   bool // unknown
	}{
		"the reply is lost":                        {false, trunk.Failure{Reason: trunk.FailOther}, true, true},
		"refused":                                  {false, refusedFor(trunk.FailThrottled), false, false},
		"refused after a lost reply":               {true, refusedFor(trunk.FailThrottled), true, true},
		"groups refused after a lost reply":        {true, refusedFor(trunk.FailGroups), false, false},
		"a reply about groups that cannot be read": {false, trunk.Failure{Reason: trunk.FailGroups}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := inFlight(of(trunk.TagBranch), in(trunk.Tagging))
			s.Branches["b"].Intent.Unknown, s.Branches["b"].Intent.Tries = tt.unknown, 2
			next := trunk.Fail(s, "x", tt.failure, c, now)
			b := next.Branches["b"]
			if (b.Intent != nil) != tt.open || !b.Changed.Equal(now) || (len(next.Backoffs) == 0) != tt.open {
				t.Fatalf("%+v, %v", b, next.Backoffs)
			}
			if i := b.Intent; i != nil && (!i.Lost || i.Unknown != tt.after || !i.At.Equal(now) || !i.Retry.Equal(now.Add(2*c.RetryMin)) || i.Tries != 2) {
				t.Errorf("%+v", i)
			}
			s = trunk.New(instance)
			s.Trunk = trunk.Trunk{Stage: trunk.Creating, Intent: &trunk.Intent{Action: trunk.Action{ID: "x", Kind: trunk.CreateTrunk}, Tries: 2, Unknown: tt.unknown}}
			if next := trunk.Fail(s, "x", tt.failure, c, now); (next.Trunk.Intent != nil) != tt.open || (next.Trunk.Stage == trunk.Creating) != tt.open {
				t.Errorf("the trunk: %s", next)
			}
		})
	}
}

func TestARefusalOfTheTrunkPausesItOrItsSubnet(t *testing.T) {
	for name, tt := range map[string]struct {
		kind   trunk.Kind
		is     trunk.Trunk
		reason trunk.Reason
		want   trunk.Trunk
		key    string
	}{
		"creation":                        {trunk.CreateTrunk, trunk.Trunk{Stage: trunk.Creating, Subnet: "subnet-a"}, trunk.FailOther, trunk.Trunk{}, "trunk"},
		"creation in an exhausted subnet": {trunk.CreateTrunk, trunk.Trunk{Stage: trunk.Creating, Subnet: "subnet-a"}, trunk.FailSubnet, trunk.Trunk{}, "subnet/subnet-a"},
		"attachment":                      {trunk.AttachTrunk, trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1"}, trunk.FailDevice, trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1"}, "trunk"},
		"deletion":                        {trunk.DeleteTrunk, trunk.Trunk{Stage: trunk.Deleting, ENI: "eni-1"}, trunk.FailOther, trunk.Trunk{Stage: trunk.Attaching, ENI: "eni-1"}, "trunk"},
	} {
		s := trunk.New(instance)
		s.Trunk = tt.is
		s.Trunk.Intent = &trunk.Intent{Action: trunk.Action{ID: "x", Kind: tt.kind, Subnet: "subnet-a"}, Tries: 1}
		next := trunk.Fail(s, "x", refusedFor(tt.reason), trunk.DefaultConfig(), epoch)
		if keys := slices.Collect(maps.Keys(next.Backoffs)); !reflect.DeepEqual(next.Trunk, tt.want) || !slices.Equal(keys, []string{tt.key}) {
			t.Errorf("%s: %+v, back-offs %q, want %+v and %s", name, next.Trunk, keys, tt.want, tt.key)
		}
	}
}

func TestWhatARefusalPauses(t *testing.T) {
	deny, sgA := trunk.NewGroups("sg-deny"), trunk.NewGroups("sg-a")
	create := func(pod trunk.PodUID, groups trunk.Groups) trunk.Action {
		a := of(trunk.CreateBranch, forPod(pod, groups))
		a.Subnet = "subnet-a"
		return a
	}
	set := func(pod trunk.PodUID, groups trunk.Groups) trunk.Action {
		return of(trunk.SetGroups, forPod(pod, groups))
	}
	for name, tt := range map[string]struct {
		action trunk.Action
		reason trunk.Reason
		want   string // keys of back-offs, and pods that are refused
		exists bool   // the branch
	}{
		"a creation for a pod":                {create("pod-1", sgA), trunk.FailThrottled, "pod/pod-1", false},
		"a creation for pods to come":         {create("", sgA), trunk.FailThrottled, "warm", false},
		"a creation in an exhausted subnet":   {create("pod-1", sgA), trunk.FailSubnet, "subnet/subnet-a", false},
		"a creation with the groups of a pod": {create("pod-1", sgA), trunk.FailGroups, "refused pod-1", false},
		"a creation with exact groups":        {create("", sgA), trunk.FailGroups, "warm", false},
		"a creation in quarantine":            {create("", deny), trunk.FailGroups, "quarantine/sg-deny", false},
		"a creation in quarantine, throttled": {create("", deny), trunk.FailThrottled, "warm", false},
		"a creation for a pod in quarantine":  {create("pod-1", deny), trunk.FailGroups, "refused pod-1", false},
		"groups of a pod":                     {set("pod-1", sgA), trunk.FailGroups, "branch/b refused pod-1", true},
		"groups of a pod, throttled":          {set("pod-1", sgA), trunk.FailThrottled, "branch/b", true},
		"exact groups":                        {set("", sgA), trunk.FailGroups, "branch/b", true},
		"quarantine":                          {set("", deny), trunk.FailGroups, "quarantine/sg-deny", true},
		"quarantine, throttled":               {set("", deny), trunk.FailThrottled, "branch/b", true},
		"a tag":                               {of(trunk.TagBranch), trunk.FailOther, "branch/b", true},
	} {
		t.Run(name, func(t *testing.T) {
			next := trunk.Fail(inFlight(tt.action, in(trunk.Idle)), "x", refusedFor(tt.reason), warmConfig(0), epoch)
			got := slices.Sorted(maps.Keys(next.Backoffs))
			for pod, r := range next.Refused {
				got = append(got, fmt.Sprintf("refused %s", pod))
				if !r.Groups.Equal(tt.action.Groups) || r.Message != "no" {
					t.Errorf("%+v", r)
				}
			}
			b, exists := next.Branches["b"]
			if strings.Join(got, " ") != tt.want || exists != tt.exists || b.Intent != nil {
				t.Errorf("%q, branch %+v, want %q", got, b, tt.want)
			}
		})
	}
	// The calls of one plan are refused together: that is one failure.
	s := inFlight(set("", deny), in(trunk.Idle))
	s.Backoffs["quarantine/sg-deny"] = trunk.Backoff{Until: epoch.Add(1), Tries: 3}
	if next := trunk.Fail(s, "x", refusedFor(trunk.FailGroups), warmConfig(0), epoch); next.Backoffs["quarantine/sg-deny"].Tries != 3 {
		t.Errorf("a second refusal at once: %v", next.Backoffs)
	}
	if next := trunk.Fail(s, "x", refusedFor(trunk.FailGroups), warmConfig(0), epoch.Add(1)); next.Backoffs["quarantine/sg-deny"].Tries != 4 {
		t.Errorf("a later refusal: %v", next.Backoffs)
	}
}

func TestAVLANThatIsInUseIsDoubtfulAndTheBranchGetsAnother(t *testing.T) {
	now := epoch.Add(time.Minute)
	for name, tt := range map[string]struct {
		branch func(*trunk.Branch)
		reason trunk.Reason
		vlan   int
		stage  trunk.Stage
	}{
		"an association":                    {in(trunk.Associating), trunk.FailVLAN, 0, trunk.Tagging},
		"of a branch that is given up":      {func(b *trunk.Branch) { in(trunk.Deleting)(b) }, trunk.FailVLAN, 0, trunk.Deleting},
		"an association, for other reasons": {in(trunk.Associating), trunk.FailLimit, 7, trunk.Associating},
	} {
		next := trunk.Fail(inFlight(of(trunk.Associate, vlan(7)), tt.branch), "x", refusedFor(tt.reason), trunk.DefaultConfig(), now)
		b := next.Branches["b"]
		if b.VLAN != tt.vlan || b.Stage != tt.stage || (next.VLANs[7].Owner == "") != (tt.vlan == 0) || b.Since.Equal(now) != (tt.stage == trunk.Tagging) || len(next.Backoffs) != 1 {
			t.Errorf("%s: %s, VLAN 7 %+v, %v", name, b, next.VLANs[7], next.Backoffs)
		}
	}
	tagged := trunk.Fail(inFlight(of(trunk.TagBranch, vlan(7)), in(trunk.Tagging)), "x", refusedFor(trunk.FailVLAN), trunk.DefaultConfig(), now)
	if tagged.Branches["b"].VLAN != 7 || tagged.VLANs[7].Owner != "b" {
		t.Errorf("a tag: %s", tagged)
	}
}

// EC2 may not show a new interface yet: a branch is gone only if it is old and was not found three times.
func TestABranchIsGoneOnceItWasNotFoundThreeTimes(t *testing.T) {
	notFound := refusedFor(trunk.FailNotFound)
	unknown := notFound
	unknown.Definite = false
	for name, tt := range map[string]struct {
		kind    trunk.Kind
		branch  func(*trunk.Branch)
		tries   int
		earlier trunk.Backoff
		failure trunk.Failure
		at      time.Time
		want    bool
	}{
		"three tries":                      {trunk.SetGroups, in(trunk.Idle), 3, trunk.Backoff{}, notFound, old(), true},
		"two tries":                        {trunk.SetGroups, in(trunk.Idle), 2, trunk.Backoff{}, notFound, old(), false},
		"one, after two others":            {trunk.SetGroups, in(trunk.Idle), 1, trunk.Backoff{Reason: trunk.FailNotFound, Tries: 2}, notFound, old(), true},
		"one, after two for other reasons": {trunk.SetGroups, in(trunk.Idle), 1, trunk.Backoff{Reason: trunk.FailOther, Tries: 2}, notFound, old(), false},
		"of a new branch":                  {trunk.SetGroups, in(trunk.Idle), 3, trunk.Backoff{}, notFound, old().Add(-1), false},
		"for another reason":               {trunk.SetGroups, in(trunk.Idle), 3, trunk.Backoff{}, refusedFor(trunk.FailOther), old(), false},
		"without a reply":                  {trunk.SetGroups, in(trunk.Idle), 3, trunk.Backoff{}, unknown, old(), false},
		"of a binding, at the API server":  {trunk.Bind, in(trunk.Binding), 3, trunk.Backoff{}, notFound, old(), false},
		"of one that was not created":      {trunk.CreateBranch, func(b *trunk.Branch) { in(trunk.Creating)(b); b.ENI = "" }, 3, trunk.Backoff{}, notFound, old(), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := inFlight(of(tt.kind), func(b *trunk.Branch) { tt.branch(b); b.Association = "" })
			s.Branches["b"].Intent.Tries = tt.tries
			s.Backoffs["branch/b"] = tt.earlier
			next := trunk.Fail(s, "x", tt.failure, trunk.DefaultConfig(), tt.at)
			b := next.Branches["b"]
			if gone := b.Stage == trunk.Deleting; gone != tt.want {
				t.Fatalf("%s, want that it is gone: %v", b, tt.want)
			}
			if tt.want && (b.Intent != nil || b.Pod != "" || next.Backoffs["branch/b"].Tries != tt.earlier.Tries+1) {
				t.Errorf("%s, %v", next, next.Backoffs)
			}
		})
	}
	for name, tt := range map[string]struct {
		used bool
		pod  trunk.PodUID
		kept bool
	}{
		"that a pod uses":        {true, "pod-1", true},
		"that a pod used":        {true, "", false},
		"that a pod did not use": {false, "pod-1", false},
	} {
		s := inFlight(of(trunk.SetGroups), func(b *trunk.Branch) { b.Used, b.Pod = tt.used, tt.pod })
		s.Branches["b"].Intent.Tries = 3
		b := trunk.Fail(s, "x", notFound, trunk.DefaultConfig(), old()).Branches["b"]
		if kept := b.Stage == trunk.Idle && b.Pod == "pod-1"; kept != tt.kept || !kept && (b.Stage != trunk.Disassociating || b.Pod != "") || b.Intent != nil {
			t.Errorf("%s: %s", name, b)
		}
	}
}

func TestACallThatIsNotInFlightChangesNothing(t *testing.T) {
	s := inFlight(of(trunk.TagBranch), in(trunk.Tagging))
	s.Trunk.Intent = &trunk.Intent{Action: trunk.Action{ID: "t"}}
	if got := trunk.Settle(s, "y", trunk.Outcome{}, trunk.DefaultConfig(), epoch); !reflect.DeepEqual(got, s) {
		t.Errorf("a success: %s", got)
	}
	if got := trunk.Fail(s, "y", refusedFor(trunk.FailOther), trunk.DefaultConfig(), epoch); !reflect.DeepEqual(got, s) {
		t.Errorf("a failure: %s", got)
	}
}
