package ec2_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

// guardedCall is a call, and the resources for which it needs permission: as they stand in
// ARNs, with the action where it is another one.
type guardedCall struct {
	action string
	input  any
	needs  []string
}

// permissionsOfChanges are the calls that change the network. Source: Service
// Authorization Reference, "Actions defined by Amazon EC2".
func permissionsOfChanges(t *testing.T, a *account) []guardedCall {
	t.Helper()
	s := a.cloud.State()
	eni, group, subnet := primaryOf(a, "node1"), string(s.GroupNamed("node").ID), *a.subnet("b")
	instance, table := string(a.instance("node1").ID), ""
	for _, r := range s.RouteTables {
		if !r.Main {
			table = string(r.ID)
		}
	}
	allocated, _ := allocate(t, a)
	used, _ := allocate(t, a)
	association := associate(t, a, &awsec2.AssociateAddressInput{AllocationId: &used, NetworkInterfaceId: &eni})
	explicit := string(s.SubnetNamed("a").Association)
	reservation := ok[*awsec2.CreateSubnetCidrReservationOutput](t)(a.CreateSubnetCidrReservation(t.Context(), &awsec2.CreateSubnetCidrReservationInput{
		SubnetId: &subnet, Cidr: aws.String("10.0.32.0/28"), ReservationType: types.SubnetCidrReservationTypeExplicit,
	})).SubnetCidrReservation.SubnetCidrReservationId
	tags := func(kind types.ResourceType) []types.TagSpecification {
		return []types.TagSpecification{{ResourceType: kind, Tags: []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}}}
	}
	network := "vpc/" + *vpcOf(a)
	return []guardedCall{
		{"CreateNetworkInterfacePermission", &awsec2.CreateNetworkInterfacePermissionInput{
			NetworkInterfaceId: &eni, AwsAccountId: aws.String("444455556666"), Permission: types.InterfacePermissionTypeInstanceAttach,
		}, []string{"network-interface/" + eni}},
		{"CreateSecurityGroup", &awsec2.CreateSecurityGroupInput{
			GroupName: aws.String("n"), Description: aws.String("d"), VpcId: vpcOf(a), TagSpecifications: tags(types.ResourceTypeSecurityGroup),
		}, []string{"security-group/*", network, "CreateTags security-group/*"}},
		{"DeleteSecurityGroup", &awsec2.DeleteSecurityGroupInput{GroupId: &group}, []string{"security-group/" + group}},
		{"AllocateAddress", &awsec2.AllocateAddressInput{TagSpecifications: tags(types.ResourceTypeElasticIp)}, []string{"elastic-ip/*", "CreateTags elastic-ip/*"}},
		{"ReleaseAddress", &awsec2.ReleaseAddressInput{AllocationId: &allocated}, []string{"elastic-ip/" + allocated}},
		{"AssociateAddress", &awsec2.AssociateAddressInput{AllocationId: &allocated, NetworkInterfaceId: &eni}, []string{"elastic-ip/" + allocated, "network-interface/" + eni}},
		{"AssociateAddress", &awsec2.AssociateAddressInput{AllocationId: &allocated, InstanceId: &instance}, []string{"elastic-ip/" + allocated, "instance/" + instance}},
		{"DisassociateAddress", &awsec2.DisassociateAddressInput{AssociationId: &association}, []string{"elastic-ip/" + used, "network-interface/" + eni}},
		{"ModifyInstanceAttribute", &awsec2.ModifyInstanceAttributeInput{InstanceId: &instance, Groups: []string{group}}, []string{"instance/" + instance, "security-group/" + group}},
		{
			"CreateSubnet", &awsec2.CreateSubnetInput{VpcId: vpcOf(a), CidrBlock: aws.String("10.0.200.0/24"), TagSpecifications: tags(types.ResourceTypeSubnet)},
			[]string{"subnet/*", network, "CreateTags subnet/*"},
		},
		{"DeleteSubnet", &awsec2.DeleteSubnetInput{SubnetId: &subnet}, []string{"subnet/" + subnet}},
		{"ModifySubnetAttribute", &awsec2.ModifySubnetAttributeInput{SubnetId: &subnet, MapPublicIpOnLaunch: &types.AttributeBooleanValue{Value: aws.Bool(true)}}, []string{"subnet/" + subnet}},
		{
			"CreateRouteTable", &awsec2.CreateRouteTableInput{VpcId: vpcOf(a), TagSpecifications: tags(types.ResourceTypeRouteTable)},
			[]string{"route-table/*", network, "CreateTags route-table/*"},
		},
		{"DeleteRouteTable", &awsec2.DeleteRouteTableInput{RouteTableId: &table}, []string{"route-table/" + table}},
		{"AssociateRouteTable", &awsec2.AssociateRouteTableInput{RouteTableId: &table, SubnetId: &subnet}, []string{"route-table/" + table, "subnet/" + subnet}},
		{"DisassociateRouteTable", &awsec2.DisassociateRouteTableInput{AssociationId: &explicit}, []string{"route-table/" + table, "subnet/" + *a.subnet("a")}},
		{"ReplaceRouteTableAssociation", &awsec2.ReplaceRouteTableAssociationInput{AssociationId: &explicit, RouteTableId: &table}, []string{"route-table/" + table}},
		{"DescribeVpcAttribute", &awsec2.DescribeVpcAttributeInput{VpcId: vpcOf(a), Attribute: types.VpcAttributeNameEnableDnsSupport}, []string{network}},
		{"AssociateVpcCidrBlock", &awsec2.AssociateVpcCidrBlockInput{VpcId: vpcOf(a), CidrBlock: aws.String("100.64.0.0/16")}, []string{network}},
		{"CreateSubnetCidrReservation", &awsec2.CreateSubnetCidrReservationInput{
			SubnetId: &subnet, Cidr: aws.String("10.0.33.0/28"), ReservationType: types.SubnetCidrReservationTypeExplicit, TagSpecifications: tags(types.ResourceTypeSubnetCidrReservation),
		}, []string{"subnet/" + subnet, "CreateTags subnet-cidr-reservation/*"}},
		{"DeleteSubnetCidrReservation", &awsec2.DeleteSubnetCidrReservationInput{SubnetCidrReservationId: reservation}, []string{"subnet/" + subnet}},
	}
}

// Each call needs permission for each resource that it names or makes, and no more. With
// DryRun, where the action has it, the response says so without an effect.
func TestChangesNeedPermissionForEveryResource(t *testing.T) {
	a := start(t, seeded())
	for _, call := range permissionsOfChanges(t, a) {
		t.Run(call.action, func(t *testing.T) {
			dry := reflect.ValueOf(call.input).Elem().FieldByName("DryRun")
			if dry.IsValid() {
				dry.Set(reflect.ValueOf(aws.Bool(true)))
			}
			for missing := range call.needs {
				left := slices.Delete(slices.Clone(call.needs), missing, missing+1)
				err := attemptCall(t, a, call, left)
				action, _, other := strings.Cut(call.needs[missing], " ")
				if !other {
					action = call.action
				}
				if !isCode(err, "UnauthorizedOperation") || !strings.Contains(err.Error(), "perform: ec2:"+action+" ") {
					t.Errorf("without %s: %v, want a refusal of ec2:%s", call.needs[missing], err, action)
				}
			}
			before := a.cloud.State().Revision
			err := attemptCall(t, a, call, call.needs)
			switch {
			case !dry.IsValid() && err != nil:
				t.Errorf("with all permissions: %v", err)
			case dry.IsValid() && (!isCode(err, "DryRunOperation") || a.cloud.State().Revision != before):
				t.Errorf("with all permissions: %v and revision %d after %d, want DryRunOperation", err, a.cloud.State().Revision, before)
			}
		})
	}
}

// attemptCall makes a call as a role with permission for some resources only.
func attemptCall(t *testing.T, a *account, call guardedCall, resources []string) error {
	t.Helper()
	type statement struct{ Effect, Action, Resource string }
	policy := struct {
		Version   string
		Statement []statement
	}{"2012-10-17", []statement{{"Allow", "sts:GetCallerIdentity", "*"}}}
	for _, resource := range resources {
		action, name, other := strings.Cut(resource, " ")
		if !other {
			action, name = call.action, resource
		}
		policy.Statement = append(policy.Statement, statement{"Allow", "ec2:" + action, "arn:aws:ec2:us-west-2:111122223333:" + name})
	}
	document, err := json.Marshal(policy)
	if err != nil {
		t.Fatal(err)
	}
	c := a.as(iam.Role{Name: "caller", Policies: map[string][]byte{"p": document}})
	out := reflect.ValueOf(c).MethodByName(call.action).Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.ValueOf(call.input)})
	err, _ = out[1].Interface().(error)
	return err
}

// Describes see an older account while they lag, and changes do not.
func TestNewDescribesLagLikeTheOthers(t *testing.T) {
	a := start(t, seeded())
	if err := a.faults.Set(faults.Plan{DescribeLag: faults.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	id, _ := allocate(t, a)
	_, err := a.DescribeAddresses(t.Context(), &awsec2.DescribeAddressesInput{AllocationIds: []string{id}})
	want(t, err, "InvalidAllocationID.NotFound", "")
	if _, err := a.ReleaseAddress(t.Context(), &awsec2.ReleaseAddressInput{AllocationId: &id}); err != nil {
		t.Error(err)
	}
	if got := len(a.cloud.State().Addresses); got != 0 {
		t.Errorf("%d addresses", got)
	}
}
