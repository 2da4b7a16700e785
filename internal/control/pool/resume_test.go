package pool

import (
	"errors"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// recorded is a complete record of a node.
func recorded() state.Node {
	return state.Node{
		Instance: "i-1", Type: "t3.medium", PrimaryMAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Limits: vpc.Limits{ENIs: 3, IPv4: 6},
		Subnets: []ipam.Subnet{{ID: "subnet-1", Free: 100, SameRoutes: true}},
	}.With(time.Now(), state.Facts()...)
}

func TestOnlyACompleteRecordOfThisInstanceIsResumed(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(n *state.Node)
		confirmed bool // by the boot or the firmware
		metadata  bool // has been read
		want      bool
	}{
		"of this boot":                     {nil, true, false, true},
		"of an earlier boot":               {nil, false, false, false},
		"confirmed by metadata":            {nil, false, true, true},
		"of an older agent":                {func(n *state.Node) { *n = state.Node{} }, true, true, false},
		"without subnets":                  {func(n *state.Node) { delete(n.Read, state.FactSubnets) }, true, true, false},
		"from before the type was changed": {func(n *state.Node) { n.Type = "m5.xlarge" }, true, true, false},
	} {
		p, _ := withMetadata(t)
		p.State.Recorded = recorded()
		if c.change != nil {
			c.change(&p.State.Recorded)
		}
		if c.metadata {
			if err := p.Observer.ReadIdentity(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Observer.Resume(c.confirmed); got != c.want {
			t.Errorf("%s: resumed: %v, want %v", name, got, c.want)
		}
		known := p.Observer.known()
		if c.want && (known.Limits.ENIs != 3 || len(known.Subnets) != 1 || !known.Complete() || p.State.Node().Instance != "i-1") {
			t.Errorf("%s: %+v", name, known)
		}
	}
}

// The firmware confirms the instance before metadata answers: the record is used until then.
func TestTheLimitsOfAnInstanceThatWasGivenAnotherTypeAreRead(t *testing.T) {
	p, _ := withMetadata(t)
	before := recorded()
	before.Type, before.Limits = "m5.xlarge", vpc.Limits{ENIs: 4, IPv4: 15}
	p.State.Recorded = before
	if !p.Observer.Resume(true) {
		t.Fatal("not resumed")
	}
	if err := p.Observer.ReadIdentity(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.State.Node(); got.Type != "t3.medium" || got.Limits.ENIs != 3 || got.Limits.IPv4 != 6 {
		t.Errorf("%s with %+v", got.Type, got.Limits)
	}
}

func TestAJournalOfAnotherInstanceIsFoundBeforeItIsWritten(t *testing.T) {
	p, _ := withMetadata(t)
	p.State.Recorded = recorded()
	p.State.Recorded.Instance = "i-2"
	if err := p.Observer.ReadIdentity(t.Context()); !errors.Is(err, state.ErrOtherInstance) {
		t.Errorf("%v", err)
	}
	if got := p.State.Node().Instance; got != "" {
		t.Errorf("%s is recorded as the journal's instance", got)
	}
}

// An ADD waits, all addresses are in use, and EC2 has not answered since the agent started.
func TestNothingBeginsAtEC2BeforeItIsObserved(t *testing.T) {
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	p.State.Recorded = recorded()
	if !p.Observer.Resume(true) {
		t.Fatal("not resumed")
	}
	now := time.Now()
	for _, pod := range []string{"a", "b", "c"} {
		p.waits(pod, pod, now)
	}
	p.IPAM.WarmIPs = 10
	if d := ipam.Plan(p.snapshot(now), p.IPAM, now); len(d.Actions) > 0 {
		t.Errorf("before the observation: %v", d.Actions)
	}
	p.Observer.schedule.observed = now
	if d := ipam.Plan(p.snapshot(now), p.IPAM, now); len(d.Actions) == 0 || d.Actions[0].Kind != cloud.AssignAddresses {
		t.Errorf("after the observation: %v", d.Actions)
	}
	got := untilObserved(ipam.Condition{Reason: ipam.ReasonFrozen, Message: "an operator froze EC2 calls"})
	if got.Reason != ipam.ReasonGrowing || got.CanAdd || got.Err() == nil {
		t.Errorf("%+v", got)
	}
}

func TestTheSourceThatFailsIsTheOneThatIsReported(t *testing.T) {
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	problems := func() (names []state.SourceName) {
		for _, s := range p.State.Sources() {
			if s.Problem(time.Now()) != "" {
				names = append(names, s.Name)
			}
		}
		return names
	}
	p.note(state.Metadata, errors.New("timeout"))
	p.noteEC2(nil)
	if got := problems(); len(got) != 1 || got[0] != state.Metadata {
		t.Errorf("after EC2 answered: %v", got)
	}
	p.note(state.Metadata, nil)
	if got := problems(); got != nil {
		t.Errorf("after all answered: %v", got)
	}
}
