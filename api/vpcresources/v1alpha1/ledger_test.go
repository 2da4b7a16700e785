package v1alpha1_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

const instance = "i-0123456789abcdef0"

// ledger has a trunk, a bound branch, one in creation and a warm one.
func ledger() *v1alpha1.BranchLedger {
	since := metav1.NewTime(time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC))
	groups := []string{"sg-0123456789abcdef0"}
	return &v1alpha1.BranchLedger{
		InstanceID: instance,
		Trunk:      &v1alpha1.TrunkRecord{Phase: v1alpha1.TrunkReady, ClientToken: "t0", ENIID: "eni-0123456789abcdef0", DeviceIndex: 3},
		LastVLAN:   3,
		Branches: []v1alpha1.BranchRecord{
			{
				VLANID: 1, Phase: v1alpha1.BranchBound, Since: since, ClientToken: "t1", SecurityGroups: groups, ENIID: "eni-0123456789abcdef1",
				Pod: &v1alpha1.PodReference{UID: "uid-1", Namespace: "shop", Name: "web"}, AssociationID: "trunk-assoc-1", MAC: "02:00:00:00:00:01",
				IPv4: "10.0.1.9", SubnetCIDR: "10.0.1.0/24", IPv6: "2600:1f14::9", SubnetV6CIDR: "2600:1f14::/64",
			},
			{VLANID: 2, Phase: v1alpha1.BranchCreating, Since: since, ClientToken: "t2", SecurityGroups: groups, Pod: &v1alpha1.PodReference{UID: "uid-2", Namespace: "shop", Name: "web-2"}},
			{VLANID: 3, Phase: v1alpha1.BranchQuarantined, Since: since, ClientToken: "t3", SecurityGroups: groups, ENIID: "eni-0123456789abcdef3", AssociationID: "trunk-assoc-3"},
		},
	}
}

func TestALedgerThatWasChangedByHandIsRefusedByName(t *testing.T) {
	type ledgers = v1alpha1.BranchLedger
	for _, tt := range []struct {
		name   string
		change func(l *ledgers)
		want   error
		names  string // what the message has
	}{
		{"as the controller writes it", func(*ledgers) {}, nil, ""},
		{"of the instance that had the node's name before", func(l *ledgers) { l.InstanceID = "i-0123456789abcdef9" }, v1alpha1.ErrOtherInstance, instance},
		{"without an instance", func(l *ledgers) { l.InstanceID = "" }, v1alpha1.ErrMalformed, "instanceID"},
		{"a VLAN that no branch can have", func(l *ledgers) { l.Branches[1].VLANID = 121 }, v1alpha1.ErrVLAN, "branches[1]"},
		{"VLAN 0", func(l *ledgers) { l.Branches[1].VLANID = 0 }, v1alpha1.ErrVLAN, "from 1 to 120"},
		{"a VLAN held twice", func(l *ledgers) { l.Branches[1].VLANID = 1 }, v1alpha1.ErrVLAN, "another record"},
		{"the search for a VLAN starts outside the range", func(l *ledgers) { l.LastVLAN = 121 }, v1alpha1.ErrVLAN, "lastVLAN"},
		{"a phase of a later version", func(l *ledgers) { l.Branches[1].Phase = "Renaming" }, v1alpha1.ErrPhase, "Renaming"},
		{"a trunk phase of a later version", func(l *ledgers) { l.Trunk.Phase = "Renaming" }, v1alpha1.ErrPhase, "trunk"},
		{"a ready trunk without its interface", func(l *ledgers) { l.Trunk.ENIID = "" }, v1alpha1.ErrIncomplete, "eniID"},
		{"a trunk without a token", func(l *ledgers) { l.Trunk.ClientToken = "" }, v1alpha1.ErrIncomplete, "clientToken"},
		{"a bound branch without a pod", func(l *ledgers) { l.Branches[0].Pod = nil }, v1alpha1.ErrIncomplete, "pod"},
		{"a pod without a UID", func(l *ledgers) { l.Branches[0].Pod.UID = "" }, v1alpha1.ErrIncomplete, "pod.uid"},
		{"a bound branch without its association", func(l *ledgers) { l.Branches[0].AssociationID = "" }, v1alpha1.ErrIncomplete, "associationID"},
		{"a warm branch without its interface", func(l *ledgers) { l.Branches[2].ENIID = "" }, v1alpha1.ErrIncomplete, "eniID"},
		{"a quarantined branch of a pod", func(l *ledgers) { l.Branches[2].Pod = l.Branches[1].Pod }, v1alpha1.ErrIncomplete, "shop/web-2"},
		{"a call without a token", func(l *ledgers) { l.Branches[1].ClientToken = "" }, v1alpha1.ErrIncomplete, "clientToken"},
		{"a branch without groups", func(l *ledgers) { l.Branches[1].SecurityGroups = nil }, v1alpha1.ErrIncomplete, "securityGroups"},
		{"a group that is none", func(l *ledgers) { l.Branches[1].SecurityGroups = []string{"default"} }, v1alpha1.ErrMalformed, "default"},
		{"an interface that is none", func(l *ledgers) { l.Branches[0].ENIID = "eni-web" }, v1alpha1.ErrMalformed, "eni-web"},
		{"an interface of two branches", func(l *ledgers) { l.Branches[2].ENIID = l.Branches[0].ENIID }, v1alpha1.ErrHeldTwice, "the branch with VLAN 1"},
		{"the trunk as a branch", func(l *ledgers) { l.Branches[2].ENIID = l.Trunk.ENIID }, v1alpha1.ErrHeldTwice, "the trunk"},
		{"an association of two branches", func(l *ledgers) { l.Branches[2].AssociationID = l.Branches[0].AssociationID }, v1alpha1.ErrHeldTwice, "associationID"},
		{"an address of two branches", func(l *ledgers) { l.Branches[2].IPv4 = l.Branches[0].IPv4 }, v1alpha1.ErrHeldTwice, "10.0.1.9"},
		{"a MAC of two branches, written otherwise", func(l *ledgers) { l.Branches[2].MAC = "02-00-00-00-00-01" }, v1alpha1.ErrHeldTwice, "mac"},
		{"a MAC of eight bytes", func(l *ledgers) { l.Branches[0].MAC = "02:00:00:00:00:01:00:00" }, v1alpha1.ErrMalformed, "mac"},
		{"an address of the other family", func(l *ledgers) { l.Branches[0].IPv4 = "2600:1f14::9" }, v1alpha1.ErrMalformed, "ipv4"},
		{"an IPv4 address written as IPv6", func(l *ledgers) { l.Branches[0].IPv6, l.Branches[0].SubnetV6CIDR = "::ffff:10.0.1.9", "" }, v1alpha1.ErrMalformed, "ipv6"},
		{"an address outside its subnet", func(l *ledgers) { l.Branches[0].IPv4 = "10.0.2.9" }, v1alpha1.ErrMalformed, "10.0.1.0/24"},
		{"a subnet with host bits", func(l *ledgers) { l.Branches[0].SubnetCIDR = "10.0.1.9/24" }, v1alpha1.ErrMalformed, "10.0.1.9/24"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := ledger()
			tt.change(l)
			errs := l.Check(instance)
			if tt.want == nil {
				if len(errs) != 0 {
					t.Errorf("refused: %v", errs)
				}
				return
			}
			if len(errs) != 1 || !errors.Is(errs[0], tt.want) || !strings.Contains(errs[0].Error(), tt.names) {
				t.Errorf("%v, want one error, %q, that names %q", errs, tt.want, tt.names)
			}
		})
	}
	if errs := (*v1alpha1.BranchLedger)(nil).Check(instance); errs != nil {
		t.Errorf("no ledger: %v", errs)
	}
}

func TestAPodHasTheBranchesOfItsUIDOnItsInstance(t *testing.T) {
	l := ledger()
	l.Branches = append(l.Branches, v1alpha1.BranchRecord{VLANID: 4, Phase: v1alpha1.BranchCooling, Pod: l.Branches[0].Pod})
	for _, tt := range []struct {
		name, instance string
		pod            types.UID
		want           int // VLAN, 0 is none
	}{
		{"a running pod has its bound branch, not the one that cools down", instance, "uid-1", 1},
		{"a pod in creation has the intent", instance, "uid-2", 2},
		{"a later pod of the same name has none", instance, "uid-3", 0},
		{"on another instance of the same node name it has none", "i-0123456789abcdef9", "uid-1", 0},
		{"a pod without a UID does not get a warm branch", instance, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := l.BranchesOf(tt.instance, tt.pod)
			if tt.want == 0 && len(list) == 0 {
				return
			}
			if len(list) != 1 || int(list[0].VLANID) != tt.want {
				t.Errorf("branches %+v, want VLAN %d", list, tt.want)
			}
		})
	}
	if list := (*v1alpha1.BranchLedger)(nil).BranchesOf(instance, "uid-1"); list != nil {
		t.Errorf("without a ledger: %v", list)
	}
}

// Whatever the status has, Check does not panic, and a status without errors keeps every VLAN,
// interface and address to one holder, and is the same once written and read again.
func FuzzStatus(f *testing.F) {
	for _, status := range []v1alpha1.CNINodeStatus{{}, {Trunkline: ledger()}, {TrunkInterface: &v1alpha1.TrunkInterface{ID: "eni-1"}}} {
		text, err := json.Marshal(status)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:len(text)/2])
		f.Add([]byte(strings.Replace(string(text), `"vlanID":2`, `"vlanID":1`, 1)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var s v1alpha1.CNINodeStatus
		if json.Unmarshal(text, &s) != nil {
			return
		}
		if s.Trunkline == nil || len(s.Trunkline.Check(s.Trunkline.InstanceID)) > 0 {
			return
		}
		held := map[any]bool{}
		for _, b := range s.Trunkline.Branches {
			if held[b.VLANID] || b.VLANID < 1 || b.VLANID > v1alpha1.MaxVLAN {
				t.Errorf("VLAN %d passed Check", b.VLANID)
			}
			held[b.VLANID] = true
			for _, value := range []string{b.ENIID, b.AssociationID, b.IPv4, b.IPv6} {
				if value != "" && held[value] {
					t.Errorf("%s is held twice and passed Check", value)
				}
				held[value] = true
			}
		}
		written, err := json.Marshal(s)
		if err != nil {
			return // a time of a year that JSON has no form for
		}
		var again v1alpha1.CNINodeStatus
		if err := json.Unmarshal(written, &again); err != nil || len(again.Trunkline.Check(s.Trunkline.InstanceID)) > 0 {
			t.Errorf("written and read again: %v, %v", err, again.Trunkline.Check(s.Trunkline.InstanceID))
		}
		if !reflect.DeepEqual(again.DeepCopy(), &again) {
			t.Error("a copy differs")
		}
	})
}
