package trunk_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestWhichActionsABrakePermits(t *testing.T) {
	always := []trunk.Kind{trunk.Bind, trunk.Release, trunk.Adopt}
	frees := []trunk.Kind{trunk.Disassociate, trunk.DeleteBranch, trunk.DeleteTrunk}
	for _, kind := range []trunk.Kind{
		trunk.CreateTrunk, trunk.AttachTrunk, trunk.DeleteTrunk, trunk.CreateBranch, trunk.TagBranch, trunk.Associate, trunk.SetGroups,
		trunk.Bind, trunk.Release, trunk.Adopt, trunk.Disassociate, trunk.DeleteBranch,
	} {
		local, ends := slices.Contains(always, kind), slices.Contains(frees, kind)
		for brake, want := range map[cloud.Brake]bool{cloud.BrakeOff: true, cloud.FreezeRelease: !ends, cloud.AllocateOnly: !ends, cloud.FreezeAll: local, cloud.Unobserved: local} {
			if got := kind.AllowedBy(brake); got != want {
				t.Errorf("%s with brake %q: %v, want %v", kind, brake, got, want)
			}
		}
	}
}

func TestAnActionIsOneLine(t *testing.T) {
	groups := trunk.NewGroups("sg-b", "sg-a")
	for want, a := range map[string]trunk.Action{
		"CreateTrunk in subnet-a with sg-a,sg-b":            {Kind: trunk.CreateTrunk, Subnet: "subnet-a", Groups: groups},
		"CreateBranch in subnet-a with no groups for pod-1": {Kind: trunk.CreateBranch, Subnet: "subnet-a", Pod: "pod-1"},
		"AttachTrunk eni-1 at device 2":                     {Kind: trunk.AttachTrunk, ENI: "eni-1", Device: 2},
		"TagBranch eni-2 with VLAN 7 of eni-1":              {Kind: trunk.TagBranch, ENI: "eni-2", VLAN: 7, Trunk: "eni-1"},
		"Associate eni-2 with eni-1 under VLAN 7":           {Kind: trunk.Associate, ENI: "eni-2", VLAN: 7, Trunk: "eni-1"},
		"SetGroups eni-2 to sg-a,sg-b":                      {Kind: trunk.SetGroups, ENI: "eni-2", Groups: groups},
		"Bind eni-2 for pod-1":                              {Kind: trunk.Bind, ENI: "eni-2", Pod: "pod-1"},
		"Adopt eni-2 for pod-1":                             {Kind: trunk.Adopt, ENI: "eni-2", Pod: "pod-1"},
		"Release act-1 from pod-1":                          {Kind: trunk.Release, Branch: "act-1", Pod: "pod-1"},
		"Release nothing from pod-1":                        {Kind: trunk.Release, Pod: "pod-1"},
		"Disassociate eni-2 (trunk-assoc-1)":                {Kind: trunk.Disassociate, ENI: "eni-2", Association: "trunk-assoc-1"},
		"DeleteTrunk eni-1":                                 {Kind: trunk.DeleteTrunk, ENI: "eni-1"},
		"DeleteBranch eni-2":                                {Kind: trunk.DeleteBranch, ENI: "eni-2"},
		`unknown action "Paint"`:                            {Kind: "Paint"},
	} {
		if got := a.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestNumbersOfNodesAreAdded(t *testing.T) {
	var one, two, want trunk.Numbers
	for i := range reflect.TypeFor[trunk.Numbers]().NumField() {
		reflect.ValueOf(&one).Elem().Field(i).SetInt(int64(i + 1))
		reflect.ValueOf(&two).Elem().Field(i).SetInt(int64(100 * (i + 1)))
		reflect.ValueOf(&want).Elem().Field(i).SetInt(int64(101 * (i + 1)))
	}
	if got := one.Add(two); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestTheInterfacesAndCallsOfAStateAreFound(t *testing.T) {
	w := newWorld(t, trunk.DefaultConfig(), 9)
	if got := trunk.Interfaces(w.state); got != nil {
		t.Errorf("interfaces of a new state: %v", got)
	}
	w.begin()
	if i, ok := w.state.Call("act-001"); !ok || i.Action.Kind != trunk.CreateTrunk || i.Tries != 1 || !i.At.Equal(epoch) {
		t.Errorf("the call of the trunk: %+v, %v", i, ok)
	}
	if i, ok := w.state.Call("other"); ok {
		t.Errorf("another call: %+v", i)
	}
	w.finishAll()
	w.start(1, "sg-a")
	w.settle()
	w.start(2, "sg-b")
	w.begin()
	id := w.flights[0].ID
	if i, ok := w.state.Call(id); !ok || i.Action.Kind != trunk.CreateBranch || i.Action.Pod != "pod-2" {
		t.Errorf("the call of a branch: %+v, %v", i, ok)
	}
	if got, want := trunk.Interfaces(w.state), []vpc.ENIID{"eni-001", "eni-002"}; !slices.Equal(got, want) {
		t.Errorf("interfaces %v, want %v, without the one that is being created", got, want)
	}
	w.finishAll()
	for _, id := range []cloud.ActionID{id, "act-001", "", "other"} {
		if i, ok := w.state.Call(id); ok {
			t.Errorf("call %q: %+v", id, i)
		}
	}
}
