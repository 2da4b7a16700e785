package cloud_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

var (
	began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	four  = []netip.Addr{netip.MustParseAddr("10.0.0.7")}
	six   = []netip.Addr{netip.MustParseAddr("fd00::7")}
)

// whole are one valid action of every kind that EC2 carries out.
func whole() []cloud.Action {
	return []cloud.Action{
		{Kind: cloud.CreateENI, Subnet: "subnet-1", Instance: "i-1", Count: 3},
		{Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1", Device: 2},
		{Kind: cloud.AssignAddresses, ENI: "eni-1", Count: 3, Held: four},
		{Kind: cloud.RestoreAddresses, ENI: "eni-1", Addresses: four},
		{Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: four},
		{Kind: cloud.Detach, ENI: "eni-1", Attachment: "eni-attach-1"},
		{Kind: cloud.DeleteENI, ENI: "eni-1"},
	}
}

func TestAnActionIsValidOnlyWithAllThatItsKindNeeds(t *testing.T) {
	for _, a := range whole() {
		a.ID, a.Began = "a", began
		if err := a.Validate(); err != nil {
			t.Errorf("%s: %v", a, err)
		}
		for what, breakIt := range map[string]func(*cloud.Action){
			"no id":           func(a *cloud.Action) { a.ID = "" },
			"an id too long":  func(a *cloud.Action) { a.ID = cloud.ActionID(strings.Repeat("x", 65)) },
			"never recorded":  func(a *cloud.Action) { a.Began = time.Time{} },
			"about nothing":   func(a *cloud.Action) { a.ENI, a.Subnet = "", "" },
			"of unknown kind": func(a *cloud.Action) { a.Kind = "paint" },
			"no parameters": func(a *cloud.Action) {
				a.Instance, a.Attachment, a.Count, a.Addresses = "", "", 0, nil
				if a.Kind == cloud.DeleteENI {
					a.ENI = "" // it needs nothing else
				}
			},
		} {
			broken := a
			breakIt(&broken)
			if broken.Validate() == nil {
				t.Errorf("%s with %s is valid", a, what)
			}
		}
	}
}

func TestWhatThisVersionCannotDoIsUnsupported(t *testing.T) {
	for _, a := range []cloud.Action{
		{Kind: cloud.SetUp, ENI: "eni-1"},
		{Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: six},
		{Kind: cloud.AssignAddresses, ENI: "eni-1", Count: 1, Held: six},
	} {
		a.ID, a.Began = "a", began
		if err := a.Validate(); !errors.Is(err, cloud.ErrUnsupported) {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestAJournaledActionIsReadBackWhole(t *testing.T) {
	for _, a := range whole() {
		a.ID, a.Began, a.Why, a.From = "a", began, "because", "ready"
		a.Recent, a.Tags, a.Description = four, map[string]string{"k": "v"}, "d"
		a.Groups, a.SubnetCIDR = []vpc.SecurityGroupID{"sg-1"}, netip.MustParsePrefix("10.0.0.0/24")
		raw, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var again cloud.Action
		if err := json.Unmarshal(raw, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(a, again, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s (-written +read):\n%s", a, diff)
		}
	}
}

func TestANodeCompletesAnActionOnce(t *testing.T) {
	node := cloud.Node{Instance: "i-1", Cluster: "lab", Tags: map[string]string{"team": "net"}}
	first := node.Complete(cloud.Action{Kind: cloud.CreateENI, Subnet: "subnet-1"}, began)
	want := map[string]string{
		"team": "net", vpc.TagInstanceID: "i-1", vpc.TagCreatedAt: "2026-03-01T12:00:00Z", vpc.TagManagedBy: "trunkline",
		vpc.TagClusterName: "lab", vpc.TagOwner: vpc.OwnerVPCCNI,
	}
	if diff := cmp.Diff(want, first.Tags); diff != "" || first.Instance != "i-1" || first.Description != vpc.DescriptionHead+"i-1" {
		t.Errorf("%+v, tags (-want +got):\n%s", first, diff)
	}
	second := cloud.Node{Instance: "i-2", Cluster: "renamed"}.Complete(first, began.Add(time.Hour))
	if diff := cmp.Diff(first, second, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("completed twice (-first +second):\n%s", diff)
	}
	if len(node.Tags) != 1 {
		t.Errorf("the operator's tags became %v", node.Tags)
	}
	if other := node.Complete(cloud.Action{Kind: cloud.DeleteENI, ENI: "eni-1"}, began); other.Tags != nil || other.Instance != "i-1" {
		t.Errorf("%+v: only what is created is tagged", other)
	}
}

func TestBrakes(t *testing.T) {
	for _, c := range []struct {
		brake             cloud.Brake
		allocate, release bool
	}{
		{cloud.BrakeOff, true, true},
		{cloud.FreezeRelease, true, false},
		{cloud.AllocateOnly, true, false},
		{cloud.FreezeAll, false, false},
		{cloud.Unobserved, false, false},
	} {
		if c.brake.AllowsAllocate() != c.allocate || c.brake.AllowsRelease() != c.release {
			t.Errorf("%q allows allocation %v, release %v", c.brake, c.brake.AllowsAllocate(), c.brake.AllowsRelease())
		}
		for _, a := range whole() {
			want := c.allocate
			if a.Kind.Frees() {
				want = c.release
			}
			if c.brake.Allows(a.Kind) != want {
				t.Errorf("%q allows %s: %v", c.brake, a.Kind, !want)
			}
		}
	}
}

func TestAnActionIsDescribedByItsKindAndObjects(t *testing.T) {
	want := []string{
		"CreateENI in subnet-1 with 3 addresses", "Attach eni-1 at device 2", "AssignAddresses 3 to eni-1", "RestoreAddresses [10.0.0.7] to eni-1",
		"UnassignAddresses [10.0.0.7] from eni-1", "Detach eni-1", "DeleteENI eni-1", "SetUp eni-1", `unknown action "paint"`,
	}
	for i, a := range append(whole(), cloud.Action{Kind: cloud.SetUp, ENI: "eni-1"}, cloud.Action{Kind: "paint", ENI: "eni-1"}) {
		if a.String() != want[i] {
			t.Errorf("%s, want %s", a, want[i])
		}
	}
}

// 64 characters are the longest client token that EC2 takes.
func TestAnIDOfTheLengthOfAClientTokenIsValid(t *testing.T) {
	a := cloud.Action{ID: cloud.ActionID(strings.Repeat("x", 64)), Kind: cloud.DeleteENI, ENI: "eni-1", Began: began}
	if err := a.Validate(); err != nil {
		t.Error(err)
	}
	a.Kind = cloud.SetUp
	if err := a.Validate(); err == nil || !strings.Contains(err.Error(), "carried out on the node") {
		t.Errorf("an action of the node: %v", err)
	}
}

func TestAnInterfaceOfANodeWithoutAClusterNamesNone(t *testing.T) {
	a := cloud.Node{Instance: "i-1"}.Complete(cloud.Action{Kind: cloud.CreateENI, Subnet: "subnet-1"}, began)
	want := map[string]string{vpc.TagInstanceID: "i-1", vpc.TagCreatedAt: "2026-03-01T12:00:00Z", vpc.TagManagedBy: "trunkline"}
	if diff := cmp.Diff(want, a.Tags); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
