package trunk

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cloud"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

const (
	drawnInstance = vpc.InstanceID("i-0123456789abcdef0")
	drawnSubnet   = vpc.SubnetID("subnet-0123456789abcdef0")
)

// draw makes values of a record that core/trunk can make.
type draw struct {
	*rapid.T
	n byte // makes values distinct
}

func (d *draw) bool(name string) bool { return rapid.Bool().Draw(d.T, name) }

func (d *draw) time(name string) time.Time {
	return time.Unix(rapid.Int64Range(1, 4e9).Draw(d.T, name), rapid.Int64Range(0, 999_999).Draw(d.T, name)*1000).UTC()
}

func (d *draw) maybe(name string) time.Time {
	if d.bool(name) {
		return time.Time{}
	}
	return d.time(name)
}

func (d *draw) text(name string) string {
	return rapid.StringMatching(`[a-zA-Z0-9 :,"]{0,40}`).Draw(d.T, name)
}

func (d *draw) eni() vpc.ENIID {
	d.n++
	return vpc.ENIID("eni-0123456789abcd" + string("0123456789abcdef"[d.n>>4]) + string("0123456789abcdef"[d.n&15]) + "0")
}

func (d *draw) groups() core.Groups {
	var out core.Groups
	for _, g := range rapid.SliceOfNDistinct(rapid.SampledFrom([]vpc.SecurityGroupID{"sg-01234567", "sg-89abcdef", "sg-0123456789abcdef0"}), 0, 3, rapid.ID).Draw(d.T, "groups") {
		out = append(out, g)
	}
	return core.NewGroups(out...)
}

func (d *draw) intent(id cloud.ActionID, of core.BranchID, kind core.Kind) *core.Intent {
	return &core.Intent{
		Action: core.Action{
			ID: id, Kind: kind, Instance: drawnInstance, Branch: of, Pod: core.PodUID(d.text("pod")), Trunk: "eni-01234567", ENI: "eni-89abcdef",
			Subnet: drawnSubnet, Groups: d.groups(), VLAN: rapid.IntRange(0, 120).Draw(d.T, "vlan"), Association: core.AssociationID(d.text("association")),
			Device: rapid.IntRange(0, 15).Draw(d.T, "device"), Began: d.time("began"), Why: d.text("why"),
		},
		Tries: rapid.IntRange(1, 9).Draw(d.T, "tries"), Unknown: d.bool("unknown"), Lost: d.bool("lost"), At: d.time("at"), Retry: d.maybe("retry"),
	}
}

func (d *draw) branch(r record, vlan int) {
	stages := []core.Stage{core.Creating, core.Tagging, core.Associating, core.Idle, core.Binding, core.Bound, core.Cooling, core.Disassociating, core.Deleting}
	eni := d.eni()
	b := core.Branch{
		ID: core.BranchID("br-" + eni), Subnet: drawnSubnet, Groups: d.groups(), Stage: rapid.SampledFrom(stages).Draw(d.T, "stage"),
		Used: d.bool("used"), Since: d.time("since"), Changed: d.time("changed"),
	}
	if b.Stage != core.Creating {
		b.ENI, b.MAC = eni, vpc.MAC{2, 0, 0, 0, 1, d.n}
		b.IPv4 = netip.AddrFrom4([4]byte{10, 0, 0, d.n})
		if d.bool("v6") {
			b.IPv6 = netip.AddrFrom16([16]byte{0x26, 15: d.n})
		}
	}
	if b.Stage != core.Creating && b.Stage != core.Deleting {
		b.VLAN = vlan
		r.state.VLANs[vlan] = core.VLAN{Owner: b.ID}
	}
	switch b.Stage {
	case core.Idle, core.Binding, core.Bound, core.Cooling, core.Disassociating:
		b.Association = core.AssociationID("trunk-assoc-" + eni)
	default:
	}
	if b.Stage == core.Binding || b.Stage == core.Bound || d.bool("reserved") {
		b.Pod = core.PodUID("uid-" + eni)
		r.names[b.Pod] = types.NamespacedName{Namespace: "shop", Name: "pod-" + string(eni)}
	}
	if b.Stage == core.Creating || d.bool("call") {
		b.Intent = d.intent(cloud.ActionID("act-"+eni), b.ID, core.CreateBranch)
	}
	r.state.Branches[b.ID] = b
}

func (d *draw) record() record {
	r := newRecord(drawnInstance)
	s := &r.state
	s.LastVLAN, s.Observed = rapid.IntRange(0, 120).Draw(d.T, "last"), d.maybe("observed")
	at := ranges{v4: netip.MustParsePrefix("10.0.0.0/16"), v6: netip.MustParsePrefix("2600::/16")}
	if d.bool("host") {
		r.host = host{vpc: "vpc-1", subnet: drawnSubnet, groups: d.groups(), devices: 4}
		r.ranges[drawnSubnet] = at
	}
	switch stage := rapid.SampledFrom([]core.Stage{core.Absent, core.Creating, core.Attaching, core.Ready, core.Deleting}).Draw(d.T, "trunk"); stage {
	case core.Absent:
	case core.Creating:
		s.Trunk = core.Trunk{Stage: stage, Subnet: drawnSubnet, Groups: d.groups(), Intent: d.intent("t-1", "", core.CreateTrunk)}
	default:
		s.Trunk = core.Trunk{Stage: stage, ENI: d.eni(), MAC: vpc.MAC{2, 9}, Device: 3, Subnet: drawnSubnet, Groups: d.groups(), Missing: d.maybe("missing")}
		if d.bool("trunk call") {
			s.Trunk.Intent = d.intent("t-2", "", core.AttachTrunk)
		}
	}
	for vlan := range rapid.IntRange(0, 8).Draw(d.T, "branches") {
		d.branch(r, vlan+1)
		r.ranges[drawnSubnet] = at
	}
	for vlan := range rapid.IntRange(0, 3).Draw(d.T, "cooling") {
		s.VLANs[100+vlan] = core.VLAN{Owner: core.BranchID(d.text("owner")), Until: d.maybe("until")}
	}
	for _, key := range []string{"trunk", "warm", "subnet/" + string(drawnSubnet)} {
		if d.bool(key) {
			s.Backoffs[key] = core.Backoff{Since: d.time("since"), Until: d.time("until"), Tries: 2, Reason: core.FailThrottled, Message: d.text("message")}
		}
	}
	if d.bool("refused") {
		s.Refused["uid-1"] = core.Refusal{Groups: d.groups(), Message: d.text("message")}
	}
	if d.bool("unowned") {
		eni := d.eni()
		s.Unowned[eni] = core.Unowned{Seen: core.Seen{
			ENI: eni, Type: vpc.TypeBranch, Intent: "x", Subnet: drawnSubnet, MAC: vpc.MAC{2, 8}, IPv4: netip.AddrFrom4([4]byte{10, 1}),
			Groups: d.groups(), Association: "trunk-assoc-9", VLAN: 99,
		}, First: d.time("first"), Passes: 2}
	}
	return r
}

// Whatever core/trunk records is read back from the status as it was written, by the JSON that the
// API server keeps.
func TestARecordReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := (&draw{T: t}).record()
		text, err := json.Marshal(want.ledger())
		if err != nil {
			t.Fatal(err)
		}
		var l vpcresources.BranchLedger
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		got, err := readLedger(&l, drawnInstance)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("read\n%+v\nwrote\n%+v\n%s", got, want, text)
		}
	})
}

func TestARecordOfAnotherInstanceIsNotRead(t *testing.T) {
	_, err := readLedger(newRecord("i-0123456789abcdef9").ledger(), drawnInstance)
	if !errors.Is(err, vpcresources.ErrOtherInstance) {
		t.Errorf("%v, want %v", err, vpcresources.ErrOtherInstance)
	}
	if r, err := readLedger(nil, drawnInstance); err != nil || !reflect.DeepEqual(r, newRecord(drawnInstance)) {
		t.Errorf("without a record: %+v, %v", r, err)
	}
}
