package ec2_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// A created subnet holds interfaces and is deleted only without them.
func TestACreatedSubnetHoldsInterfaces(t *testing.T) {
	a := start(t, seeded())
	made := ok[*awsec2.CreateSubnetOutput](t)(a.CreateSubnet(t.Context(), &awsec2.CreateSubnetInput{
		VpcId: vpcOf(a), CidrBlock: aws.String("10.0.128.0/24"), Ipv6CidrBlock: aws.String("2600:1f14:abc:de80::/64"), AvailabilityZoneId: aws.String("usw2-az2"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSubnet, Tags: []types.Tag{{Key: aws.String("kubernetes.io/role/cni"), Value: aws.String("1")}}}},
	})).Subnet
	if *made.AvailabilityZone != "us-west-2b" || *made.AvailableIpAddressCount != 251 || *made.MapPublicIpOnLaunch || len(made.Ipv6CidrBlockAssociationSet) != 1 {
		t.Errorf("%+v", made)
	}
	shown := ok[*awsec2.DescribeSubnetsOutput](t)(a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: []types.Filter{filter("tag:kubernetes.io/role/cni", "1"), filter("cidr-block", "10.0.128.0/24")}}))
	if len(shown.Subnets) != 1 || *shown.Subnets[0].SubnetId != *made.SubnetId {
		t.Fatalf("%+v", shown.Subnets)
	}
	eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: made.SubnetId})
	if !strings.HasPrefix(*eni.PrivateIpAddress, "10.0.128.") {
		t.Errorf("address %s", *eni.PrivateIpAddress)
	}
	remove := func() error {
		_, err := a.DeleteSubnet(t.Context(), &awsec2.DeleteSubnetInput{SubnetId: made.SubnetId})
		return err
	}
	want(t, remove(), "DependencyViolation", "The subnet '"+*made.SubnetId+"' has dependencies and cannot be deleted.")
	if _, err := a.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: eni.NetworkInterfaceId}); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	want(t, remove(), "InvalidSubnetID.NotFound", "")
}

// The record of a terminated instance outlives its subnet.
func TestATerminatedInstanceOutlivesItsSubnet(t *testing.T) {
	a := start(t, seeded())
	id := string(a.instance("small").ID)
	if _, err := a.TerminateInstances(t.Context(), &awsec2.TerminateInstancesInput{InstanceIds: []string{id}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.DeleteSubnet(t.Context(), &awsec2.DeleteSubnetInput{SubnetId: a.subnet("tiny")}); err != nil {
		t.Fatal(err)
	}
	out := ok[*awsec2.DescribeInstancesOutput](t)(a.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{
		InstanceIds: []string{id}, Filters: []types.Filter{filter("availability-zone", "us-west-2a")},
	}))
	if len(out.Reservations) != 1 {
		t.Errorf("%d reservations, want 1", len(out.Reservations))
	}
}

func TestInvalidSubnetsAreRefused(t *testing.T) {
	a := start(t, seeded())
	for name, test := range map[string]struct {
		in         awsec2.CreateSubnetInput
		code, text string
	}{
		"outside the VPC":    {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.1.0.0/24")}, "InvalidSubnet.Range", "The CIDR '10.1.0.0/24' is invalid."},
		"too small":          {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.200.0/29")}, "InvalidSubnet.Range", ""},
		"overlapping":        {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.32.0/24")}, "InvalidSubnet.Conflict", "The CIDR '10.0.32.0/24' conflicts with another subnet"},
		"overlapping IPv6":   {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.200.0/24"), Ipv6CidrBlock: aws.String("2600:1f14:abc:de00::/64")}, "InvalidSubnet.Conflict", ""},
		"a foreign IPv6":     {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.200.0/24"), Ipv6CidrBlock: aws.String("2001:db8::/64")}, "InvalidSubnet.Range", ""},
		"no range":           {awsec2.CreateSubnetInput{}, "MissingParameter", ""},
		"only IPv6, none":    {awsec2.CreateSubnetInput{Ipv6Native: aws.Bool(true)}, "MissingParameter", ""},
		"no range at all":    {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.200/24")}, "InvalidParameterValue", ""},
		"an unknown zone":    {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.200.0/24"), AvailabilityZone: aws.String("us-west-2z")}, "InvalidParameterValue", "Value (us-west-2z) for parameter availabilityZone is invalid. Subnets can currently only be created in the following availability zones: us-west-2a, us-west-2b."},
		"an unknown VPC":     {awsec2.CreateSubnetInput{VpcId: aws.String("vpc-00000000000000000"), CidrBlock: aws.String("10.0.200.0/24")}, "InvalidVpcID.NotFound", ""},
		"zone and zone's id": {awsec2.CreateSubnetInput{CidrBlock: aws.String("10.0.200.0/24"), AvailabilityZone: aws.String("us-west-2a"), AvailabilityZoneId: aws.String("usw2-az1")}, "InvalidParameterCombination", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if test.in.VpcId == nil {
				test.in.VpcId = vpcOf(a)
			}
			_, err := a.CreateSubnet(t.Context(), &test.in)
			want(t, err, test.code, test.text)
		})
	}
}

func TestAttributesOfASubnetTakeEffect(t *testing.T) {
	a := start(t, seeded())
	modify := func(in awsec2.ModifySubnetAttributeInput) error {
		_, err := a.ModifySubnetAttribute(t.Context(), &in)
		return err
	}
	yes := &types.AttributeBooleanValue{Value: aws.Bool(true)}
	if err := modify(awsec2.ModifySubnetAttributeInput{SubnetId: a.subnet("a"), AssignIpv6AddressOnCreation: yes}); err != nil {
		t.Fatal(err)
	}
	if eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}); len(eni.Ipv6Addresses) != 1 {
		t.Errorf("a new interface has %d IPv6 addresses, want 1", len(eni.Ipv6Addresses))
	}
	if err := modify(awsec2.ModifySubnetAttributeInput{SubnetId: a.subnet("b"), MapPublicIpOnLaunch: yes}); err != nil {
		t.Fatal(err)
	}
	if n := a.cloud.State().SubnetNamed("b"); !n.Public {
		t.Errorf("%+v", n)
	}
	want(t, modify(awsec2.ModifySubnetAttributeInput{SubnetId: a.subnet("b"), AssignIpv6AddressOnCreation: yes}), "InvalidParameterValue", "")
	want(t, modify(awsec2.ModifySubnetAttributeInput{SubnetId: a.subnet("b")}), "InvalidParameterCombination", "")
	want(t, modify(awsec2.ModifySubnetAttributeInput{SubnetId: a.subnet("a"), MapPublicIpOnLaunch: yes, AssignIpv6AddressOnCreation: yes}), "InvalidParameterCombination", "")
	want(t, modify(awsec2.ModifySubnetAttributeInput{SubnetId: a.subnet("a"), EnableDns64: yes}), "UnsupportedOperation", "")
}

// tableOf returns the route table and the association that DescribeRouteTables shows for a
// subnet; without an association, the main table.
func tableOf(t *testing.T, a *account, subnet string) (table, association string) {
	t.Helper()
	out := ok[*awsec2.DescribeRouteTablesOutput](t)(a.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{}))
	for _, r := range out.RouteTables {
		for _, x := range r.Associations {
			switch {
			case aws.ToString(x.SubnetId) == subnet:
				return *r.RouteTableId, *x.RouteTableAssociationId
			case *x.Main:
				table = *r.RouteTableId
			}
		}
	}
	return table, ""
}

// A subnet has the routes of the table that it is associated with, or those of the main
// table.
func TestASubnetFollowsItsRouteTable(t *testing.T) {
	a := start(t, seeded())
	in := &awsec2.CreateRouteTableInput{VpcId: vpcOf(a), ClientToken: aws.String("once")}
	made := *ok[*awsec2.CreateRouteTableOutput](t)(a.CreateRouteTable(t.Context(), in)).RouteTable.RouteTableId
	if again := *ok[*awsec2.CreateRouteTableOutput](t)(a.CreateRouteTable(t.Context(), in)).RouteTable.RouteTableId; again != made {
		t.Errorf("the same client token made %s, want %s", again, made)
	}
	main, _ := tableOf(t, a, *a.subnet("b"))
	associate := func(table, subnet string) (*awsec2.AssociateRouteTableOutput, error) {
		return a.AssociateRouteTable(t.Context(), &awsec2.AssociateRouteTableInput{RouteTableId: &table, SubnetId: &subnet})
	}
	first := *ok[*awsec2.AssociateRouteTableOutput](t)(associate(made, *a.subnet("b"))).AssociationId
	if same := *ok[*awsec2.AssociateRouteTableOutput](t)(associate(made, *a.subnet("b"))).AssociationId; same != first {
		t.Errorf("associated again: %s, want %s", same, first)
	}
	if table, association := tableOf(t, a, *a.subnet("b")); table != made || association != first {
		t.Errorf("%s by %s, want %s by %s", table, association, made, first)
	}
	_, err := associate(main, *a.subnet("b"))
	want(t, err, "Resource.AlreadyAssociated", "the specified association for route table "+main+" conflicts with an existing association")
	remove := func(table string) error {
		_, err := a.DeleteRouteTable(t.Context(), &awsec2.DeleteRouteTableInput{RouteTableId: &table})
		return err
	}
	want(t, remove(made), "DependencyViolation", "The routeTable '"+made+"' has dependencies and cannot be deleted.")
	want(t, remove(main), "DependencyViolation", "")
	replace := func(association, table string) string {
		t.Helper()
		return *ok[*awsec2.ReplaceRouteTableAssociationOutput](t)(a.ReplaceRouteTableAssociation(t.Context(), &awsec2.ReplaceRouteTableAssociationInput{
			AssociationId: &association, RouteTableId: &table,
		})).NewAssociationId
	}
	second := replace(first, main)
	if table, association := tableOf(t, a, *a.subnet("b")); table != main || association != second || second == first {
		t.Errorf("%s by %s, want %s by %s", table, association, main, second)
	}
	disassociate := func(association string) error {
		_, err := a.DisassociateRouteTable(t.Context(), &awsec2.DisassociateRouteTableInput{AssociationId: &association})
		return err
	}
	want(t, disassociate(first), "InvalidAssociationID.NotFound", "The association ID '"+first+"' does not exist")
	if err := disassociate(second); err != nil {
		t.Fatal(err)
	}
	if err := remove(made); err != nil {
		t.Fatal(err)
	}
}

// The association of the main table moves to another one, which all subnets without an
// association follow.
func TestTheMainTableIsReplaced(t *testing.T) {
	a := start(t, seeded())
	made := *ok[*awsec2.CreateRouteTableOutput](t)(a.CreateRouteTable(t.Context(), &awsec2.CreateRouteTableInput{VpcId: vpcOf(a)})).RouteTable.RouteTableId
	mainAssociation := func() string {
		out := ok[*awsec2.DescribeRouteTablesOutput](t)(a.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{Filters: []types.Filter{filter("association.main", "true")}}))
		k := slices.IndexFunc(out.RouteTables[0].Associations, func(x types.RouteTableAssociation) bool { return *x.Main })
		return *out.RouteTables[0].Associations[k].RouteTableAssociationId
	}
	old := mainAssociation()
	before, explicit := tableOf(t, a, *a.subnet("a"))
	_, err := a.DisassociateRouteTable(t.Context(), &awsec2.DisassociateRouteTableInput{AssociationId: &old})
	want(t, err, "InvalidParameterValue", "cannot disassociate the main route table association "+old)
	out := ok[*awsec2.ReplaceRouteTableAssociationOutput](t)(a.ReplaceRouteTableAssociation(t.Context(), &awsec2.ReplaceRouteTableAssociationInput{AssociationId: &old, RouteTableId: &made}))
	if got := mainAssociation(); got != *out.NewAssociationId || got == old {
		t.Errorf("main association %s, want %s", got, *out.NewAssociationId)
	}
	if table, _ := tableOf(t, a, *a.subnet("b")); table != made || string(a.cloud.State().SubnetNamed("b").Table) != made {
		t.Errorf("subnet b has %s, want %s", table, made)
	}
	if table, association := tableOf(t, a, *a.subnet("a")); table != before || association != explicit {
		t.Errorf("subnet a has %s by %s, want %s by %s", table, association, before, explicit)
	}
}

// A secondary range is routed in every table, and subnets can be made in it.
func TestASecondaryRangeOfTheVPCTakesSubnets(t *testing.T) {
	a := start(t, seeded())
	add := func(cidr string) (*awsec2.AssociateVpcCidrBlockOutput, error) {
		return a.AssociateVpcCidrBlock(t.Context(), &awsec2.AssociateVpcCidrBlockInput{VpcId: vpcOf(a), CidrBlock: &cidr})
	}
	out := ok[*awsec2.AssociateVpcCidrBlockOutput](t)(add("100.64.0.0/16"))
	if got := out.CidrBlockAssociation; *got.CidrBlock != "100.64.0.0/16" || got.CidrBlockState.State != types.VpcCidrBlockStateCodeAssociating {
		t.Errorf("%+v", got)
	}
	v := ok[*awsec2.DescribeVpcsOutput](t)(a.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})).Vpcs[0]
	if len(v.CidrBlockAssociationSet) != 2 || *v.CidrBlockAssociationSet[1].AssociationId != *out.CidrBlockAssociation.AssociationId ||
		v.CidrBlockAssociationSet[1].CidrBlockState.State != types.VpcCidrBlockStateCodeAssociated {
		t.Errorf("%+v", v.CidrBlockAssociationSet)
	}
	tables := ok[*awsec2.DescribeRouteTablesOutput](t)(a.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{
		Filters: []types.Filter{filter("route.destination-cidr-block", "100.64.0.0/16"), filter("route.gateway-id", "local")},
	}))
	if len(tables.RouteTables) != 2 {
		t.Errorf("%d tables route the range, want 2", len(tables.RouteTables))
	}
	n := ok[*awsec2.CreateSubnetOutput](t)(a.CreateSubnet(t.Context(), &awsec2.CreateSubnetInput{VpcId: vpcOf(a), CidrBlock: aws.String("100.64.0.0/20")})).Subnet
	if eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: n.SubnetId}); !strings.HasPrefix(*eni.PrivateIpAddress, "100.64.") {
		t.Errorf("address %s", *eni.PrivateIpAddress)
	}
	for cidr, code := range map[string]string{
		"10.0.0.0/20": "CidrConflict", "192.168.0.0/16": "InvalidVpc.Range", "100.64.0.0/15": "InvalidVpc.Range", "10.1.0.0/29": "InvalidVpc.Range", "x": "InvalidParameterValue",
	} {
		_, err := add(cidr)
		want(t, err, code, "")
	}
	for k := range 3 {
		ok[*awsec2.AssociateVpcCidrBlockOutput](t)(add(fmt.Sprintf("10.%d.0.0/16", k+1)))
	}
	_, err := add("10.9.0.0/16")
	want(t, err, "CidrLimitExceeded", "This network '"+*vpcOf(a)+"' has met its maximum number of allowed CIDRs: 5")
	_, err = a.AssociateVpcCidrBlock(t.Context(), &awsec2.AssociateVpcCidrBlockInput{VpcId: vpcOf(a), AmazonProvidedIpv6CidrBlock: aws.Bool(true)})
	want(t, err, "CidrLimitExceeded", "")
	_, err = a.AssociateVpcCidrBlock(t.Context(), &awsec2.AssociateVpcCidrBlockInput{VpcId: vpcOf(a)})
	want(t, err, "MissingParameter", "")
}

// A VPC without IPv6 gets a range of Amazon's.
func TestAVPCGetsAnIPv6Range(t *testing.T) {
	spec := seeded()
	spec.VPC.CIDR6, spec.Subnets[0].CIDR6 = spec.Subnets[1].CIDR6, spec.Subnets[1].CIDR6
	a := start(t, spec)
	out := ok[*awsec2.AssociateVpcCidrBlockOutput](t)(a.AssociateVpcCidrBlock(t.Context(), &awsec2.AssociateVpcCidrBlockInput{VpcId: vpcOf(a), AmazonProvidedIpv6CidrBlock: aws.Bool(true)}))
	whole := *out.Ipv6CidrBlockAssociation.Ipv6CidrBlock
	if !strings.HasSuffix(whole, "::/56") {
		t.Fatalf("range %s", whole)
	}
	part := strings.TrimSuffix(whole, "/56") + "/64"
	if _, err := a.CreateSubnet(t.Context(), &awsec2.CreateSubnetInput{VpcId: vpcOf(a), Ipv6Native: aws.Bool(true), Ipv6CidrBlock: &part}); err != nil {
		t.Error(err)
	}
}

func TestAttributesOfAVPC(t *testing.T) {
	a := start(t, seeded())
	read := func(name types.VpcAttributeName) (*awsec2.DescribeVpcAttributeOutput, error) {
		return a.DescribeVpcAttribute(t.Context(), &awsec2.DescribeVpcAttributeInput{VpcId: vpcOf(a), Attribute: name})
	}
	for _, name := range types.VpcAttributeName("").Values() {
		out := ok[*awsec2.DescribeVpcAttributeOutput](t)(read(name))
		shown := 0
		for _, v := range []*types.AttributeBooleanValue{out.EnableDnsHostnames, out.EnableDnsSupport, out.EnableNetworkAddressUsageMetrics} {
			if v != nil {
				shown++
			}
		}
		if shown != 1 {
			t.Errorf("%s: %+v, want one attribute", name, out)
		}
	}
	_, err := read("enableRubbish")
	want(t, err, "InvalidParameterValue", "")
}

// EC2 chooses no address of a reservation: only those of one for prefixes, as prefixes.
func TestReservedAddressesAreNotChosen(t *testing.T) {
	a := start(t, seeded())
	reserve := func(subnet *string, cidr string, kind types.SubnetCidrReservationType) (*awsec2.CreateSubnetCidrReservationOutput, error) {
		return a.CreateSubnetCidrReservation(t.Context(), &awsec2.CreateSubnetCidrReservationInput{SubnetId: subnet, Cidr: &cidr, ReservationType: kind})
	}
	// "tiny" is 10.0.64.0/27: its upper half is reserved, of its lower half 11 addresses
	// are usable and one is an instance's or not.
	made := ok[*awsec2.CreateSubnetCidrReservationOutput](t)(reserve(a.subnet("tiny"), "10.0.64.16/28", types.SubnetCidrReservationTypeExplicit)).SubnetCidrReservation
	_, err := reserve(a.subnet("tiny"), "10.0.64.24/29", types.SubnetCidrReservationTypeExplicit)
	want(t, err, "InvalidParameterValue", "Reservation CIDR 10.0.64.24/29 has overlap with existing reserved CIDR block")
	_, err = reserve(a.subnet("tiny"), "10.0.65.0/28", types.SubnetCidrReservationTypeExplicit)
	want(t, err, "InvalidParameterValue", "")
	_, err = reserve(a.subnet("tiny"), "10.0.64.0/28", "none")
	want(t, err, "InvalidParameterValue", "")
	for {
		out, err := a.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("tiny")})
		if isCode(err, "InsufficientFreeAddressesInSubnet") {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var last int
		if _, err := fmt.Sscanf(*out.NetworkInterface.PrivateIpAddress, "10.0.64.%d", &last); err != nil || last >= 16 {
			t.Fatalf("EC2 chose %s", *out.NetworkInterface.PrivateIpAddress)
		}
	}
	if free := a.free(t, "tiny"); free < 14 {
		t.Errorf("%d addresses are free, want the reserved ones", free)
	}
	named := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("tiny"), PrivateIpAddress: aws.String("10.0.64.20")})
	if *named.PrivateIpAddress != "10.0.64.20" {
		t.Errorf("address %s", *named.PrivateIpAddress)
	}
	if _, err := a.DeleteSubnetCidrReservation(t.Context(), &awsec2.DeleteSubnetCidrReservationInput{SubnetCidrReservationId: made.SubnetCidrReservationId}); err != nil {
		t.Fatal(err)
	}
	_, err = a.DeleteSubnetCidrReservation(t.Context(), &awsec2.DeleteSubnetCidrReservationInput{SubnetCidrReservationId: made.SubnetCidrReservationId})
	want(t, err, "InvalidSubnetCidrReservationID.NotFound", "")
	a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("tiny")})
}

func TestPrefixesAreChosenFromTheirReservation(t *testing.T) {
	a := start(t, seeded())
	reserve := func(cidr string) {
		ok[*awsec2.CreateSubnetCidrReservationOutput](t)(a.CreateSubnetCidrReservation(t.Context(), &awsec2.CreateSubnetCidrReservationInput{
			SubnetId: a.subnet("a"), Cidr: &cidr, ReservationType: types.SubnetCidrReservationTypePrefix,
			TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSubnetCidrReservation, Tags: []types.Tag{{Key: aws.String("cidr"), Value: &cidr}}}},
		}))
	}
	reserve("10.0.20.0/27")
	reserve("2600:1f14:abc:de00:7::/80")
	eni := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Ipv4PrefixCount: aws.Int32(2), Ipv6PrefixCount: aws.Int32(1)})
	for _, p := range eni.Ipv4Prefixes {
		if *p.Ipv4Prefix != "10.0.20.0/28" && *p.Ipv4Prefix != "10.0.20.16/28" {
			t.Errorf("prefix %s, want one of the reservation", *p.Ipv4Prefix)
		}
	}
	if got := *eni.Ipv6Prefixes[0].Ipv6Prefix; got != "2600:1f14:abc:de00:7::/80" {
		t.Errorf("IPv6 prefix %s, want the reserved one", got)
	}
	more := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Ipv4PrefixCount: aws.Int32(1)})
	if got := *more.Ipv4Prefixes[0].Ipv4Prefix; got == "10.0.20.0/28" || got == "10.0.20.16/28" {
		t.Errorf("prefix %s is delegated twice", got)
	}
	out := ok[*awsec2.GetSubnetCidrReservationsOutput](t)(a.GetSubnetCidrReservations(t.Context(), &awsec2.GetSubnetCidrReservationsInput{
		SubnetId: a.subnet("a"), Filters: []types.Filter{filter("tag:cidr", "2600*", "10.0.20.0/27"), filter("reservationType", "prefix")},
	}))
	if len(out.SubnetIpv4CidrReservations) != 1 || len(out.SubnetIpv6CidrReservations) != 1 {
		t.Errorf("%+v", out)
	}
	_, err := a.GetSubnetCidrReservations(t.Context(), &awsec2.GetSubnetCidrReservationsInput{SubnetId: aws.String("subnet-00000000000000000")})
	want(t, err, "InvalidSubnetID.NotFound", "")
}
