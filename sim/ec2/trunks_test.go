package ec2_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

// trunk makes a trunk as AWS's VPC resource controller does, and attaches it.
func (a *account) trunk(t *testing.T) string {
	t.Helper()
	id := *a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), InterfaceType: types.NetworkInterfaceCreationTypeTrunk}).NetworkInterfaceId
	n := string(a.instance("node1").ID)
	ok[*awsec2.AttachNetworkInterfaceOutput](t)(a.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{
		InstanceId: &n, NetworkInterfaceId: &id, DeviceIndex: aws.Int32(3),
	}))
	return id
}

func (a *account) branch(t *testing.T) string {
	t.Helper()
	return *a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}).NetworkInterfaceId
}

func association(trunk, branch string, vlan int32) *awsec2.AssociateTrunkInterfaceInput {
	return &awsec2.AssociateTrunkInterfaceInput{TrunkInterfaceId: &trunk, BranchInterfaceId: &branch, VlanId: &vlan}
}

// trunkCalls makes the three calls, in their order, and returns the errors.
func trunkCalls(ctx context.Context, c *awsec2.Client, trunk, branch string, dry bool) (errs [3]error) {
	in := association(trunk, branch, 1)
	in.DryRun = &dry
	id := aws.String("trunk-assoc-00000000000000001")
	made, err := c.AssociateTrunkInterface(ctx, in)
	if errs[0] = err; err == nil {
		id = made.InterfaceAssociation.AssociationId
	}
	_, errs[1] = c.DescribeTrunkInterfaceAssociations(ctx, &awsec2.DescribeTrunkInterfaceAssociationsInput{DryRun: &dry})
	_, errs[2] = c.DisassociateTrunkInterface(ctx, &awsec2.DisassociateTrunkInterfaceInput{AssociationId: id, DryRun: &dry})
	return errs
}

func TestVPCResourceControllersCallsAddABranchAndRemoveIt(t *testing.T) {
	a := start(t, seeded())
	trunk, branch := a.trunk(t), a.branch(t)
	in := association(trunk, branch, 7)
	in.ClientToken = aws.String("once")
	made := ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), in))
	got := *made.InterfaceAssociation
	if aws.ToString(made.ClientToken) != "once" || *got.TrunkInterfaceId != trunk || *got.BranchInterfaceId != branch ||
		*got.VlanId != 7 || got.GreKey != nil || got.InterfaceProtocol != types.InterfaceProtocolTypeVlan || !strings.HasPrefix(*got.AssociationId, "trunk-assoc-0") {
		t.Fatalf("token %v, %+v", made.ClientToken, got)
	}
	again := ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), in))
	if *again.InterfaceAssociation.AssociationId != *got.AssociationId {
		t.Errorf("the same token made %s and %s", *got.AssociationId, *again.InterfaceAssociation.AssociationId)
	}
	in.VlanId = aws.Int32(8)
	_, err := a.AssociateTrunkInterface(t.Context(), in)
	want(t, err, "IdempotentParameterMismatch", "")

	out := ok[*awsec2.DescribeNetworkInterfacesOutput](t)(a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{filter("interface-type", "branch"), filter("status", "in-use")},
	}))
	if len(out.NetworkInterfaces) != 1 || *out.NetworkInterfaces[0].NetworkInterfaceId != branch || out.NetworkInterfaces[0].Attachment != nil {
		t.Fatalf("branches in use: %+v", out.NetworkInterfaces)
	}
	_, err = a.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &branch})
	want(t, err, "InvalidParameterValue", "Network interface '"+branch+"' is currently in use.")
	gone := ok[*awsec2.DisassociateTrunkInterfaceOutput](t)(a.DisassociateTrunkInterface(t.Context(), &awsec2.DisassociateTrunkInterfaceInput{
		AssociationId: got.AssociationId, ClientToken: aws.String("twice"),
	}))
	if !*gone.Return || *gone.ClientToken != "twice" {
		t.Errorf("%+v", gone)
	}
	if _, err := a.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &branch}); err != nil {
		t.Error(err)
	}
	_, err = a.DisassociateTrunkInterface(t.Context(), &awsec2.DisassociateTrunkInterfaceInput{AssociationId: got.AssociationId})
	want(t, err, "InvalidAssociationID.NotFound", "The association ID '"+*got.AssociationId+"' does not exist")
}

func TestGroupsOfABranchAreModifiedByTheAPI(t *testing.T) {
	a := start(t, seeded())
	branch, group := a.branch(t), string(a.cloud.State().GroupNamed("node").ID)
	ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), association(a.trunk(t), branch, 1)))
	ok[*awsec2.ModifyNetworkInterfaceAttributeOutput](t)(a.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: &branch, Groups: []string{group},
	}))
	out := ok[*awsec2.DescribeNetworkInterfacesOutput](t)(a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{branch}}))
	if got := out.NetworkInterfaces[0]; len(got.Groups) != 1 || *got.Groups[0].GroupId != group || got.Status != "in-use" {
		t.Errorf("%+v", got)
	}
}

// AWS reserves the trunk calls to accounts on its list. Others are refused, a dry run as
// well, unless IAM refuses the caller first; they may make trunks and attach them.
func TestTrunkCallsAreRefusedOnOrdinaryAccounts(t *testing.T) {
	spec := seeded()
	spec.Quotas.TrunkCalls = false
	a := start(t, spec)
	trunk, branch := a.trunk(t), a.branch(t)
	before := a.cloud.State()
	unprivileged := a.as(iam.Role{Name: "unprivileged"})
	for _, dry := range []bool{false, true} {
		for _, err := range trunkCalls(t.Context(), a.Client, trunk, branch, dry) {
			want(t, err, "OperationNotPermitted", "User 111122223333 is not permitted to perform this operation")
		}
		for _, err := range trunkCalls(t.Context(), unprivileged, trunk, branch, dry) {
			want(t, err, "UnauthorizedOperation", "")
		}
	}
	if a.cloud.State() != before {
		t.Error("a refused call changed the account")
	}
}

// EKS's VPC resource controller associates branches on every account.
func TestTrunkCallsOfAWSsServicesAreAllowedOnOrdinaryAccounts(t *testing.T) {
	spec := seeded()
	spec.Quotas.TrunkCalls = false
	a := start(t, spec)
	trunk, branch := a.trunk(t), a.branch(t)
	for n, err := range trunkCalls(t.Context(), a.asService(), trunk, branch, false) {
		if err != nil {
			t.Errorf("call %d: %v", n, err)
		}
	}
	if n := len(cloud.Branches(a.cloud.State())); n != 0 {
		t.Errorf("%d branches are associated, want none after the disassociation", n)
	}
}

func TestTrunkCallsNeedTheirIAMActionsOnAllResources(t *testing.T) {
	a := start(t, seeded())
	trunk, branch := a.trunk(t), a.branch(t)
	actions := []string{"AssociateTrunkInterface", "DescribeTrunkInterfaceAssociations", "DisassociateTrunkInterface"}
	for n, action := range actions {
		c := a.as(iam.Role{Name: action, Policies: policyOf(action, "*")})
		for m, err := range trunkCalls(t.Context(), c, trunk, branch, true) {
			if m == n {
				want(t, err, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
				continue
			}
			want(t, err, "UnauthorizedOperation", "")
		}
		c = a.as(iam.Role{Name: action + "-of-one", Policies: policyOf(action, "arn:aws:ec2:us-west-2:111122223333:network-interface/*")})
		want(t, trunkCalls(t.Context(), c, trunk, branch, false)[n], "UnauthorizedOperation", "")
	}
	if n := len(cloud.Branches(a.cloud.State())); n != 0 {
		t.Errorf("dry runs made %d associations", n)
	}
}

// policyOf allows one action of EC2.
func policyOf(action, resource string) map[string][]byte {
	return map[string][]byte{action: []byte(
		`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:` + action + `", "Resource": "` + resource + `"}}`)}
}

func TestInvalidAssociationsAreRefusedWithEC2sErrors(t *testing.T) {
	a := start(t, seeded())
	trunk, branch, free := a.trunk(t), a.branch(t), a.branch(t)
	ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), association(trunk, branch, 1)))
	without, gre, long := association(trunk, free, 2), association(trunk, free, 2), association(trunk, free, 2)
	without.VlanId, gre.GreKey, long.ClientToken = nil, aws.Int32(7), aws.String(strings.Repeat("x", 65))
	for name, test := range map[string]struct {
		in            *awsec2.AssociateTrunkInterfaceInput
		code, message string
	}{
		"a VLAN in use":       {association(trunk, free, 1), "InvalidVlanId.Duplicate", "VlanId '1' is in use"},
		"without a VLAN":      {without, "MissingParameter", "The request must contain the parameter vlanId"},
		"GRE":                 {gre, "UnsupportedOperation", ""},
		"a long client token": {long, "InvalidParameterValue", ""},
		"a malformed trunk":   {association("eni-x", free, 2), "InvalidNetworkInterfaceId.Malformed", ""},
		"a malformed branch":  {association(trunk, "eni-x", 2), "InvalidNetworkInterfaceId.Malformed", ""},
		"an unknown branch": {
			association(trunk, "eni-00000000000000001", 2), "InvalidNetworkInterfaceID.NotFound",
			"The networkInterface ID 'eni-00000000000000001' does not exist",
		},
		"a branch in use": {association(trunk, branch, 2), "InvalidParameterValue", "Network interface '" + branch + "' is currently in use."},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.AssociateTrunkInterface(t.Context(), test.in)
			want(t, err, test.code, test.message)
		})
	}
}

func TestAssociationsAreFilteredAndPaged(t *testing.T) {
	a := start(t, seeded())
	trunk, ids := a.trunk(t), map[string]bool{}
	var first string
	for vlan := range int32(12) {
		made := ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), association(trunk, a.branch(t), vlan+1)))
		first = *made.InterfaceAssociation.AssociationId
		ids[first] = true
	}
	pages, seen := awsec2.NewDescribeTrunkInterfaceAssociationsPaginator(a, &awsec2.DescribeTrunkInterfaceAssociationsInput{MaxResults: aws.Int32(5)}), 0
	for pages.HasMorePages() {
		out := ok[*awsec2.DescribeTrunkInterfaceAssociationsOutput](t)(pages.NextPage(t.Context()))
		for _, one := range out.InterfaceAssociations {
			if !ids[*one.AssociationId] {
				t.Errorf("%s is repeated or was not made", *one.AssociationId)
			}
			delete(ids, *one.AssociationId)
			seen++
		}
	}
	if seen != 12 {
		t.Errorf("saw %d of 12", seen)
	}
	for wanted, in := range map[int]*awsec2.DescribeTrunkInterfaceAssociationsInput{
		1:  {AssociationIds: []string{first}},
		12: {Filters: []types.Filter{filter("interface-protocol", "VLAN")}},
		0:  {Filters: []types.Filter{filter("gre-key", "*")}},
	} {
		out := ok[*awsec2.DescribeTrunkInterfaceAssociationsOutput](t)(a.DescribeTrunkInterfaceAssociations(t.Context(), in))
		if got := len(out.InterfaceAssociations); got != wanted {
			t.Errorf("%+v: %d associations, want %d", in, got, wanted)
		}
	}
	_, err := a.DescribeTrunkInterfaceAssociations(t.Context(), &awsec2.DescribeTrunkInterfaceAssociationsInput{AssociationIds: []string{"trunk-assoc-00000000000000001"}})
	want(t, err, "InvalidAssociationID.NotFound", "The association ID 'trunk-assoc-00000000000000001' does not exist")
	_, err = a.DescribeTrunkInterfaceAssociations(t.Context(), &awsec2.DescribeTrunkInterfaceAssociationsInput{AssociationIds: []string{"assoc"}})
	want(t, err, "InvalidAssociationID.Malformed", "")
}

func TestTrunkCallsAreLostDelayedAndThrottled(t *testing.T) {
	a := start(t, seeded())
	trunk, branch := a.trunk(t), a.branch(t)
	set := func(p faults.Plan) {
		t.Helper()
		if err := a.faults.Set(p); err != nil {
			t.Fatal(err)
		}
	}
	in := association(trunk, branch, 1)
	in.ClientToken = aws.String("once")
	for _, do := range []string{faults.Disconnect, faults.LoseReply} {
		set(faults.Plan{Calls: []faults.Call{{Action: "AssociateTrunkInterface", Do: do}}})
		if _, err := a.AssociateTrunkInterface(t.Context(), in); err == nil {
			t.Fatalf("%s: a response arrived", do)
		}
		if made := len(cloud.Branches(a.cloud.State())) == 1; made != (do == faults.LoseReply) {
			t.Errorf("%s: associated is %v", do, made)
		}
	}
	made := ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), in)) // finds the effect

	set(faults.Plan{Latency: map[string]faults.Latency{"DescribeTrunkInterfaceAssociations": {Fixed: faults.Duration(time.Hour)}}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := a.DescribeTrunkInterfaceAssociations(ctx, &awsec2.DescribeTrunkInterfaceAssociationsInput{}); ctx.Err() == nil {
		t.Errorf("no delay: %v", err)
	}

	set(faults.Plan{Throttle: map[string]faults.Bucket{"DisassociateTrunkInterface": {Size: 1}}})
	remove := &awsec2.DisassociateTrunkInterfaceInput{AssociationId: made.InterfaceAssociation.AssociationId, DryRun: aws.Bool(true)}
	_, err := a.DisassociateTrunkInterface(t.Context(), remove)
	want(t, err, "DryRunOperation", "")
	_, err = a.DisassociateTrunkInterface(t.Context(), remove)
	want(t, err, "RequestLimitExceeded", "Request limit exceeded.")

	set(faults.Plan{DescribeLag: faults.Duration(time.Hour)})
	ok[*awsec2.AssociateTrunkInterfaceOutput](t)(a.AssociateTrunkInterface(t.Context(), association(trunk, a.branch(t), 2)))
	out := ok[*awsec2.DescribeTrunkInterfaceAssociationsOutput](t)(a.DescribeTrunkInterfaceAssociations(t.Context(), &awsec2.DescribeTrunkInterfaceAssociationsInput{}))
	if len(out.InterfaceAssociations) != 1 {
		t.Errorf("%d associations within the lag, want one", len(out.InterfaceAssociations))
	}
}

// The fields that awscli printed for the trunk and a branch of an EKS cluster, as a list of
// facts. Source: the output of describe-network-interfaces in an account of security groups
// for pods on EKS 1.27 with version v1.12.6 of AWS's VPC CNI.
func TestGoldensOfTrunkAndBranchHaveTheFieldsOfRealOnes(t *testing.T) {
	common := []string{
		"AvailabilityZone", "Description", "Groups", "InterfaceType", "Ipv6Addresses", "MacAddress", "NetworkInterfaceId", "OwnerId", "PrivateDnsName",
		"PrivateIpAddress", "PrivateIpAddresses", "RequesterId", "RequesterManaged", "SourceDestCheck", "Status", "SubnetId", "TagSet", "VpcId",
	}
	text, err := os.ReadFile("testdata/describe-network-interfaces.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ NetworkInterfaces []map[string]any }
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, i := range golden.NetworkInterfaces {
		wanted := common
		switch i["InterfaceType"] {
		case "branch":
		case "trunk":
			wanted = append([]string{"Attachment"}, common...)
		default:
			continue
		}
		found++
		if got := slices.Sorted(maps.Keys(i)); !slices.Equal(got, wanted) {
			t.Errorf("%s: fields %v, want %v", i["InterfaceType"], got, wanted)
		}
		if i["Status"] != "in-use" || i["Description"] != "aws-k8s-"+i["InterfaceType"].(string)+"-eni" {
			t.Errorf("%s: status %v, description %v", i["InterfaceType"], i["Status"], i["Description"])
		}
	}
	if found != 2 {
		t.Errorf("%d trunks and branches in the golden, want two", found)
	}
}
