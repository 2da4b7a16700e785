package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// branchOf is a branch that the controller made, with changes.
func branchOf(id string, change func(*types.NetworkInterface)) types.NetworkInterface {
	return described(id, 0, func(n *types.NetworkInterface) {
		n.InterfaceType, n.Attachment = types.NetworkInterfaceTypeBranch, nil
		n.Groups = []types.GroupIdentifier{{GroupId: aws.String("sg-2")}, {GroupId: aws.String("sg-1")}}
		n.TagSet = append(n.TagSet, types.Tag{Key: aws.String(vpc.TagManagedBy), Value: aws.String(vpc.ManagedByController)}, types.Tag{Key: aws.String(vpc.TagIntent), Value: aws.String("act-1")})
		change(n)
	})
}

// trunkOf is a trunk that is attached to i-1, with changes.
func trunkOf(id string, device int32, change func(*types.NetworkInterface)) types.NetworkInterface {
	return described(id, device, func(n *types.NetworkInterface) {
		n.InterfaceType = types.NetworkInterfaceType("trunk")
		change(n)
	})
}

func association(branch, carrier string, vlan int32) types.TrunkInterfaceAssociation {
	return types.TrunkInterfaceAssociation{
		AssociationId: aws.String("assoc-of-" + branch), BranchInterfaceId: aws.String(branch), TrunkInterfaceId: aws.String(carrier), VlanId: aws.Int32(vlan),
	}
}

// listing are the associations that EC2 shows.
func listing(t *testing.T, x ec2.Trunks) ec2.Associations {
	t.Helper()
	of, err := x.Associations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return of
}

func TestWhatIsSeenOfTrunksAndBranches(t *testing.T) {
	same := func(*types.NetworkInterface) {}
	branch := trunk.Seen{
		ENI: "eni-1", Type: vpc.TypeBranch, Intent: "act-1", Subnet: "subnet-1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, IPv4: netip.MustParseAddr("10.0.0.5"),
		Groups: trunk.NewGroups("sg-1", "sg-2"), Association: "assoc-of-eni-1", VLAN: 7,
	}
	carrier := trunk.Seen{ENI: "eni-t", Type: vpc.TypeTrunk, Subnet: "subnet-1", MAC: branch.MAC, IPv4: branch.IPv4, Device: 3}
	as := func(is trunk.Seen, change func(*trunk.Seen)) trunk.Seen {
		change(&is)
		return is
	}
	for name, c := range map[string]struct {
		n    types.NetworkInterface
		want trunk.Seen
	}{
		"a branch": {branchOf("eni-1", same), branch},
		"a branch with two addresses of IPv6": {
			branchOf("eni-1", func(n *types.NetworkInterface) {
				n.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{Ipv6Address: aws.String("2001:db8::1")}, {Ipv6Address: aws.String("2001:db8::2")}}
			}),
			as(branch, func(s *trunk.Seen) { s.IPv6 = netip.MustParseAddr("2001:db8::1") }),
		},
		"a branch that has an attachment": {
			branchOf("eni-1", func(n *types.NetworkInterface) { n.Attachment = described("", 4, same).Attachment }), branch,
		},
		"a branch of AWS's controller": {
			branchOf("eni-1", func(n *types.NetworkInterface) { n.TagSet[2].Value = aws.String("eks") }), as(branch, func(s *trunk.Seen) { s.Intent = "" }),
		},
		"a branch without an association": {
			branchOf("eni-2", same), as(branch, func(s *trunk.Seen) { s.ENI, s.Association, s.VLAN = "eni-2", "", 0 }),
		},
		"a trunk": {trunkOf("eni-t", 3, same), carrier},
		"a trunk that is attaching": {
			trunkOf("eni-t", 3, func(n *types.NetworkInterface) { n.Attachment.Status = types.AttachmentStatusAttaching }), carrier,
		},
		"a trunk that is detaching": {
			trunkOf("eni-t", 3, func(n *types.NetworkInterface) { n.Attachment.Status = types.AttachmentStatusDetaching }), as(carrier, func(s *trunk.Seen) { s.Device = 0 }),
		},
		"a trunk of another instance": {
			trunkOf("eni-t", 3, func(n *types.NetworkInterface) { n.Attachment.InstanceId = aws.String("i-2") }), as(carrier, func(s *trunk.Seen) { s.Device = 0 }),
		},
		"a trunk that is not attached": {
			trunkOf("eni-t", 3, func(n *types.NetworkInterface) { n.Attachment = nil }), as(carrier, func(s *trunk.Seen) { s.Device = 0 }),
		},
		"an interface that is not a branch yet": {
			described("eni-1", 3, same), as(branch, func(s *trunk.Seen) { s.Type, s.Intent, s.Groups = vpc.TypeInterface, "", nil }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := &answering{interfaces: []types.NetworkInterface{c.n}, associations: []types.TrunkInterfaceAssociation{association("eni-1", "eni-t", 7), association("eni-9", "eni-t", 9)}}
			x := trunksOn(t, a)
			o, skipped, err := x.Branches(t.Context(), "i-1", listing(t, x))
			if err != nil || len(skipped) != 0 || !o.Complete {
				t.Fatalf("%+v, skipped %v, %v", o, skipped, err)
			}
			if diff := cmp.Diff([]trunk.Seen{c.want}, o.Interfaces, sameAddresses()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestBranchesAreAskedForByTheirTagsAndThenByTheirIDs(t *testing.T) {
	a := &answering{interfaces: []types.NetworkInterface{branchOf("eni-1", func(*types.NetworkInterface) {}), branchOf("eni-2", func(*types.NetworkInterface) {})}}
	x := trunksOn(t, a)
	of := listing(t, x)
	const tags = "DescribeNetworkInterfaces {Filters:[{Name:tag:" + vpc.TagInstanceID + ",Values:[i-1]},{Name:tag:" + vpc.TagOwner + ",Values:[" + vpc.OwnerResourceController + "]}],MaxResults:1000}"
	for _, c := range []struct {
		known []vpc.ENIID
		more  []string
	}{
		{nil, nil},
		{[]vpc.ENIID{"eni-2", "eni-1", ""}, nil},
		{[]vpc.ENIID{"eni-8", "eni-2", "", "eni-9"}, []string{"DescribeNetworkInterfaces {Filters:[{Name:network-interface-id,Values:[eni-8,eni-9]}],MaxResults:1000}"}},
	} {
		a.asked = nil
		o, _, err := x.Branches(t.Context(), "i-1", of, c.known...)
		if diff := cmp.Diff(append([]string{tags}, c.more...), a.asked); diff != "" || err != nil || len(o.Interfaces) != 2 {
			t.Errorf("known %v: %d interfaces, %v; requests (-want +got):\n%s", c.known, len(o.Interfaces), err, diff)
		}
	}
}

// untagging shows by tags only one of the interfaces: the others have lost theirs.
type untagging struct {
	*answering
	tagged string
}

func (u untagging) DescribeNetworkInterfaces(ctx context.Context, in *sdk.DescribeNetworkInterfacesInput, more ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	if _, byTags := valuesOf(in.Filters, "network-interface-id"); byTags {
		in.Filters = append(in.Filters, types.Filter{Name: aws.String("network-interface-id"), Values: []string{u.tagged}})
	}
	return u.answering.DescribeNetworkInterfaces(ctx, in, more...)
}

func TestABranchThatHasLostItsTagsIsSeen(t *testing.T) {
	a := &answering{interfaces: []types.NetworkInterface{branchOf("eni-1", func(*types.NetworkInterface) {}), branchOf("eni-2", func(n *types.NetworkInterface) { n.TagSet = nil })}}
	x := trunksOn(t, untagging{a, "eni-1"})
	of := listing(t, x)
	for name, known := range map[string][]vpc.ENIID{"eni-1 eni-2": {"eni-1", "eni-2"}, "eni-1": {"eni-1", "eni-3"}} {
		o, _, err := x.Branches(t.Context(), "i-1", of, known...)
		var got []string
		for _, i := range o.Interfaces {
			got = append(got, string(i.ENI))
		}
		if strings.Join(got, " ") != name || err != nil || !o.Complete {
			t.Errorf("known %v: %v, %v, complete %v", known, got, err, o.Complete)
		}
	}
	// The association of a branch without tags is as necessary as that of another.
	if _, _, err := trunksOn(t, untagging{a, ""}).Branches(t.Context(), "i-1", ec2.Associations{}, "eni-2"); !errors.Is(err, ec2.ErrUnlisted) {
		t.Errorf("a branch without tags, and no listing: %v", err)
	}
}

// An observation is as old as what it was made of.
func TestBranchesNeedAListingOfAssociationsAndHaveItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := func(*types.NetworkInterface) {}
		mixed := &answering{interfaces: []types.NetworkInterface{trunkOf("eni-t", 1, same), branchOf("eni-1", same)}}
		alone := &answering{interfaces: mixed.interfaces[:1]}
		of := listing(t, trunksOn(t, mixed))
		time.Sleep(time.Minute)
		for name, c := range map[string]struct {
			a   *answering
			of  ec2.Associations
			at  time.Time
			err error
		}{
			"a branch, and a listing":       {mixed, of, of.At, nil},
			"a branch, and no listing":      {mixed, ec2.Associations{}, time.Now(), ec2.ErrUnlisted},
			"a trunk alone":                 {alone, ec2.Associations{}, time.Now(), nil},
			"a trunk alone, with a listing": {alone, of, time.Now(), nil},
			"nothing":                       {&answering{}, ec2.Associations{}, time.Now(), nil},
		} {
			o, _, err := trunksOn(t, c.a).Branches(t.Context(), "i-1", c.of)
			if !errors.Is(err, c.err) || !o.At.Equal(c.at) || o.Complete != (c.err == nil) || err == nil && len(o.Interfaces) != len(c.a.interfaces) {
				t.Errorf("%s: at %s, complete %v, %d interfaces, %v; want %s, %v", name, o.At, o.Complete, len(o.Interfaces), err, c.at, c.err)
			}
			if err != nil && err.Error() != "branches of i-1: "+ec2.ErrUnlisted.Error() {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// What is skipped exists: the observation does not show that anything is absent.
func TestAnInterfaceThatIsNoTrunkAndNoBranchIsSkipped(t *testing.T) {
	same := func(*types.NetworkInterface) {}
	for name, c := range map[string]struct {
		n    types.NetworkInterface
		want ec2.Skipped
	}{
		"without an id":    {branchOf("", same), ec2.Skipped{Object: "interface ", Why: `its type is "branch"`}},
		"without a MAC":    {branchOf("eni-2", func(n *types.NetworkInterface) { n.MacAddress = aws.String("odd") }), ec2.Skipped{Object: "interface eni-2", Why: "cannot be read: [MAC: "}},
		"of another type":  {described("eni-2", 1, func(n *types.NetworkInterface) { n.InterfaceType = "efa" }), ec2.Skipped{Object: "interface eni-2", Why: `its type is "efa"`}},
		"with an odd IPv6": {branchOf("eni-2", func(n *types.NetworkInterface) { n.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{}} }), ec2.Skipped{Object: "interface eni-2", Why: "cannot be read: [IPv6 address: "}},
	} {
		a := &answering{interfaces: []types.NetworkInterface{branchOf("eni-1", same), c.n, trunkOf("eni-t", 1, same)}}
		x := trunksOn(t, a)
		o, skipped, err := x.Branches(t.Context(), "i-1", listing(t, x))
		if err != nil || o.Complete || len(o.Interfaces) != 2 || o.Interfaces[0].ENI != "eni-1" || o.Interfaces[1].ENI != "eni-t" {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
		if len(skipped) != 1 || skipped[0].Object != c.want.Object || !strings.HasPrefix(skipped[0].Why, c.want.Why) {
			t.Errorf("%s: skipped %+v, want %+v", name, skipped, c.want)
		}
	}
}

func TestAnErrorOfAReadIsNoObservation(t *testing.T) {
	for nth, object := range map[string]string{"1": "tag:" + vpc.TagInstanceID + "=i-1 tag:" + vpc.TagOwner + "=" + vpc.OwnerResourceController, "2": "network-interface-id=eni-9"} {
		a := &answering{
			interfaces: []types.NetworkInterface{trunkOf("eni-t", 1, func(*types.NetworkInterface) {})},
			refused:    map[string]error{"DescribeNetworkInterfaces " + nth: refusing("UnauthorizedOperation")},
		}
		o, skipped, err := trunksOn(t, a).Branches(t.Context(), "i-1", ec2.Associations{}, "eni-9")
		if want := "EC2 DescribeNetworkInterfaces " + object + ": UnauthorizedOperation: m"; err == nil || err.Error() != want || o.Complete || o.Interfaces != nil || skipped != nil {
			t.Errorf("call %s: %+v, %v, want %s", nth, o, err, want)
		}
	}
}

func TestAssociationsAreListedPageByPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answering{page: 2}
		for n := range 5 {
			a.associations = append(a.associations, association(fmt.Sprint("eni-", n), "eni-t", int32(n+1)))
		}
		began := time.Now()
		of := listing(t, trunksOn(t, a))
		if of.Len() != 5 || !of.At.Equal(began) {
			t.Errorf("%d associations at %s, want 5 at %s", of.Len(), of.At, began)
		}
		if diff := cmp.Diff([]string{"{MaxResults:250}", "{MaxResults:250,NextToken:2}", "{MaxResults:250,NextToken:4}"}, a.requests("DescribeTrunkInterfaceAssociations")); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if empty := listing(t, trunksOn(t, &answering{})); empty.Len() != 0 || !empty.At.Equal(began) {
			t.Errorf("no associations: %d at %s", empty.Len(), empty.At)
		}
	})
}

func TestAListingThatIsIncompleteIsNone(t *testing.T) {
	for nth, page := range map[int]string{1: "page 1 ", 3: "page 3 2"} {
		a := &answering{page: 1, refused: map[string]error{fmt.Sprint("DescribeTrunkInterfaceAssociations ", nth): refusing("UnauthorizedOperation")}}
		for n := range 4 {
			a.associations = append(a.associations, association(fmt.Sprint("eni-", n), "eni-t", int32(n+1)))
		}
		of, err := trunksOn(t, a).Associations(t.Context())
		if want := "EC2 DescribeTrunkInterfaceAssociations " + page + ": UnauthorizedOperation: m"; err == nil || err.Error() != want || of.Len() != 0 || !of.At.IsZero() {
			t.Errorf("page %d: %d associations at %s, %v; want %s", nth, of.Len(), of.At, err, want)
		}
	}
	for pages, complete := range map[int]bool{2000: true, 2001: false} {
		a := &answering{page: 1}
		for n := range pages {
			a.associations = append(a.associations, association(fmt.Sprint("eni-", n), "eni-t", 1))
		}
		of, err := trunksOn(t, a).Associations(t.Context())
		if complete && (err != nil || of.Len() != pages) || !complete && (err == nil || err.Error() != "describe associations of trunks: more than 2000 pages" || !of.At.IsZero()) {
			t.Errorf("%d pages: %d associations, %v", pages, of.Len(), err)
		}
	}
}

// hosting is an instance with a primary interface, a second one, an interface of another card with the
// same device index and a trunk.
func hosting() *answering {
	return &answering{
		interfaces: []types.NetworkInterface{
			described("eni-2", 2, func(n *types.NetworkInterface) { n.SubnetId = aws.String("subnet-2") }),
			described("eni-0", 0, func(n *types.NetworkInterface) {
				n.VpcId, n.AvailabilityZone = aws.String("vpc-1"), aws.String("zone-a")
				n.Groups = []types.GroupIdentifier{{GroupId: aws.String("sg-2")}, {GroupId: aws.String("sg-1")}}
			}),
			described("eni-c", 1, func(n *types.NetworkInterface) { n.Attachment.NetworkCardIndex = aws.Int32(1) }),
			trunkOf("eni-t", 1, func(*types.NetworkInterface) {}),
			described("eni-5", 5, func(n *types.NetworkInterface) { n.Attachment.Status = types.AttachmentStatusDetaching }),
		},
		subnets: []types.Subnet{{SubnetId: aws.String("subnet-2")}, {SubnetId: aws.String("subnet-1"), CidrBlock: aws.String("10.0.0.0/24")}, {SubnetId: aws.String("subnet-3")}},
	}
}

func TestAHostIsReadByItsPrimaryInterface(t *testing.T) {
	a := hosting()
	h, err := trunksOn(t, a).Host(t.Context(), "i-1")
	if err != nil || h.Subnet.ID != "subnet-1" || h.Subnet.CIDR != netip.MustParsePrefix("10.0.0.0/24") || h.VPC != "vpc-1" || !h.Groups.Equal(trunk.NewGroups("sg-1", "sg-2")) {
		t.Errorf("%+v, %v", h, err)
	}
	if want := []int{0, 2, 5}; !slices.Equal(h.Devices, want) { // one that is detaching has its device still
		t.Errorf("devices in use: %v, want %v", h.Devices, want)
	}
	want := []string{
		"DescribeNetworkInterfaces {Filters:[{Name:attachment.instance-id,Values:[i-1]}],MaxResults:1000}",
		"DescribeSubnets {Filters:[{Name:vpc-id,Values:[vpc-1]},{Name:availability-zone,Values:[zone-a]}]}",
	}
	if diff := cmp.Diff(want, a.asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestAHostThatEC2DoesNotShowWholeIsAnError(t *testing.T) {
	for want, change := range map[string]func(*answering){
		"describe instance i-1: EC2 shows no primary interface of it":        func(a *answering) { a.interfaces = slices.Delete(a.interfaces, 1, 2) },
		"describe instance i-1: EC2 does not show its subnet subnet-1":       func(a *answering) { a.subnets = slices.Delete(a.subnets, 1, 2) },
		"EC2 DescribeNetworkInterfaces attachment.instance-id=i-1: Oops: m":  func(a *answering) { a.refused = map[string]error{"DescribeNetworkInterfaces": refusing("Oops")} },
		"EC2 DescribeSubnets vpc-id=vpc-1 availability-zone=zone-a: Oops: m": func(a *answering) { a.refused = map[string]error{"DescribeSubnets": refusing("Oops")} },
	} {
		a := hosting()
		change(a)
		if h, err := trunksOn(t, a).Host(t.Context(), "i-1"); err == nil || err.Error() != want || h.VPC != "" || h.Devices != nil {
			t.Errorf("%+v, %v; want %s", h, err, want)
		}
	}
}

func TestAnInstanceExistsUntilItIsTerminated(t *testing.T) {
	in := func(state types.InstanceStateName) []types.Instance {
		return []types.Instance{{State: &types.InstanceState{Name: state}}}
	}
	for name, c := range map[string]struct {
		shown           []types.Instance
		exists, stopped bool
	}{
		"not shown":       {nil, false, false},
		"pending":         {in(types.InstanceStateNamePending), true, false},
		"running":         {in(types.InstanceStateNameRunning), true, false},
		"stopping":        {in(types.InstanceStateNameStopping), true, false},
		"stopped":         {in(types.InstanceStateNameStopped), true, true},
		"shutting down":   {in(types.InstanceStateNameShuttingDown), true, false},
		"terminated":      {in(types.InstanceStateNameTerminated), false, false},
		"without a state": {[]types.Instance{{}}, true, false},
	} {
		a := &answering{instances: c.shown}
		exists, stopped, err := trunksOn(t, a).Exists(t.Context(), "i-1")
		if err != nil || exists != c.exists || stopped != c.stopped {
			t.Errorf("%s: exists %v, stopped %v, %v; want %v, %v", name, exists, stopped, err, c.exists, c.stopped)
		}
		if diff := cmp.Diff([]string{"DescribeInstances {Filters:[{Name:instance-id,Values:[i-1]}]}"}, a.asked); diff != "" {
			t.Errorf("%s: requests (-want +got):\n%s", name, diff)
		}
	}
	a := &answering{instances: in(types.InstanceStateNameStopped), refused: map[string]error{"DescribeInstances": refusing("UnauthorizedOperation")}}
	if exists, stopped, err := trunksOn(t, a).Exists(t.Context(), "i-1"); err == nil || err.Error() != "EC2 DescribeInstances instance-id=i-1: UnauthorizedOperation: m" || exists || stopped {
		t.Errorf("exists %v, stopped %v, %v", exists, stopped, err)
	}
}

func TestEachGroupIsAskedForOnceIn200OfACall(t *testing.T) {
	a, ids := &answering{}, []string(nil)
	for n := range 401 {
		id := fmt.Sprintf("sg-%03d", n)
		ids = append(ids, id, id)
		if n != 7 { // it does not exist
			a.groups = append(a.groups, groupOf(id))
		}
	}
	slices.Reverse(ids)
	found, err := trunksOn(t, a).Groups(t.Context(), ids)
	if err != nil || len(found) != 400 || found["sg-000"] != "vpc-1" || found["sg-400"] != "vpc-1" {
		t.Errorf("%d groups, %v", len(found), err)
	}
	asked := a.requests("DescribeSecurityGroups")
	if len(asked) != 3 || asked[2] != "{Filters:[{Name:group-id,Values:[sg-400]}]}" || strings.Count(asked[0], "sg-") != 200 {
		t.Errorf("requests %q", asked)
	}
	if found, err := trunksOn(t, &answering{}).Groups(t.Context(), nil); err != nil || len(found) != 0 {
		t.Errorf("no groups: %v, %v", found, err)
	}
	a.asked, a.refused = nil, map[string]error{"DescribeSecurityGroups 2": refusing("UnauthorizedOperation")}
	if found, err := trunksOn(t, a).Groups(t.Context(), ids); !ec2.IsUnpermitted(err) || found != nil || len(a.asked) != 2 {
		t.Errorf("the second call is refused: %v, %v", found, err)
	}
}

func TestFiveAddressesOfASubnetAreReserved(t *testing.T) {
	for cidr, want := range map[string]int{"10.0.0.0/24": 251, "10.0.0.0/28": 11, "10.0.0.0/16": 65531} {
		if got := (ec2.Subnet{CIDR: netip.MustParsePrefix(cidr)}).Addresses(); got != want {
			t.Errorf("%s: %d addresses, want %d", cidr, got, want)
		}
	}
	if got := (ec2.Subnet{}).Addresses(); got != 0 {
		t.Errorf("%d addresses of an IPv6-only subnet", got)
	}
}
