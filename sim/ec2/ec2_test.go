package ec2_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
)

func (a *account) subnet(name string) *string {
	return aws.String(string(a.cloud.State().SubnetNamed(name).ID))
}

func (a *account) instance(name string) *cloud.Instance { return a.cloud.State().InstanceNamed(name) }

func (a *account) create(t *testing.T, in *awsec2.CreateNetworkInterfaceInput) types.NetworkInterface {
	t.Helper()
	out, err := a.CreateNetworkInterface(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return *out.NetworkInterface
}

func TestErrorsQuoteTheID(t *testing.T) {
	a := start(t, seeded())
	ctx := t.Context()
	none := aws.String("eni-00000000000000000")
	_, err := a.DescribeNetworkInterfaces(ctx, &awsec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{*none}})
	want(t, err, "InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-00000000000000000' does not exist")
	_, err = a.DeleteNetworkInterface(ctx, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: none})
	want(t, err, "InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-00000000000000000' does not exist")
	_, err = a.DeleteNetworkInterface(ctx, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String("eni-xyz")})
	want(t, err, "InvalidNetworkInterfaceId.Malformed", `Invalid id: "eni-xyz" (expecting "eni-...")`)
	_, err = a.DetachNetworkInterface(ctx, &awsec2.DetachNetworkInterfaceInput{AttachmentId: aws.String("eni-attach-00000000000000000")})
	want(t, err, "InvalidAttachmentID.NotFound", "The attachment ID 'eni-attach-00000000000000000' does not exist")
	_, err = a.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Groups: []string{"sg-00000000000000000"}})
	want(t, err, "InvalidSecurityGroupID.NotFound", "The securityGroup ID 'sg-00000000000000000' does not exist")
	_, err = a.TerminateInstances(ctx, &awsec2.TerminateInstancesInput{InstanceIds: []string{"i-00000000000000000"}})
	want(t, err, "InvalidInstanceID.NotFound", "The instance ID 'i-00000000000000000' does not exist")
	_, err = a.CreateTags(ctx, &awsec2.CreateTagsInput{Resources: []string{"subnet-00000000000000000"}, Tags: []types.Tag{{Key: aws.String("k")}}})
	want(t, err, "InvalidSubnetID.NotFound", "The subnet ID 'subnet-00000000000000000' does not exist")
	primary := a.cloud.State().Primary(a.instance("node1").ID)
	_, err = a.DetachNetworkInterface(ctx, &awsec2.DetachNetworkInterfaceInput{AttachmentId: aws.String(string(primary.Attachment.ID))})
	want(t, err, "OperationNotPermitted", "The network interface at device index 0 and networkCard index 0 cannot be detached.")
}

// The calls of AWS's VPC CNI when it adds an interface to a node.
func TestVPCCNICallsAddAnInterface(t *testing.T) {
	a := start(t, seeded())
	ctx, n := t.Context(), a.instance("small")
	made := a.create(t, &awsec2.CreateNetworkInterfaceInput{
		SubnetId: a.subnet("tiny"), Description: aws.String("aws-K8S-" + string(n.ID)),
		Groups: []string{string(a.cloud.State().GroupNamed("node").ID)}, SecondaryPrivateIpAddressCount: aws.Int32(5),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{
			{Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(n.ID))},
		}}},
	})
	if made.Status != "pending" || len(made.PrivateIpAddresses) != 6 || !*made.PrivateIpAddresses[0].Primary {
		t.Fatalf("status %s, %d addresses", made.Status, len(made.PrivateIpAddresses))
	}
	attached, err := a.AttachNetworkInterface(ctx, &awsec2.AttachNetworkInterfaceInput{
		InstanceId: aws.String(string(n.ID)), NetworkInterfaceId: made.NetworkInterfaceId, DeviceIndex: aws.Int32(1), NetworkCardIndex: aws.Int32(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.ModifyNetworkInterfaceAttribute(ctx, &awsec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: made.NetworkInterfaceId,
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: attached.AttachmentId, DeleteOnTermination: aws.Bool(true)},
	}); err != nil {
		t.Fatal(err)
	}
	_, err = a.AssignPrivateIpAddresses(ctx, &awsec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: made.NetworkInterfaceId, SecondaryPrivateIpAddressCount: aws.Int32(1),
	})
	want(t, err, "PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	gone := *made.PrivateIpAddresses[3].PrivateIpAddress
	if _, err := a.UnassignPrivateIpAddresses(ctx, &awsec2.UnassignPrivateIpAddressesInput{
		NetworkInterfaceId: made.NetworkInterfaceId, PrivateIpAddresses: []string{gone},
	}); err != nil {
		t.Fatal(err)
	}
	out, err := a.DescribeNetworkInterfaces(ctx, &awsec2.DescribeNetworkInterfacesInput{Filters: []types.Filter{
		{Name: aws.String("tag:" + vpc.TagInstanceID), Values: []string{string(n.ID)}},
		{Name: aws.String("attachment.status"), Values: []string{"attached"}},
	}})
	if err != nil || len(out.NetworkInterfaces) != 1 {
		t.Fatalf("%v, %d interfaces, want one", err, len(out.NetworkInterfaces))
	}
	got := out.NetworkInterfaces[0]
	has := slices.ContainsFunc(got.PrivateIpAddresses, func(p types.NetworkInterfacePrivateIpAddress) bool { return *p.PrivateIpAddress == gone })
	if has || len(got.PrivateIpAddresses) != 5 || !*got.Attachment.DeleteOnTermination || *got.Attachment.DeviceIndex != 1 {
		t.Errorf("%+v", got)
	}
}

func TestPrefixesAndIPv6AreDelegated(t *testing.T) {
	a := start(t, seeded())
	i := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Ipv4PrefixCount: aws.Int32(1)})
	before := a.free(t, "a")
	got4, err := a.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: i.NetworkInterfaceId, Ipv4PrefixCount: aws.Int32(2)})
	if err != nil || len(got4.AssignedIpv4Prefixes) != 2 {
		t.Fatalf("%+v, %v", got4, err)
	}
	if after := a.free(t, "a"); after != before-32 {
		t.Errorf("%d addresses are free after two prefixes, were %d", after, before)
	}
	got6, err := a.AssignIpv6Addresses(t.Context(), &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: i.NetworkInterfaceId, Ipv6PrefixCount: aws.Int32(1)})
	if err != nil || len(got6.AssignedIpv6Prefixes) != 1 {
		t.Fatalf("%+v, %v", got6, err)
	}
	if p := netip.MustParsePrefix(got6.AssignedIpv6Prefixes[0]); p.Bits() != 80 {
		t.Errorf("IPv6 prefix %s, want a /80", p)
	}
	if _, err := a.UnassignIpv6Addresses(t.Context(), &awsec2.UnassignIpv6AddressesInput{NetworkInterfaceId: i.NetworkInterfaceId, Ipv6Prefixes: got6.AssignedIpv6Prefixes}); err != nil {
		t.Fatal(err)
	}
	_, err = a.AssignIpv6Addresses(t.Context(), &awsec2.AssignIpv6AddressesInput{
		NetworkInterfaceId: a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("b")}).NetworkInterfaceId, Ipv6AddressCount: aws.Int32(1),
	})
	want(t, err, "InvalidParameterValue", "")
}

func (a *account) free(t *testing.T, name string) int32 {
	t.Helper()
	out, err := a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{SubnetIds: []string{*a.subnet(name)}})
	if err != nil {
		t.Fatal(err)
	}
	return *out.Subnets[0].AvailableIpAddressCount
}

func TestClientTokenTakesEffectOnce(t *testing.T) {
	a := start(t, seeded())
	in := func() *awsec2.CreateNetworkInterfaceInput {
		return &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), ClientToken: aws.String("t-1"), SecondaryPrivateIpAddressCount: aws.Int32(2)}
	}
	first, again := a.create(t, in()), a.create(t, in())
	if *first.NetworkInterfaceId != *again.NetworkInterfaceId {
		t.Errorf("%s and %s for one token", *first.NetworkInterfaceId, *again.NetworkInterfaceId)
	}
	other := in()
	other.SecondaryPrivateIpAddressCount = aws.Int32(3)
	_, err := a.CreateNetworkInterface(t.Context(), other)
	want(t, err, "IdempotentParameterMismatch", "The request uses the same client token as a previous, but non-identical request.")
	failing := &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("tiny"), ClientToken: aws.String("t-2"), SecondaryPrivateIpAddressCount: aws.Int32(40)}
	_, err = a.CreateNetworkInterface(t.Context(), failing)
	want(t, err, "InsufficientFreeAddressesInSubnet", "")
	failing.SecondaryPrivateIpAddressCount = aws.Int32(4)
	a.create(t, failing) // a failed call does not consume the token
}

func TestDryRunChecksPermissionAndChangesNothing(t *testing.T) {
	a := start(t, seeded())
	before := a.cloud.State()
	in := &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), DryRun: aws.Bool(true)}
	_, err := a.CreateNetworkInterface(t.Context(), in)
	want(t, err, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
	_, err = a.as(iam.Role{Name: "unprivileged"}).CreateNetworkInterface(t.Context(), in)
	want(t, err, "UnauthorizedOperation", "")
	if a.cloud.State() != before {
		t.Error("a dry run changed the account")
	}
}

func TestDuplicateInstanceTypeIsDescribedOnce(t *testing.T) {
	a := start(t, seeded())
	out, err := a.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{
		InstanceTypes: []types.InstanceType{"m5.xlarge", "t3.medium", "m5.xlarge"}, MaxResults: aws.Int32(100),
	})
	if err != nil || len(out.InstanceTypes) != 2 {
		t.Errorf("%d types (%v), want two", len(out.InstanceTypes), err)
	}
}

func TestTagLimitsCountCharactersAndFiftyTags(t *testing.T) {
	a := start(t, seeded())
	tag := func(tags ...types.Tag) error {
		_, err := a.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{*a.subnet("a")}, Tags: tags})
		return err
	}
	one := func(key, value string) types.Tag { return types.Tag{Key: aws.String(key), Value: aws.String(value)} }
	if err := tag(one(strings.Repeat("ж", 128), strings.Repeat("値", 256))); err != nil {
		t.Errorf("128 and 256 characters of two and three bytes: %v", err)
	}
	want(t, tag(one(strings.Repeat("ж", 129), "")), "InvalidParameterValue", "")
	want(t, tag(one("k", strings.Repeat("値", 257))), "InvalidParameterValue", "")
	want(t, tag(one("AWS:x", "")), "InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
	many := make([]types.Tag, 50)
	for n := range many {
		many[n] = one(fmt.Sprintf("k%d", n), "")
	}
	want(t, tag(many...), "TagLimitExceeded", "You have reached the maximum number of tags (50) per resource.")
	resources := make([]string, 1001)
	for n := range resources {
		resources[n] = *a.subnet("a")
	}
	_, err := a.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: resources, Tags: many[:1]})
	want(t, err, "InvalidParameterValue", "The request names 1001 resources. It can name 1000 at most.")
}

func TestFiltersAreAndedAndTheirValuesOred(t *testing.T) {
	a := start(t, seeded())
	for _, test := range []struct {
		filters []types.Filter
		want    int
	}{
		{[]types.Filter{filter("tag:Name", "a", "b")}, 2},
		{[]types.Filter{filter("tag:Name", "a", "b"), filter("availability-zone", "us-west-2a")}, 1},
		{[]types.Filter{filter("tag-key", "kubernetes.io/role/cni")}, 1},
		{[]types.Filter{filter("tag:Name", "t?ny")}, 1},
		{[]types.Filter{filter("cidr-block", "10.0.*")}, 3},
		{[]types.Filter{filter("vpc-id", string(a.cloud.State().VPC.ID))}, 3},
		{[]types.Filter{filter("tag:name", "a")}, 0},
	} {
		out, err := a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: test.filters})
		if err != nil || len(out.Subnets) != test.want {
			t.Errorf("%s=%v: %d subnets (%v), want %d", *test.filters[0].Name, test.filters[0].Values, len(out.Subnets), err, test.want)
		}
	}
	_, err := a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: []types.Filter{filter("colour", "blue")}})
	want(t, err, "InvalidParameterValue", "The filter 'colour' is invalid")
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

func TestARevokedRuleIsGoneAndCanComeBack(t *testing.T) {
	a := start(t, seeded())
	group := string(a.cloud.State().GroupNamed("control-plane").ID)
	rule := []types.IpPermission{{
		IpProtocol: aws.String("tcp"), FromPort: aws.Int32(443), ToPort: aws.Int32(443),
		IpRanges: []types.IpRange{{CidrIp: aws.String("10.0.0.0/16")}},
	}}
	rules := func() int {
		out, err := a.DescribeSecurityGroupRules(t.Context(), &awsec2.DescribeSecurityGroupRulesInput{Filters: []types.Filter{filter("group-id", group)}})
		if err != nil {
			t.Fatal(err)
		}
		return len(out.SecurityGroupRules)
	}
	before := rules()
	if _, err := a.RevokeSecurityGroupIngress(t.Context(), &awsec2.RevokeSecurityGroupIngressInput{GroupId: &group, IpPermissions: rule}); err != nil {
		t.Fatal(err)
	}
	if rules() != before-1 {
		t.Errorf("%d rules, want %d", rules(), before-1)
	}
	out, err := a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: rule})
	if err != nil || len(out.SecurityGroupRules) != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	if _, err := a.RevokeSecurityGroupIngress(t.Context(), &awsec2.RevokeSecurityGroupIngressInput{
		GroupId: &group, SecurityGroupRuleIds: []string{*out.SecurityGroupRules[0].SecurityGroupRuleId},
	}); err != nil || rules() != before-1 {
		t.Errorf("revoke by id: %v, %d rules", err, rules())
	}
}

func TestARuleWithoutThePortsItsProtocolNeedsIsRefused(t *testing.T) {
	a := start(t, seeded())
	group := string(a.cloud.State().GroupNamed("node").ID)
	for protocol, message := range map[string]string{
		"tcp":  "Invalid value 'Must specify both from and to ports with TCP/UDP.' for portRange.",
		"17":   "Invalid value 'Must specify both from and to ports with TCP/UDP.' for portRange.",
		"icmp": "Invalid value 'Must specify both from and to ports with ICMP.' for portRange.",
		"rip":  "Invalid value 'rip' for IP protocol. Unknown protocol.",
	} {
		_, err := a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{
			GroupId: &group, IpPermissions: []types.IpPermission{{
				IpProtocol: aws.String(protocol), FromPort: aws.Int32(0), IpRanges: []types.IpRange{{CidrIp: aws.String("192.0.2.0/24")}},
			}},
		})
		want(t, err, "InvalidParameterValue", message)
	}
	for _, protocol := range []string{"icmpv6", "50", "-1"} {
		if _, err := a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{
			GroupId: &group, IpPermissions: []types.IpPermission{{
				IpProtocol: aws.String(protocol), Ipv6Ranges: []types.Ipv6Range{{CidrIpv6: aws.String("2001:db8::/32")}},
			}},
		}); err != nil {
			t.Errorf("%s needs no ports: %v", protocol, err)
		}
	}
}

func TestRouteToAnUnattachedInterfaceIsABlackhole(t *testing.T) {
	a := start(t, seeded())
	i := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	table := a.table(t)
	if _, err := a.CreateRoute(t.Context(), &awsec2.CreateRouteInput{
		RouteTableId: table.RouteTableId, DestinationCidrBlock: aws.String("10.99.0.0/16"), NetworkInterfaceId: i.NetworkInterfaceId,
	}); err != nil {
		t.Fatal(err)
	}
	if r := a.table(t).Routes; r[len(r)-1].State != types.RouteStateBlackhole {
		t.Errorf("a route to an unattached interface is %s, want a blackhole", r[len(r)-1].State)
	}
	_, err := a.DeleteRoute(t.Context(), &awsec2.DeleteRouteInput{RouteTableId: table.RouteTableId, DestinationCidrBlock: aws.String("10.98.0.0/16")})
	want(t, err, "InvalidRoute.NotFound", "no route with destination-cidr-block 10.98.0.0/16 in route table "+*table.RouteTableId)
}

func (a *account) table(t *testing.T) types.RouteTable {
	t.Helper()
	out, err := a.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{Filters: []types.Filter{filter("association.main", "true")}})
	if err != nil || len(out.RouteTables) != 1 {
		t.Fatalf("%v, %d main tables", err, len(out.RouteTables))
	}
	return out.RouteTables[0]
}

func TestEveryActionIsRefusedWithoutPermission(t *testing.T) {
	a := start(t, seeded())
	unprivileged := a.as(iam.Role{Name: "unprivileged"})
	s := a.cloud.State()
	eni, sg, rtb := string(s.Primary(a.instance("node1").ID).ID), string(s.GroupNamed("node").ID), string(cloud.Sorted(s.RouteTables)[0].ID)
	for _, action := range table(t) {
		input := inputOf(action.Name)
		// Only the fields that name existing resources are set.
		for name, value := range map[string]any{
			"NetworkInterfaceId": &eni, "InstanceId": aws.String(string(a.instance("node1").ID)), "GroupId": &sg, "RouteTableId": &rtb,
			"SubnetId": a.subnet("a"), "InstanceIds": []string{string(a.instance("node1").ID)}, "DeviceIndex": aws.Int32(1),
			"AttachmentId": aws.String(string(s.Primary(a.instance("node1").ID).Attachment.ID)),
			"Permission":   types.InterfacePermissionTypeInstanceAttach, "NetworkInterfacePermissionId": aws.String("eni-perm-00000000000000000"),
			"GroupName": aws.String("n"), "Description": aws.String("d"), "VpcId": vpcOf(a), "Attribute": types.VpcAttributeNameEnableDnsSupport,
			"AllocationId": aws.String("eipalloc-00000000000000000"), "AssociationId": aws.String("rtbassoc-00000000000000000"),
			"Cidr": aws.String("10.0.0.0/28"), "ReservationType": types.SubnetCidrReservationTypePrefix, "SubnetCidrReservationId": aws.String("scr-00000000000000000"),
			"TrunkInterfaceId": &eni, "BranchInterfaceId": &eni,
			"Resources": []string{eni}, "Tags": []types.Tag{{Key: aws.String("k")}}, "DestinationCidrBlock": aws.String("10.9.0.0/16"),
		} {
			if f := input.Elem().FieldByName(name); f.IsValid() {
				set(f, value)
			}
		}
		_, err := call(t, unprivileged, action.Name, input)
		want(t, err, "UnauthorizedOperation", "")
		on := " on resource: "
		withoutResource := strings.HasPrefix(action.Name, "Describe") && action.Name != "DescribeVpcAttribute"
		if withoutResource || strings.HasSuffix(action.Name, "sociateTrunkInterface") || action.Name == "GetSubnetCidrReservations" || action.Name == "DeleteNetworkInterfacePermission" {
			on = " because "
		}
		if !strings.Contains(err.Error(), "perform: ec2:"+action.Name+on) {
			t.Errorf("%s: %v", action.Name, err)
		}
	}
}

// AWS's managed policy for its CNI allows the calls of the CNI and no others.
func TestAWSsManagedPolicyLoadsAndIsEnforced(t *testing.T) {
	a := start(t, seeded())
	c := a.as(iam.Role{Name: "cni", Policies: map[string][]byte{"AmazonEKS_CNI_Policy": []byte(managedPolicy)}})
	i, err := c.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{
		SubnetId:          a.subnet("a"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: i.NetworkInterface.NetworkInterfaceId}); err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{*a.subnet("a")}, Tags: []types.Tag{{Key: aws.String("k")}}})
	want(t, err, "UnauthorizedOperation", "")
	_, err = c.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: []string{string(a.instance("node1").ID)}})
	want(t, err, "UnauthorizedOperation", "")
}

const managedPolicy = `{"Version": "2012-10-17", "Statement": [
	{"Sid": "AmazonEKSCNIPolicy", "Effect": "Allow", "Action": [
		"ec2:AssignPrivateIpAddresses", "ec2:AttachNetworkInterface", "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface",
		"ec2:DescribeInstances", "ec2:DescribeTags", "ec2:DescribeNetworkInterfaces", "ec2:DescribeInstanceTypes",
		"ec2:DescribeSubnets", "ec2:DetachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses"
	], "Resource": "*"},
	{"Sid": "AmazonEKSCNIPolicyENITag", "Effect": "Allow", "Action": ["ec2:CreateTags"], "Resource": ["arn:aws:ec2:*:*:network-interface/*"]}
]}`

func TestCredentialsAreVerified(t *testing.T) {
	a := start(t, seeded())
	describe := func(c *awsec2.Client) error {
		_, err := c.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})
		return err
	}
	if err := a.iam.AddRole(iam.Role{Name: "reader", Policies: map[string][]byte{"all": []byte(allowAll)}}); err != nil {
		t.Fatal(err)
	}
	good, _, err := a.iam.Issue(iam.Session{Role: "reader", Name: "s", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	old, _, err := a.iam.Issue(iam.Session{Role: "reader", Name: "s", Lifetime: -time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := describe(client(a.url, good.AccessKeyID, good.SecretAccessKey, good.Token)); err != nil {
		t.Fatalf("good credentials: %v", err)
	}
	want(t, describe(client(a.url, "AKIAUNKNOWN", "secret", "")), "AuthFailure", "AWS was not able to validate the provided access credentials")
	want(t, describe(client(a.url, good.AccessKeyID, "wrong", good.Token)), "SignatureDoesNotMatch", "")
	want(t, describe(client(a.url, good.AccessKeyID, good.SecretAccessKey, "other token")), "AuthFailure", "AWS was not able to validate the provided access credentials")
	want(t, describe(client(a.url, good.AccessKeyID, good.SecretAccessKey, "")), "AuthFailure", "AWS was not able to validate the provided access credentials")
	want(t, describe(client(a.url, old.AccessKeyID, old.SecretAccessKey, old.Token)), "RequestExpired", "Request has expired.")
	elsewhere := awsec2.New(client(a.url, good.AccessKeyID, good.SecretAccessKey, good.Token).Options(), func(o *awsec2.Options) { o.Region = "eu-west-1" })
	want(t, describe(elsewhere), "AuthFailure", "")
	resp, err := http.Post(a.url, "application/x-www-form-urlencoded", strings.NewReader("Action=DescribeVpcs&Version=2016-11-15"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("an unsigned request: %s", resp.Status)
	}
}

func TestInstanceTypesAndZonesAreDescribed(t *testing.T) {
	a := start(t, seeded())
	out, err := a.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"m5.xlarge"}})
	if err != nil {
		t.Fatal(err)
	}
	n := out.InstanceTypes[0].NetworkInfo
	if *n.MaximumNetworkInterfaces != 4 || *n.Ipv4AddressesPerInterface != 15 || out.InstanceTypes[0].Hypervisor != types.InstanceTypeHypervisorNitro {
		t.Errorf("m5.xlarge: %+v", n)
	}
	zones, err := a.DescribeAvailabilityZones(t.Context(), &awsec2.DescribeAvailabilityZonesInput{})
	if err != nil || len(zones.AvailabilityZones) != 2 || *zones.AvailabilityZones[0].ZoneId != "usw2-az1" {
		t.Errorf("%+v, %v", zones, err)
	}
	_, err = a.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"m9.huge"}})
	want(t, err, "InvalidInstanceType", "")
}
