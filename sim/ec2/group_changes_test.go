package ec2_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func vpcOf(a *account) *string { return aws.String(string(a.cloud.State().VPC.ID)) }

func createGroup(t *testing.T, a *account, name string) *string {
	t.Helper()
	return ok[*awsec2.CreateSecurityGroupOutput](t)(a.CreateSecurityGroup(t.Context(), &awsec2.CreateSecurityGroupInput{
		GroupName: &name, Description: aws.String("by a test"), VpcId: vpcOf(a),
	})).GroupId
}

// A new group allows all outbound and no inbound traffic, and is deleted only when nothing
// uses it.
func TestAGroupInUseIsNotDeleted(t *testing.T) {
	a := start(t, seeded())
	made := ok[*awsec2.CreateSecurityGroupOutput](t)(a.CreateSecurityGroup(t.Context(), &awsec2.CreateSecurityGroupInput{
		GroupName: aws.String("pods"), Description: aws.String("of pods"), VpcId: vpcOf(a),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSecurityGroup, Tags: []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}}},
	}))
	id := made.GroupId
	g := ok[*awsec2.DescribeSecurityGroupsOutput](t)(a.DescribeSecurityGroups(t.Context(), &awsec2.DescribeSecurityGroupsInput{GroupIds: []string{*id}})).SecurityGroups[0]
	if *g.SecurityGroupArn != *made.SecurityGroupArn || len(g.Tags) != 1 || len(made.Tags) != 1 || len(g.IpPermissions) != 0 ||
		len(g.IpPermissionsEgress) != 1 || *g.IpPermissionsEgress[0].IpProtocol != "-1" || len(g.IpPermissionsEgress[0].Ipv6Ranges) != 1 {
		t.Errorf("%+v", g)
	}
	remove := func() error {
		_, err := a.DeleteSecurityGroup(t.Context(), &awsec2.DeleteSecurityGroupInput{GroupId: id})
		return err
	}
	const inUse = "DependencyViolation"
	text := "resource " + *id + " has a dependent object"
	eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Groups: []string{*id}})
	want(t, remove(), inUse, text)
	if _, err := a.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: eni.NetworkInterfaceId}); err != nil {
		t.Fatal(err)
	}
	rule := []types.IpPermission{{IpProtocol: aws.String("-1"), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: id}}}}
	other := createGroup(t, a, "other")
	for _, holder := range []*string{id, other} { // a rule of its own is no use
		if _, err := a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{GroupId: holder, IpPermissions: rule}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, remove(), inUse, text)
	if _, err := a.RevokeSecurityGroupIngress(t.Context(), &awsec2.RevokeSecurityGroupIngressInput{GroupId: other, IpPermissions: rule}); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	want(t, remove(), "InvalidGroup.NotFound", "The security group '"+*id+"' does not exist")
}

func TestInvalidGroupsAreRefused(t *testing.T) {
	spec := seeded()
	spec.Quotas.GroupsPerVPC = len(spec.Groups) + 2
	a := start(t, spec)
	create := func(name, description string, network *string) error {
		_, err := a.CreateSecurityGroup(t.Context(), &awsec2.CreateSecurityGroupInput{GroupName: &name, Description: &description, VpcId: network})
		return err
	}
	want(t, create("n", "d", nil), "VPCIdNotSpecified", "")
	want(t, create("n", "d", aws.String("vpc-00000000000000000")), "InvalidVpcID.NotFound", "")
	want(t, create("Default", "d", vpcOf(a)), "InvalidParameterValue", "Cannot use reserved security group name: default")
	want(t, create("sg-x", "d", vpcOf(a)), "InvalidParameterValue", "")
	want(t, create(strings.Repeat("n", 256), "d", vpcOf(a)), "InvalidParameterValue", "")
	want(t, create("n", "ä", vpcOf(a)), "InvalidParameterValue", "")
	want(t, create("NODE", "d", vpcOf(a)), "InvalidGroup.Duplicate", "The security group 'NODE' already exists for VPC '"+*vpcOf(a)+"'")
	createGroup(t, a, "last")
	want(t, create("n", "d", vpcOf(a)), "SecurityGroupLimitExceeded", "")
	remove := func(in awsec2.DeleteSecurityGroupInput) error {
		_, err := a.DeleteSecurityGroup(t.Context(), &in)
		return err
	}
	id := string(a.cloud.State().GroupNamed("default").ID)
	want(t, remove(awsec2.DeleteSecurityGroupInput{GroupId: &id}), "CannotDelete", `the specified group: "`+id+`" name: "default" cannot be deleted by a user`)
	want(t, remove(awsec2.DeleteSecurityGroupInput{}), "MissingParameter", "")
	want(t, remove(awsec2.DeleteSecurityGroupInput{GroupName: aws.String("last")}), "VPCIdNotSpecified", "")
}

// A permission is granted to one account and ends with its interface.
func TestPermissionsOfAnInterface(t *testing.T) {
	a := start(t, seeded())
	eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}).NetworkInterfaceId
	grant := func(account string, kind types.InterfacePermissionType) (*types.NetworkInterfacePermission, error) {
		out, err := a.CreateNetworkInterfacePermission(t.Context(), &awsec2.CreateNetworkInterfacePermissionInput{NetworkInterfaceId: eni, AwsAccountId: &account, Permission: kind})
		if err != nil {
			return nil, err
		}
		return out.InterfacePermission, nil
	}
	made := ok[*types.NetworkInterfacePermission](t)(grant("111122223333", types.InterfacePermissionTypeInstanceAttach))
	again := ok[*types.NetworkInterfacePermission](t)(grant("111122223333", types.InterfacePermissionTypeInstanceAttach))
	if *made.NetworkInterfacePermissionId != *again.NetworkInterfacePermissionId || made.PermissionState.State != types.NetworkInterfacePermissionStateCodeGranted {
		t.Errorf("%+v and %+v, want the same permission, granted", made, again)
	}
	_, err := grant("444455556666", types.InterfacePermissionTypeInstanceAttach)
	want(t, err, "InvalidParameterValue", "")
	_, err = grant("1234", types.InterfacePermissionTypeInstanceAttach)
	want(t, err, "InvalidParameterValue", "")
	_, err = grant("111122223333", "DETACH")
	want(t, err, "InvalidParameterValue", "")
	ok[*types.NetworkInterfacePermission](t)(grant("111122223333", types.InterfacePermissionTypeEipAssociate))
	list := func() int {
		out := ok[*awsec2.DescribeNetworkInterfacePermissionsOutput](t)(a.DescribeNetworkInterfacePermissions(t.Context(), &awsec2.DescribeNetworkInterfacePermissionsInput{}))
		return len(out.NetworkInterfacePermissions)
	}
	if list() != 2 {
		t.Errorf("%d permissions, want 2", list())
	}
	at, err := a.cloud.Interface(vpc.ENIID(*eni)).Attach(a.instance("node1").ID, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	revoke := func(force bool) error {
		_, err := a.DeleteNetworkInterfacePermission(t.Context(), &awsec2.DeleteNetworkInterfacePermissionInput{
			NetworkInterfacePermissionId: made.NetworkInterfacePermissionId, Force: &force,
		})
		return err
	}
	want(t, revoke(false), "OperationNotPermitted", "")
	if err := revoke(true); err != nil {
		t.Fatal(err)
	}
	want(t, revoke(true), "InvalidNetworkInterfacePermissionID.NotFound", "")
	if err := a.cloud.Detach(at.ID); err != nil {
		t.Fatal(err)
	}
	if err := a.cloud.Interface(vpc.ENIID(*eni)).Delete(); err != nil {
		t.Fatal(err)
	}
	if list() != 0 {
		t.Errorf("%d permissions of a deleted interface", list())
	}
}
