package ec2_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/sim/iam"
)

// A missing resource has no tags, so a grant with a tag condition refuses it; only a
// caller that may access all resources of the kind gets NotFound.
func TestMissingResourceIsReportedOnlyToCallersWithAccessToAll(t *testing.T) {
	a := start(t, seeded())
	node := a.asNode("node1", document(t, "node-policy"))
	unprivileged := a.as(iam.Role{Name: "unprivileged", Policies: map[string][]byte{"p": []byte(
		`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}}`)}})
	const eni, group, instance, subnet = "eni-00000000000000001", "sg-00000000000000001", "i-00000000000000001", "subnet-00000000000000001"
	there := string(a.cloud.State().Primary(a.instance("node1").ID).ID)
	for _, c := range []struct {
		what                    string
		do                      func(*awsec2.Client) error
		any, node, unprivileged string // error codes by caller
	}{
		{"delete an interface", func(c *awsec2.Client) error {
			_, err := c.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(eni)})
			return err
		}, "InvalidNetworkInterfaceID.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"assign to an interface", func(c *awsec2.Client) error {
			_, err := c.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: aws.String(eni), SecondaryPrivateIpAddressCount: aws.Int32(1)})
			return err
		}, "InvalidNetworkInterfaceID.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"set an interface's groups", func(c *awsec2.Client) error {
			_, err := c.ModifyNetworkInterfaceAttribute(t.Context(), &awsec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: aws.String(there), Groups: []string{group}})
			return err
		}, "InvalidGroup.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"terminate an instance", func(c *awsec2.Client) error {
			_, err := c.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: []string{instance}})
			return err
		}, "InvalidInstanceID.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"create in a subnet", func(c *awsec2.Client) error {
			_, err := c.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(subnet)})
			return err
		}, "InvalidSubnetID.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"tag an interface", func(c *awsec2.Client) error {
			_, err := c.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{eni}, Tags: []types.Tag{{Key: aws.String("a")}}})
			return err
		}, "InvalidNetworkInterfaceID.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"route in a table", func(c *awsec2.Client) error {
			_, err := c.DeleteRoute(t.Context(), &awsec2.DeleteRouteInput{RouteTableId: aws.String("rtb-00000000000000001"), DestinationCidrBlock: aws.String("192.0.2.0/24")})
			return err
		}, "InvalidRouteTableID.NotFound", "UnauthorizedOperation", "UnauthorizedOperation"},
		{"name a malformed id", func(c *awsec2.Client) error {
			_, err := c.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String("eni-x")})
			return err
		}, "InvalidNetworkInterfaceId.Malformed", "InvalidNetworkInterfaceId.Malformed", "InvalidNetworkInterfaceId.Malformed"},
	} {
		for _, who := range []struct {
			name   string
			client *awsec2.Client
			code   string
		}{{"an administrator", a.Client, c.any}, {"a node", node, c.node}, {"an unprivileged role", unprivileged, c.unprivileged}} {
			if err := c.do(who.client); !isCode(err, who.code) {
				t.Errorf("%s as %s: %v, want %s", c.what, who.name, err, who.code)
			}
		}
	}
}

func TestTimeoutsOutOfBoundsAndUnknownZonesAreRefused(t *testing.T) {
	a := start(t, seeded())
	track := func(tcp, stream, udp *int32) error {
		_, err := a.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{
			SubnetId: a.subnet("a"), ConnectionTrackingSpecification: &types.ConnectionTrackingSpecificationRequest{
				TcpEstablishedTimeout: tcp, UdpStreamTimeout: stream, UdpTimeout: udp,
			},
		})
		return err
	}
	if err := track(aws.Int32(432000), aws.Int32(60), nil); err != nil {
		t.Errorf("timeouts within their bounds: %v", err)
	}
	want(t, track(aws.Int32(59), nil, nil), "InvalidParameterValue",
		"Value (59) for parameter tcpEstablishedTimeout is invalid. It must be between 60 and 432000.")
	want(t, track(nil, aws.Int32(181), nil), "InvalidParameterValue",
		"Value (181) for parameter udpStreamTimeout is invalid. It must be between 60 and 180.")
	want(t, track(nil, nil, aws.Int32(0)), "InvalidParameterValue",
		"Value (0) for parameter udpTimeout is invalid. It must be between 30 and 60.")
	_, err := a.DescribeAvailabilityZones(t.Context(), &awsec2.DescribeAvailabilityZonesInput{ZoneIds: []string{"usw2-az9"}})
	want(t, err, "InvalidParameterValue", "Invalid availability zone-id: [usw2-az9]")
}

func TestRuleDescriptionCharactersAreRestricted(t *testing.T) {
	a := start(t, seeded())
	group := string(a.cloud.State().GroupNamed("node").ID)
	port := int32(1000)
	authorize := func(p types.IpPermission) error {
		port++
		p.IpProtocol, p.FromPort, p.ToPort = aws.String("tcp"), &port, &port
		_, err := a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: []types.IpPermission{p}})
		return err
	}
	const refusal = "Invalid rule description. Valid descriptions are strings less than 256 characters from the following set:  a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*"
	for text, good := range map[string]bool{
		"API, from (all) nodes: 443/tcp #1 @x [y] a+b=c&d;{e}!$*": true, "": true, strings.Repeat("x", 255): true,
		"nodes -> API": false, "größer": false, "two\nlines": false, strings.Repeat("x", 256): false,
	} {
		for _, p := range []types.IpPermission{
			{IpRanges: []types.IpRange{{CidrIp: aws.String("192.0.2.0/24"), Description: aws.String(text)}}},
			{Ipv6Ranges: []types.Ipv6Range{{CidrIpv6: aws.String("2001:db8::/32"), Description: aws.String(text)}}},
			{UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: &group, Description: aws.String(text)}}},
		} {
			err := authorize(p)
			if good && err != nil {
				t.Errorf("%q: %v", text, err)
			}
			if !good {
				want(t, err, "InvalidParameterValue", refusal)
			}
		}
	}
}

func TestTagsOfANewInterfaceMatchItsTypeWithoutDuplicates(t *testing.T) {
	a := start(t, seeded())
	create := func(kind types.ResourceType, keys ...string) (*awsec2.CreateNetworkInterfaceOutput, error) {
		spec := types.TagSpecification{ResourceType: kind}
		for _, k := range keys {
			spec.Tags = append(spec.Tags, types.Tag{Key: aws.String(k), Value: aws.String("v")})
		}
		return a.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), TagSpecifications: []types.TagSpecification{spec}})
	}
	_, err := create(types.ResourceTypeSubnet, "a")
	want(t, err, "InvalidParameterValue", "'subnet' is not a valid taggable resource type for this operation.")
	_, err = create(types.ResourceTypeNetworkInterface, "a", "b", "a")
	want(t, err, "InvalidParameterValue", "Duplicate tag key 'a' specified.")
	out, err := create(types.ResourceTypeNetworkInterface, "a", "b")
	if err != nil || len(out.NetworkInterface.TagSet) != 2 || aws.ToString(out.NetworkInterface.RequesterId) == "" {
		t.Errorf("created %+v, %v; want two tags and a requester id", out, err)
	}
}

func TestZonesAreSelectedByNameAndByID(t *testing.T) {
	a := start(t, seeded())
	all, err := a.DescribeAvailabilityZones(t.Context(), &awsec2.DescribeAvailabilityZonesInput{})
	if err != nil || len(all.AvailabilityZones) < 2 {
		t.Fatalf("%+v, %v: want several zones", all, err)
	}
	last := all.AvailabilityZones[len(all.AvailabilityZones)-1]
	for _, in := range []*awsec2.DescribeAvailabilityZonesInput{
		{ZoneIds: []string{*last.ZoneId}},
		{ZoneNames: []string{*last.ZoneName}},
		{Filters: []types.Filter{{Name: aws.String("zone-id"), Values: []string{*last.ZoneId}}}},
	} {
		got, err := a.DescribeAvailabilityZones(t.Context(), in)
		if err != nil || len(got.AvailabilityZones) != 1 || *got.AvailabilityZones[0].ZoneName != *last.ZoneName {
			t.Errorf("%+v, %v; want %s alone", got, err, *last.ZoneName)
		}
	}
}
