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

// ledger has a trunk, a bound branch, one in creation, a warm one and a VLAN that cools down.
func ledger() *v1alpha1.BranchLedger {
	since := metav1.NewMicroTime(time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC))
	groups := []string{"sg-0123456789abcdef0"}
	l := &v1alpha1.BranchLedger{
		InstanceID: instance,
		Trunk:      &v1alpha1.TrunkRecord{Phase: v1alpha1.TrunkReady, ENIID: "eni-0123456789abcdef0", DeviceIndex: 3},
		LastVLAN:   3,
		VLANs:      []v1alpha1.VLANRecord{{VLANID: 1, Owner: "t1"}, {VLANID: 2, Owner: "t9", Until: &since}, {VLANID: 3, Owner: "t3"}},
		Branches: []v1alpha1.BranchRecord{
			{
				ID: "t1", VLANID: 1, Phase: v1alpha1.BranchBound, Since: since, SecurityGroups: groups, ENIID: "eni-0123456789abcdef1",
				Pod: &v1alpha1.PodReference{UID: "uid-1", Namespace: "shop", Name: "web"}, AssociationID: "trunk-assoc-1", MAC: "02:00:00:00:00:01",
				IPv4: "10.0.1.9", SubnetCIDR: "10.0.1.0/24", IPv6: "2600:1f14::9", SubnetV6CIDR: "2600:1f14::/64",
			},
			{
				ID: "t2", Phase: v1alpha1.BranchCreating, Since: since, Pod: &v1alpha1.PodReference{UID: "uid-2", Namespace: "shop", Name: "web-2"},
				Call: &v1alpha1.CallRecord{ID: "t2", Kind: "CreateBranch", Tries: 1, Began: since, At: since},
			},
			{ID: "t3", VLANID: 3, Phase: v1alpha1.BranchIdle, Since: since, SecurityGroups: groups, ENIID: "eni-0123456789abcdef3", AssociationID: "trunk-assoc-3"},
		},
	}
	for i := range l.Branches {
		l.Branches[i].Changed, l.Branches[i].SubnetID = since, "subnet-0123456789abcdef0"
	}
	return l
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
		{"a reserved VLAN that no branch can have", func(l *ledgers) { l.VLANs[1].VLANID = 121 }, v1alpha1.ErrVLAN, "vlans[1]"},
		{"VLAN 0", func(l *ledgers) { l.VLANs[1].VLANID = 0 }, v1alpha1.ErrVLAN, "from 1 to 120"},
		{"a warm branch without its VLAN", func(l *ledgers) { l.Branches[2].VLANID = 0 }, v1alpha1.ErrIncomplete, "vlanID"},
		{"a VLAN held twice", func(l *ledgers) { l.Branches[1].VLANID = 1 }, v1alpha1.ErrVLAN, "another record"},
		{"a VLAN with two owners", func(l *ledgers) { l.VLANs[1].VLANID = 3 }, v1alpha1.ErrVLAN, "another record"},
		{"a VLAN of another branch", func(l *ledgers) { l.VLANs[2].Owner = "t9" }, v1alpha1.ErrVLAN, "t9"},
		{"a VLAN that cools down", func(l *ledgers) { l.Branches[1].VLANID = 2 }, v1alpha1.ErrVLAN, "branches[1]"},
		{"the search for a VLAN starts outside the range", func(l *ledgers) { l.LastVLAN = 121 }, v1alpha1.ErrVLAN, "lastVLAN"},
		{"a mode of a later version", func(l *ledgers) { l.Mode = &v1alpha1.ModeRecord{Mode: "later", Reason: "R"} }, v1alpha1.ErrMode, "later"},
		{"no mode chosen", func(l *ledgers) { l.Mode = &v1alpha1.ModeRecord{Reason: "R"} }, nil, ""},
		{"a host without interfaces", func(l *ledgers) { l.Host = &v1alpha1.HostRecord{} }, v1alpha1.ErrMalformed, "interfaces"},
		{"a trunk with a device index below 0", func(l *ledgers) { l.Trunk.DeviceIndex = -1 }, v1alpha1.ErrMalformed, "deviceIndex"},
		{"a phase of a later version", func(l *ledgers) { l.Branches[1].Phase = "Renaming" }, v1alpha1.ErrPhase, "Renaming"},
		{"a trunk phase of a later version", func(l *ledgers) { l.Trunk.Phase = "Renaming" }, v1alpha1.ErrPhase, "trunk"},
		{"a ready trunk without its interface", func(l *ledgers) { l.Trunk.ENIID = "" }, v1alpha1.ErrIncomplete, "eniID"},
		{"a trunk in creation without its call", func(l *ledgers) { l.Trunk.Phase = v1alpha1.TrunkCreating }, v1alpha1.ErrIncomplete, "call"},
		{"a bound branch without a pod", func(l *ledgers) { l.Branches[0].Pod = nil }, v1alpha1.ErrIncomplete, "pod"},
		{"a pod without a UID", func(l *ledgers) { l.Branches[0].Pod.UID = "" }, v1alpha1.ErrIncomplete, "pod.uid"},
		{"a bound branch without its association", func(l *ledgers) { l.Branches[0].AssociationID = "" }, v1alpha1.ErrIncomplete, "associationID"},
		{"a warm branch without its interface", func(l *ledgers) { l.Branches[2].ENIID = "" }, v1alpha1.ErrIncomplete, "eniID"},
		{"a branch without an id", func(l *ledgers) { l.Branches[1].ID = "" }, v1alpha1.ErrIncomplete, "id"},
		{"an id of two branches", func(l *ledgers) { l.Branches[1].ID = "t3" }, v1alpha1.ErrHeldTwice, "t3"},
		{"a branch in creation without its call", func(l *ledgers) { l.Branches[1].Call = nil }, v1alpha1.ErrIncomplete, "call"},
		{"a call without a token", func(l *ledgers) { l.Branches[1].Call.ID = "" }, v1alpha1.ErrIncomplete, "branches[1]"},
		{"a call that never began", func(l *ledgers) { l.Branches[1].Call.Tries = 0 }, v1alpha1.ErrIncomplete, "0 tries"},
		{"a group that is none", func(l *ledgers) { l.Branches[0].SecurityGroups = []string{"default"} }, v1alpha1.ErrMalformed, "default"},
		{"an interface that is none", func(l *ledgers) { l.Branches[0].ENIID = "eni-web" }, v1alpha1.ErrMalformed, "eni-web"},
		{"an interface of two branches", func(l *ledgers) { l.Branches[2].ENIID = l.Branches[0].ENIID }, v1alpha1.ErrHeldTwice, "the branch with VLAN 1"},
		{"the trunk as a branch", func(l *ledgers) { l.Branches[2].ENIID = l.Trunk.ENIID }, v1alpha1.ErrHeldTwice, "the trunk"},
		{"an association of two branches", func(l *ledgers) { l.Branches[2].AssociationID = l.Branches[0].AssociationID }, v1alpha1.ErrHeldTwice, "associationID"},
		{"an address of two branches", func(l *ledgers) { l.Branches[2].IPv4 = l.Branches[0].IPv4 }, v1alpha1.ErrHeldTwice, "10.0.1.9"},
		{"a MAC of two branches, written otherwise", func(l *ledgers) { l.Branches[2].MAC = "02-00-00-00-00-01" }, v1alpha1.ErrHeldTwice, "mac"},
		{"a MAC of eight bytes", func(l *ledgers) { l.Branches[0].MAC = "02:00:00:00:00:01:00:00" }, v1alpha1.ErrMalformed, "mac"},
		{"an address of the other family", func(l *ledgers) { l.Branches[0].IPv4 = "2600:1f14::9" }, v1alpha1.ErrMalformed, "ipv4"},
		{"an IPv4 address written as IPv6", func(l *ledgers) { l.Branches[0].IPv6, l.Branches[0].SubnetV6CIDR = "::ffff:10.0.1.9", "" }, v1alpha1.ErrMalformed, "ipv6"},
		{"addresses of a branch that is deleted, given to another", func(l *ledgers) {
			b := &l.Branches[2]
			b.Phase, b.Call, b.IPv4, b.IPv6 = v1alpha1.BranchDeleting, &v1alpha1.CallRecord{ID: "d3", Kind: "DeleteBranch", Tries: 2, Began: b.Since, At: b.Since}, l.Branches[0].IPv4, l.Branches[0].IPv6
			l.Branches[0], l.Branches[2] = l.Branches[2], l.Branches[0]
		}, nil, ""},
		{"an address outside its subnet, the range of which was replaced", func(l *ledgers) { l.Branches[0].IPv4 = "10.0.2.9" }, nil, ""},
		{"a pod without a namespace", func(l *ledgers) { l.Branches[0].Pod.Namespace = "" }, v1alpha1.ErrIncomplete, "pod.namespace"},
		{"a pod without a name", func(l *ledgers) { l.Branches[0].Pod.Name = "" }, v1alpha1.ErrIncomplete, "pod.name"},
		{"a branch without its subnet", func(l *ledgers) { l.Branches[0].SubnetID = "" }, v1alpha1.ErrIncomplete, "subnetID"},
		{"a phase that never began", func(l *ledgers) { l.Branches[0].Since = metav1.MicroTime{} }, v1alpha1.ErrIncomplete, "since"},
		{"a branch that never changed", func(l *ledgers) { l.Branches[0].Changed = metav1.MicroTime{} }, v1alpha1.ErrIncomplete, "changed"},
		{"a call without the time of its first try", func(l *ledgers) { l.Branches[1].Call.Began = metav1.MicroTime{} }, v1alpha1.ErrIncomplete, "began"},
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
	l.Branches = append(l.Branches, v1alpha1.BranchRecord{ID: "t4", VLANID: 4, Phase: v1alpha1.BranchCooling, Pod: l.Branches[0].Pod})
	for _, tt := range []struct {
		name, instance string
		pod            types.UID
		want           string // its id
	}{
		{"a running pod has its bound branch, not the one that cools down", instance, "uid-1", "t1"},
		{"a pod in creation has the intent", instance, "uid-2", "t2"},
		{"a later pod of the same name has none", instance, "uid-3", ""},
		{"on another instance of the same node name it has none", "i-0123456789abcdef9", "uid-1", ""},
		{"a pod without a UID does not get a warm branch", instance, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := l.BranchesOf(tt.instance, tt.pod)
			if tt.want == "" && len(list) == 0 {
				return
			}
			if len(list) != 1 || list[0].ID != tt.want {
				t.Errorf("branches %+v, want %q", list, tt.want)
			}
		})
	}
	if list := (*v1alpha1.BranchLedger)(nil).BranchesOf(instance, "uid-1"); list != nil {
		t.Errorf("without a ledger: %v", list)
	}
}

// The API server accepts any object as a ledger.
func TestALedgerOfAnyFormIsDecodedAndRefusedByName(t *testing.T) {
	for text, names := range map[string]string{
		`{"instanceID":"` + instance + `"}`:                                      "",
		`{"instanceID":7}`:                                                       "instanceID",
		`{"instanceID":"` + instance + `","branches":"none"}`:                    "branches",
		`{"instanceID":"` + instance + `","branches":[{"vlanID":"1"}]}`:          "vlanID",
		`{"instanceID":"` + instance + `","vlans":[{"vlanID":99999999999}]}`:     "vlanID",
		`{"instanceID":"` + instance + `","observedAt":"yesterday"}`:             "yesterday",
		`{"instanceID":"` + instance + `","branches":[{"since":{"day":"one"}}]}`: "",
		`"none"`: "string",
		`[]`:     "array",
	} {
		var list v1alpha1.CNINodeList
		if err := json.Unmarshal([]byte(`{"items":[{"status":{"trunkline":`+text+`}},{"metadata":{"name":"other"}}]}`), &list); err != nil || len(list.Items) != 2 || list.Items[1].Name != "other" {
			t.Errorf("%s keeps a client from reading all objects: %v", text, err)
			continue
		}
		errs := list.Items[0].Status.Trunkline.Check(instance)
		if valid := len(errs) == 0; valid != (text == `{"instanceID":"`+instance+`"}`) {
			t.Errorf("%s: %v", text, errs)
		}
		if err := errors.Join(errs...); err != nil && (!errors.Is(err, v1alpha1.ErrMalformed) || !strings.Contains(err.Error(), "status.trunkline: ") || !strings.Contains(err.Error(), names)) {
			t.Errorf("%s: %v, want %q", text, err, names)
		}
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
		f.Add([]byte(strings.Replace(string(text), `"vlanID":3`, `"vlanID":1`, 1)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var s v1alpha1.CNINodeStatus
		if json.Valid(text) {
			if err := json.Unmarshal([]byte(`{"trunkline":`+string(text)+`}`), &s); err != nil {
				t.Errorf("a ledger that is JSON is not decoded: %v", err)
			}
		}
		s = v1alpha1.CNINodeStatus{}
		if json.Unmarshal(text, &s) != nil {
			return
		}
		if s.Trunkline == nil || len(s.Trunkline.Check(s.Trunkline.InstanceID)) > 0 {
			return
		}
		held := map[any]bool{}
		for _, b := range s.Trunkline.Branches {
			if b.VLANID != 0 && (held[b.VLANID] || b.VLANID < 1 || b.VLANID > v1alpha1.MaxVLAN) {
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
