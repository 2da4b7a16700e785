package ec2_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
)

// Answers of EC2 that clients branch on or parse. The sources of their codes and texts
// stand where the errors are made.
func TestErrorsHaveEC2sCodesAndTexts(t *testing.T) {
	a := start(t, seeded())
	ctx, s := t.Context(), a.cloud.State()
	group, node1, small := string(s.GroupNamed("node").ID), string(a.instance("node1").ID), string(a.instance("small").ID)
	table := string(cloud.Sorted(s.RouteTables)[0].ID)
	full := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("tiny"), SecondaryPrivateIpAddressCount: aws.Int32(6)})
	eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("tiny"), SecondaryPrivateIpAddressCount: aws.Int32(1)})
	secondary, foreign := *eni.PrivateIpAddresses[1].PrivateIpAddress, *full.PrivateIpAddresses[1].PrivateIpAddress
	ingress := func(in awsec2.AuthorizeSecurityGroupIngressInput) error {
		_, err := a.AuthorizeSecurityGroupIngress(ctx, &in)
		return err
	}
	for _, c := range []struct {
		what          string
		do            func() error
		code, message string
	}{
		{"attach an interface with too many addresses", func() error {
			_, err := a.AttachNetworkInterface(ctx, &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: full.NetworkInterfaceId, InstanceId: &small, DeviceIndex: aws.Int32(1)})
			return err
		}, "InvalidInterface.IpAddressLimitExceeded", "Address count 7 on interface-" + (*full.NetworkInterfaceId)[len("eni-"):] + " exceeds the limit for t3.medium"},
		{"create an interface with an unknown group", func() error {
			_, err := a.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Groups: []string{group, "sg-00000000000000001"}})
			return err
		}, "InvalidSecurityGroupID.NotFound", "The securityGroup ID 'sg-00000000000000001' does not exist"},
		{"unassign an address of another interface", func() error {
			_, err := a.UnassignPrivateIpAddresses(ctx, &awsec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: eni.NetworkInterfaceId, PrivateIpAddresses: []string{secondary, foreign}})
			return err
		}, "InvalidParameterValue", "Some of the specified addresses are not assigned to interface " + *eni.NetworkInterfaceId},
		{"assign addresses of another interface", func() error {
			_, err := a.AssignPrivateIpAddresses(ctx, &awsec2.AssignPrivateIpAddressesInput{
				NetworkInterfaceId: eni.NetworkInterfaceId, PrivateIpAddresses: []string{foreign, *full.PrivateIpAddresses[2].PrivateIpAddress},
			})
			return err
		}, "InvalidParameterValue", "[" + foreign + ", " + *full.PrivateIpAddresses[2].PrivateIpAddress + "] assigned, but move is not allowed."},
		{"terminate several unknown instances", func() error {
			_, err := a.TerminateInstances(ctx, &awsec2.TerminateInstancesInput{InstanceIds: []string{node1, "i-00000000000000001", "i-00000000000000002"}})
			return err
		}, "InvalidInstanceID.NotFound", "The instance IDs 'i-00000000000000001, i-00000000000000002' do not exist"},
		{"describe several unknown instances", func() error {
			_, err := a.DescribeInstances(ctx, &awsec2.DescribeInstancesInput{InstanceIds: []string{"i-00000000000000001", node1, "i-00000000000000002"}})
			return err
		}, "InvalidInstanceID.NotFound", "The instance IDs 'i-00000000000000001, i-00000000000000002' do not exist"},
		{"terminate no instance", func() error {
			_, err := a.TerminateInstances(ctx, &awsec2.TerminateInstancesInput{InstanceIds: []string{}})
			return err
		}, "InvalidParameterCombination", "No instances specified"},
		{"detach a malformed attachment", func() error {
			_, err := a.DetachNetworkInterface(ctx, &awsec2.DetachNetworkInterfaceInput{AttachmentId: aws.String("eni-attach-x")})
			return err
		}, "InvalidNetworkInterfaceAttachmentId.Malformed", ""},
		{"route in a malformed table", func() error {
			_, err := a.DeleteRoute(ctx, &awsec2.DeleteRouteInput{RouteTableId: aws.String("rtb-x"), DestinationCidrBlock: aws.String("192.0.2.0/24")})
			return err
		}, "InvalidRouteTableId.Malformed", ""},
		{"tag an unknown internet gateway", func() error {
			_, err := a.CreateTags(ctx, &awsec2.CreateTagsInput{Resources: []string{"igw-00000000000000001"}, Tags: []types.Tag{{Key: aws.String("k")}}})
			return err
		}, "InvalidInternetGatewayID.NotFound", "The internetGateway ID 'igw-00000000000000001' does not exist"},
		{"route to an unknown internet gateway", func() error {
			_, err := a.CreateRoute(ctx, &awsec2.CreateRouteInput{RouteTableId: &table, DestinationCidrBlock: aws.String("192.0.2.0/24"), GatewayId: aws.String("igw-00000000000000001")})
			return err
		}, "InvalidGatewayID.NotFound", "The gateway ID 'igw-00000000000000001' does not exist"},
		{"route to an unknown NAT gateway", func() error {
			_, err := a.CreateRoute(ctx, &awsec2.CreateRouteInput{RouteTableId: &table, DestinationCidrBlock: aws.String("192.0.2.0/24"), NatGatewayId: aws.String("nat-00000000000000001")})
			return err
		}, "InvalidNatGatewayID.NotFound", "The natGateway ID 'nat-00000000000000001' does not exist"},
		{"change an attachment and say nothing of it", func() error {
			_, err := a.ModifyNetworkInterfaceAttribute(ctx, &awsec2.ModifyNetworkInterfaceAttributeInput{
				NetworkInterfaceId: eni.NetworkInterfaceId, Attachment: &types.NetworkInterfaceAttachmentChanges{AttachmentId: aws.String("eni-attach-00000000000000001")},
			})
			return err
		}, "MissingParameter", ""},
		{"read no attribute", func() error {
			_, err := a.DescribeNetworkInterfaceAttribute(ctx, &awsec2.DescribeNetworkInterfaceAttributeInput{NetworkInterfaceId: eni.NetworkInterfaceId})
			return err
		}, "InvalidParameterCombination", "No attributes specified."},
		{"ask for more types than a page has", func() error {
			_, err := a.DescribeInstanceTypes(ctx, &awsec2.DescribeInstanceTypesInput{MaxResults: aws.Int32(101)})
			return err
		}, "InvalidParameterValue", ""},
		{"allow a malformed range", func() error {
			return ingress(awsec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: []types.IpPermission{{
				IpProtocol: aws.String("-1"), IpRanges: []types.IpRange{{CidrIp: aws.String("10.0.0.0/33")}},
			}}})
		}, "InvalidParameterValue", "CIDR block 10.0.0.0/33 is malformed"},
		{"allow an IPv6 range as an IPv4 one", func() error {
			return ingress(awsec2.AuthorizeSecurityGroupIngressInput{
				GroupId: &group, IpProtocol: aws.String("tcp"), FromPort: aws.Int32(443), ToPort: aws.Int32(443), CidrIp: aws.String("::/0"),
			})
		}, "InvalidParameterValue", "CIDR block ::/0 is malformed"},
		{"create an interface with a malformed address", func() error {
			_, err := a.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), PrivateIpAddress: aws.String("10.0.0.256")})
			return err
		}, "InvalidParameterValue", "invalid value for parameter address: 10.0.0.256"},
		{"name a group without a default VPC", func() error {
			return ingress(awsec2.AuthorizeSecurityGroupIngressInput{GroupName: aws.String("node"), IpProtocol: aws.String("-1"), CidrIp: aws.String("0.0.0.0/0")})
		}, "VPCIdNotSpecified", "No default VPC for this user"},
		{"describe a group by its name", func() error {
			_, err := a.DescribeSecurityGroups(ctx, &awsec2.DescribeSecurityGroupsInput{GroupNames: []string{"node"}})
			return err
		}, "VPCIdNotSpecified", "No default VPC for this user"},
		{"allow a prefix list", func() error {
			return ingress(awsec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: []types.IpPermission{{
				IpProtocol: aws.String("-1"), PrefixListIds: []types.PrefixListId{{PrefixListId: aws.String("pl-00000001")}},
			}}})
		}, "InvalidPrefixListID.NotFound", "The prefix list ID 'pl-00000001' does not exist"},
		{"allow a group of another VPC", func() error {
			return ingress(awsec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: []types.IpPermission{{
				IpProtocol: aws.String("-1"), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: &group, VpcId: aws.String("vpc-00000001")}},
			}}})
		}, "InvalidGroup.NotFound", "The security group '" + group + "' does not exist"},
	} {
		t.Run(c.what, func(t *testing.T) { want(t, c.do(), c.code, c.message) })
	}
}

// A subnet that maps public addresses gives one to the primary interface of an
// instance, and all describes show it.
func TestInstanceInAPublicSubnetHasAPublicAddress(t *testing.T) {
	a := start(t, seeded())
	instance := func(name string) types.Instance {
		out, err := a.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{InstanceIds: []string{string(a.instance(name).ID)}})
		if err != nil {
			t.Fatal(err)
		}
		return out.Reservations[0].Instances[0]
	}
	public, private := instance("node1"), instance("small")
	const address, name = "198.18.0.1", "ec2-198-18-0-1.us-west-2.compute.amazonaws.com"
	if aws.ToString(public.PublicIpAddress) != address || aws.ToString(public.PublicDnsName) != name {
		t.Errorf("public address %q, name %q", aws.ToString(public.PublicIpAddress), aws.ToString(public.PublicDnsName))
	}
	for what, got := range map[string]*types.InstanceNetworkInterfaceAssociation{
		"interface": public.NetworkInterfaces[0].Association, "address": public.NetworkInterfaces[0].PrivateIpAddresses[0].Association,
	} {
		if got == nil || *got.PublicIp != address || *got.PublicDnsName != name || *got.IpOwnerId != "amazon" {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if private.PublicIpAddress != nil || private.NetworkInterfaces[0].Association != nil || aws.ToString(private.PublicDnsName) != "" {
		t.Errorf("an instance in a private subnet: %+v", private)
	}
	eni := public.NetworkInterfaces[0].NetworkInterfaceId
	associate := func(on bool) types.NetworkInterface {
		if _, err := a.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: eni, AssociatePublicIpAddress: &on}); err != nil {
			t.Fatal(err)
		}
		out, err := a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{*eni}})
		if err != nil {
			t.Fatal(err)
		}
		return out.NetworkInterfaces[0]
	}
	if got := associate(false); got.Association != nil || got.PrivateIpAddresses[0].Association != nil {
		t.Errorf("after it is turned off: %+v", got.Association)
	}
	for range 2 { // twice is once
		if got := associate(true); got.Association == nil || *got.Association.PublicIp != address {
			t.Errorf("after it is turned on: %+v", got.Association)
		}
	}
}

func TestRulesAreTaggedOnCreationAndLater(t *testing.T) {
	a := start(t, seeded())
	group := string(a.cloud.State().GroupNamed("node").ID)
	made, err := a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{
		GroupId: &group, IpProtocol: aws.String("tcp"), FromPort: aws.Int32(8080), ToPort: aws.Int32(8080), CidrIp: aws.String("192.0.2.0/24"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSecurityGroupRule, Tags: []types.Tag{{Key: aws.String("Team"), Value: aws.String("net")}}}},
	})
	if err != nil || len(made.SecurityGroupRules) != 1 || len(made.SecurityGroupRules[0].Tags) != 1 {
		t.Fatalf("%+v, %v", made, err)
	}
	rule := *made.SecurityGroupRules[0].SecurityGroupRuleId
	if _, err := a.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{rule}, Tags: []types.Tag{{Key: aws.String("Cost"), Value: aws.String("1")}}}); err != nil {
		t.Fatal(err)
	}
	rules := a.items(t, "DescribeSecurityGroupRules", "SecurityGroupRules", filter("tag:Cost", "1"), filter("tag:Team", "net"))
	tags := a.items(t, "DescribeTags", "Tags", filter("resource-type", "security-group-rule"), filter("resource-id", rule))
	if len(rules) != 1 || len(tags) != 2 {
		t.Errorf("%d rules and %d tags, want one and two", len(rules), len(tags))
	}
	out, err := a.RevokeSecurityGroupIngress(t.Context(), &awsec2.RevokeSecurityGroupIngressInput{
		GroupId: &group, IpProtocol: aws.String("tcp"), FromPort: aws.Int32(8080), ToPort: aws.Int32(8080), CidrIp: aws.String("192.0.2.0/24"),
	})
	if err != nil || len(out.RevokedSecurityGroupRules) != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	if got := out.RevokedSecurityGroupRules[0]; *got.SecurityGroupRuleId != rule || *got.CidrIpv4 != "192.0.2.0/24" || *got.FromPort != 8080 || *got.IsEgress {
		t.Errorf("revoked %+v", got)
	}
	if left := a.items(t, "DescribeTags", "Tags", filter("resource-id", rule)); len(left) != 0 {
		t.Errorf("%d tags of the revoked rule remain", len(left))
	}
}

func TestPrimaryIPv6AddressCannotBeDisabled(t *testing.T) {
	a := start(t, seeded())
	made := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), EnablePrimaryIpv6: aws.Bool(true)})
	if len(made.Ipv6Addresses) != 1 || !*made.Ipv6Addresses[0].IsPrimaryIpv6 {
		t.Fatalf("%+v", made.Ipv6Addresses)
	}
	_, err := a.UnassignIpv6Addresses(t.Context(), &awsec2.UnassignIpv6AddressesInput{
		NetworkInterfaceId: made.NetworkInterfaceId, Ipv6Addresses: []string{*made.Ipv6Addresses[0].Ipv6Address},
	})
	want(t, err, "InvalidParameterValue", "")
	modify := func(eni *string, on bool) error {
		_, err := a.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: eni, EnablePrimaryIpv6: &on})
		return err
	}
	want(t, modify(made.NetworkInterfaceId, false), "InvalidParameterValue", "")
	other := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	for _, on := range []bool{false, true, true} {
		if err := modify(other.NetworkInterfaceId, on); err != nil {
			t.Errorf("EnablePrimaryIpv6=%v: %v", on, err)
		}
	}
}

func TestConnectionTrackingIsModified(t *testing.T) {
	a := start(t, seeded())
	made := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	modify := func(seconds int32) error {
		_, err := a.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: made.NetworkInterfaceId, ConnectionTrackingSpecification: &types.ConnectionTrackingSpecificationRequest{TcpEstablishedTimeout: &seconds},
		})
		return err
	}
	if err := modify(350); err != nil {
		t.Fatal(err)
	}
	out, err := a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{*made.NetworkInterfaceId}})
	if err != nil || *out.NetworkInterfaces[0].ConnectionTrackingConfiguration.TcpEstablishedTimeout != 350 {
		t.Errorf("%+v, %v", out, err)
	}
	want(t, modify(1), "InvalidParameterValue", "")
}

// What Karpenter and the kubelet's cloud provider read of instances and types.
func TestHardwareOfInstanceTypes(t *testing.T) {
	a := start(t, seeded())
	for name, want := range map[string]struct {
		architecture          types.ArchitectureType
		cpus, cores, gibTimes int32
	}{
		"t3.medium": {"x86_64", 2, 1, 4}, "m5.xlarge": {"x86_64", 4, 2, 16}, "c5.18xlarge": {"x86_64", 72, 36, 144},
		"r6g.4xlarge": {"arm64", 16, 16, 128}, "t4g.large": {"arm64", 2, 2, 8}, "r5.metal": {"x86_64", 96, 48, 768}, "t2.micro": {"x86_64", 1, 1, 1},
		"m6g.medium": {"arm64", 1, 1, 4},
	} {
		out, err := a.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(name)}})
		if err != nil {
			t.Fatal(err)
		}
		got := out.InstanceTypes[0]
		if *got.VCpuInfo.DefaultVCpus != want.cpus || *got.VCpuInfo.DefaultCores != want.cores || *got.MemoryInfo.SizeInMiB != int64(want.gibTimes)*1024 ||
			!slices.Equal(got.ProcessorInfo.SupportedArchitectures, []types.ArchitectureType{want.architecture}) {
			t.Errorf("%s: %d vCPUs, %d cores, %d MiB, %v; want %+v", name, *got.VCpuInfo.DefaultVCpus, *got.VCpuInfo.DefaultCores,
				*got.MemoryInfo.SizeInMiB, got.ProcessorInfo.SupportedArchitectures, want)
		}
	}
	every, err := a.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{MaxResults: aws.Int32(100)})
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range every.InstanceTypes {
		if got.VCpuInfo == nil || got.MemoryInfo == nil {
			t.Errorf("%s has no size", got.InstanceType)
		}
	}
}

func TestGravitonInstancesReportTheirArchitecture(t *testing.T) {
	spec := seeded()
	spec.Instances[0].Type = "m6g.large"
	a := start(t, spec)
	out, err := a.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{Filters: []types.Filter{filter("architecture", "arm64")}})
	if err != nil || len(out.Reservations) != 1 || out.Reservations[0].Instances[0].InstanceType != "m6g.large" {
		t.Errorf("%+v, %v; want the m6g.large", out, err)
	}
}

// A refusal of a call without resources names none and has no encoded message.
func TestRefusedDescribeNamesNoResource(t *testing.T) {
	a := start(t, seeded())
	_, err := a.as(iam.Role{Name: "unprivileged"}).DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})
	want(t, err, "UnauthorizedOperation", "You are not authorized to perform this operation. User: arn:aws:sts::111122223333:assumed-role/unprivileged/session "+
		"is not authorized to perform: ec2:DescribeVpcs because no identity-based policy allows the ec2:DescribeVpcs action")
	_, err = a.as(iam.Role{Name: "unprivileged"}).DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String("eni-00000000000000001")})
	if text := err.Error(); !strings.Contains(text, "on resource: arn:aws:ec2:us-west-2:111122223333:network-interface/eni-00000000000000001 because") ||
		!strings.Contains(text, "Encoded authorization failure message: ") {
		t.Error(text)
	}
}
