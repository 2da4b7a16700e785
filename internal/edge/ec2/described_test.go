package ec2_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

func TestTheGroupsOfInterfacesAreReadByOneCall(t *testing.T) {
	a := &answering{interfaces: []types.NetworkInterface{
		memberOf("eni-1", "10.0.0.1", "sg-2", "sg-1"), memberOf("eni-2", "10.0.0.2"), memberOf("eni-3", "10.0.0.3", "sg-3"),
	}}
	got, err := trunksOn(t, a).GroupsOf(t.Context(), []vpc.ENIID{"eni-1", "eni-9", "eni-2"})
	want := map[vpc.ENIID][]vpc.SecurityGroupID{"eni-1": {"sg-2", "sg-1"}, "eni-2": nil} // eni-9 does not exist
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]string{"DescribeNetworkInterfaces {Filters:[{Name:network-interface-id,Values:[eni-1,eni-9,eni-2]}],MaxResults:1000}"}, a.asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	a.refused = map[string]error{"DescribeNetworkInterfaces": refusing("UnauthorizedOperation")}
	if got, err := trunksOn(t, a).GroupsOf(t.Context(), []vpc.ENIID{"eni-1"}); len(got) != 0 || !ec2.IsUnpermitted(err) {
		t.Errorf("refused: %v, %v", got, err)
	}
}

func TestSubnetsAreAskedForByTheirVPCTheirZoneAndTheirIDs(t *testing.T) {
	for want, read := range map[string]func(ec2.Trunks) ([]ec2.Subnet, error){
		"{Filters:[{Name:vpc-id,Values:[vpc-1]},{Name:availability-zone,Values:[zone-a]}]}": func(x ec2.Trunks) ([]ec2.Subnet, error) { return x.Subnets(t.Context(), "vpc-1", "zone-a") },
		"{Filters:[{Name:vpc-id,Values:[vpc-1]}]}":                                          func(x ec2.Trunks) ([]ec2.Subnet, error) { return x.SubnetsOf(t.Context(), "vpc-1") },
		"{Filters:[{Name:subnet-id,Values:[subnet-1,subnet-2]}]}":                           func(x ec2.Trunks) ([]ec2.Subnet, error) { return x.SubnetsByID(t.Context(), "subnet-1", "subnet-2") },
	} {
		a := &answering{subnets: []types.Subnet{{SubnetId: aws.String("subnet-1")}}}
		found, err := read(trunksOn(t, a))
		if asked := a.requests("DescribeSubnets"); err != nil || len(found) != 1 || found[0].ID != "subnet-1" || len(asked) != 1 || asked[0] != want {
			t.Errorf("%v, %v by %q, want %s", found, err, asked, want)
		}
		a.refused = map[string]error{"DescribeSubnets": refusing("UnauthorizedOperation")}
		if found, err := read(trunksOn(t, a)); found != nil || !ec2.IsUnpermitted(err) {
			t.Errorf("refused: %v, %v", found, err)
		}
	}
}

func TestWhatASubnetCanBeUsedFor(t *testing.T) {
	six := func(ranges ...string) (list []types.SubnetIpv6CidrBlockAssociation) {
		for _, r := range ranges {
			list = append(list, types.SubnetIpv6CidrBlockAssociation{Ipv6CidrBlock: aws.String(r)})
		}
		return list
	}
	four := netip.MustParsePrefix("10.0.0.0/24")
	for name, c := range map[string]struct {
		shown    types.Subnet
		cidr     netip.Prefix
		ipv6     string // empty: none
		unusable string // a part of the reason; empty: usable
	}{
		"a range of IPv4":           {types.Subnet{CidrBlock: aws.String("10.0.0.0/24")}, four, "", ""},
		"it is available":           {types.Subnet{CidrBlock: aws.String("10.0.0.0/24"), State: types.SubnetStateAvailable}, four, "", ""},
		"it is pending":             {types.Subnet{CidrBlock: aws.String("10.0.0.0/24"), State: types.SubnetStatePending}, four, "", `its state is "pending"`},
		"both families":             {types.Subnet{CidrBlock: aws.String("10.0.0.0/24"), Ipv6CidrBlockAssociationSet: six("2001:db8::5/64", "2001:db8:1::/64")}, four, "2001:db8::/64", ""},
		"the first range is odd":    {types.Subnet{CidrBlock: aws.String("10.0.0.0/24"), Ipv6CidrBlockAssociationSet: six("odd", "2001:db8:1::/64")}, four, "2001:db8:1::/64", ""},
		"IPv6 only":                 {types.Subnet{Ipv6CidrBlockAssociationSet: six("2001:db8::/64")}, netip.Prefix{}, "2001:db8::/64", "it has no IPv4 range: it is IPv6-only"},
		"an empty range of IPv4":    {types.Subnet{CidrBlock: aws.String("")}, netip.Prefix{}, "", "its IPv4 range cannot be read"},
		"an odd range of IPv4":      {types.Subnet{CidrBlock: aws.String("10.0.0.0")}, netip.Prefix{}, "", "its IPv4 range cannot be read"},
		"an odd range, and pending": {types.Subnet{CidrBlock: aws.String("10.0.0.0"), State: types.SubnetStatePending}, netip.Prefix{}, "", "its IPv4 range cannot be read"},
	} {
		c.shown.SubnetId = aws.String("subnet-1")
		found, err := trunksOn(t, &answering{subnets: []types.Subnet{c.shown}}).SubnetsOf(t.Context(), "vpc-1")
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", name, found, err)
		}
		got := found[0]
		want := netip.Prefix{}
		if c.ipv6 != "" {
			want = netip.MustParsePrefix(c.ipv6)
		}
		if got.CIDR != c.cidr || got.IPv6 != want || (got.Unusable == "") != (c.unusable == "") || !strings.HasPrefix(got.Unusable, c.unusable) {
			t.Errorf("%s: %+v, want %s, %s, %q", name, got, c.cidr, want, c.unusable)
		}
	}
	unnamed, err := trunksOn(t, &answering{subnets: []types.Subnet{{CidrBlock: aws.String("10.0.0.0")}}}).SubnetsOf(t.Context(), "vpc-1")
	if err != nil || len(unnamed) != 1 || unnamed[0].Unusable != "EC2 described it without an id" {
		t.Errorf("without an id: %+v, %v", unnamed, err)
	}
}

func TestWhatCannotBeReadOfAnInterfaceIsNamedAndLeftOut(t *testing.T) {
	a := &answering{interfaces: []types.NetworkInterface{described("eni-1", 1, func(n *types.NetworkInterface) {
		n.PrivateIpAddresses = append(n.PrivateIpAddresses,
			types.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String("odd")}, types.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String("10.0.0.6")})
		n.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{Ipv6Address: aws.String("odd")}, {Ipv6Address: aws.String("2001:db8::1")}}
		n.Ipv4Prefixes = []types.Ipv4PrefixSpecification{{Ipv4Prefix: aws.String("odd")}, {Ipv4Prefix: aws.String("10.0.0.17/28")}}
		n.Ipv6Prefixes = []types.Ipv6PrefixSpecification{{Ipv6Prefix: aws.String("odd")}, {Ipv6Prefix: aws.String("2001:db8:0:0:1::/80")}}
	})}}
	i, err := trunksOn(t, a).Interface(t.Context(), "eni-1")
	if err != nil || len(i.Unreadable) != 4 || i.Primary != netip.MustParseAddr("10.0.0.5") {
		t.Errorf("%+v, %v; want that four objects cannot be read", i, err)
	}
	if !slices.Equal(i.Addresses, []netip.Addr{netip.MustParseAddr("10.0.0.6")}) || !slices.Equal(i.IPv6, []netip.Addr{netip.MustParseAddr("2001:db8::1")}) {
		t.Errorf("addresses %v and %v", i.Addresses, i.IPv6)
	}
	if !slices.Equal(i.Prefixes, ranges("10.0.0.16/28", "2001:db8:0:0:1::/80")) {
		t.Errorf("prefixes %v", i.Prefixes)
	}
}

// Only what EC2 names is the manager: EC2 refuses changes of an interface that a service manages.
func TestTheManagerOfAnInterfaceIsTheServiceThatEC2Names(t *testing.T) {
	for want, change := range map[string]func(*types.NetworkInterface){
		"": func(n *types.NetworkInterface) { n.RequesterId = aws.String("AROA:i-1") },
		"amazon-elb": func(n *types.NetworkInterface) {
			n.RequesterManaged, n.RequesterId = aws.Bool(true), aws.String("amazon-elb")
		},
		"eks.amazonaws.com": func(n *types.NetworkInterface) {
			n.Operator = &types.OperatorResponse{Managed: aws.Bool(true), Principal: aws.String("eks.amazonaws.com")}
			n.RequesterManaged, n.RequesterId = aws.Bool(true), aws.String("amazon-elb")
		},
		"an AWS service": func(n *types.NetworkInterface) { n.Operator = &types.OperatorResponse{Managed: aws.Bool(true)} },
		"amazon-nat": func(n *types.NetworkInterface) {
			n.Operator = &types.OperatorResponse{Managed: aws.Bool(false), Principal: aws.String("eks.amazonaws.com")}
			n.RequesterManaged, n.RequesterId = aws.Bool(true), aws.String("amazon-nat")
		},
	} {
		a := &answering{interfaces: []types.NetworkInterface{described("eni-1", 1, change)}}
		if i, err := trunksOn(t, a).Interface(t.Context(), "eni-1"); err != nil || i.Manager != want {
			t.Errorf("manager %q, %v; want %q", i.Manager, err, want)
		}
		if diff := cmp.Diff([]string{"DescribeNetworkInterfaces {NetworkInterfaceIds:[eni-1]}"}, a.asked); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	}
}
