package ec2_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
)

// large gives the node a subnet with enough addresses for the largest instance type.
func large(s *simcloud.Spec) {
	s.VPC.CIDR6 = netip.MustParsePrefix("2001:db8::/56")
	s.Subnets[0].CIDR = netip.MustParsePrefix("10.0.16.0/20")
}

// A node of each type serves as many pods as EKS allows it, beside the interfaces that AWS's
// launch templates give such an instance: EFAs on the other network cards, with device
// indexes that the default card has too.
func TestANodeOfEachTypeServesItsPods(t *testing.T) {
	for kind, want := range map[string]struct{ cards, interfaces, pods int }{
		"t3.medium": {1, 3, 15}, "m5.xlarge": {1, 4, 56}, "c7gn.16xlarge": {1, 15, 735}, "m5.metal": {1, 15, 735},
		"p5.48xlarge": {32, 2, 98}, "trn1.32xlarge": {8, 5, 245}, "hpc7a.96xlarge": {2, 2, 98},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := nodeOn(t, startWith(t, func(s *simcloud.Spec) {
					large(s)
					s.Instances[0].Type = kind
					for card := 1; card < want.cards; card++ {
						s.Instances[0].Interfaces = append(s.Instances[0].Interfaces, simcloud.LaunchInterface{Card: card, Device: card % 2, Type: vpc.TypeEFAOnly})
					}
					if want.cards > 1 {
						s.Instances[0].PrimaryType = vpc.TypeEFA
					}
				}), kind)
				if limits, err := n.InstanceLimits(t.Context(), kind); err != nil || limits.ENIs != want.interfaces || limits.Cards != want.cards {
					t.Fatalf("limits %+v, %v", limits, err)
				}
				n.bind(want.pods)
				n.settle()
				for i := range want.pods {
					if _, err := n.add(i); err != nil {
						t.Fatalf("pod %d of %d: %v\n%s", i, want.pods, err, n.plan())
					}
				}
				n.observe()
				n.settle()
				if numbers := n.plan().Numbers; numbers.ENIs != want.interfaces || numbers.Capacity != want.pods {
					t.Errorf("%d interfaces, capacity %d", numbers.ENIs, numbers.Capacity)
				}
				for _, e := range n.ledger.View(time.Now()).ENIs {
					if e.Card > 0 && !strings.Contains(e.WhyUnmanaged, "not on network card 0") || e.Card == 0 && e.Unmanaged {
						t.Errorf("%s of card %d: unmanaged %v, %q", e.ID, e.Card, e.Unmanaged, e.WhyUnmanaged)
					}
				}
			})
		})
	}
}

// Before, the IPv6-only subnet failed every observation by every agent of its zone.
func TestANodeWorksBesideObjectsThatItCannotUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := nodeOn(t, startWith(t, func(s *simcloud.Spec) {
			large(s)
			s.Subnets = append(s.Subnets, simcloud.SubnetSpec{
				Name: "six", Zone: region + "a", CIDR6: netip.MustParsePrefix("2001:db8:0:1::/64"), Tags: map[string]string{vpc.TagSubnetRole: ""},
			})
			s.Subnets[0].Tags = map[string]string{"no-value": ""}
			s.Instances[0].Type = "c7gn.16xlarge"
			s.Instances[0].Interfaces = []simcloud.LaunchInterface{
				{Device: 1, Type: vpc.TypeEFAOnly}, {Device: 2, Tags: map[string]string{vpc.TagNoManage: "", "no-value": ""}},
			}
			s.Hosts = []simcloud.HostSpec{{Name: "nat", Subnet: "a", Type: "nat_gateway"}, {Name: "fn", Subnet: "a", Type: "lambda", Operator: "lambda.amazonaws.com"}}
		}), "c7gn.16xlarge")
		six := n.inSubnet("six")
		n.bind(40)
		n.settle()
		for i := range 40 {
			if _, err := n.add(i); err != nil {
				t.Fatalf("pod %d: %v\n%s", i, err, n.plan())
			}
		}
		subnets, err := n.Subnets(t.Context(), n.vpc(), region+"a")
		if err != nil {
			t.Fatal(err)
		}
		interfaces, err := n.Interfaces(t.Context(), n.instance)
		if err != nil {
			t.Fatal(err)
		}
		skipped := ec2.SkippedOf(append(interfaces, six), subnets)
		if len(skipped) != 2 || !strings.Contains(skipped[0].Why, "no IPv4 range") || skipped[1] != (ec2.Skipped{Object: "interface " + string(six.ID), Why: "it has no private IPv4 address"}) {
			t.Errorf("skipped: %v", skipped)
		}
		for _, s := range ec2.SubnetsOf(subnets, n.subnet, "lab", nil, "") {
			if !s.CIDR.IsValid() {
				t.Errorf("interfaces may be made in %s", s.ID)
			}
		}
		if seen := ec2.ObservedOf(six, n.me, subnets); !seen.ENI.Unmanaged {
			t.Error("an interface without an IPv4 address is managed")
		}
	})
}

// inSubnet is a new interface in a subnet, by its name, with the tags of this node.
func (n *node) inSubnet(name string) ec2.Interface {
	n.t.Helper()
	found, err := n.other().DescribeSubnets(n.t.Context(), &sdk.DescribeSubnetsInput{Filters: []types.Filter{{Name: aws.String("tag:Name"), Values: []string{name}}}})
	if err != nil || len(found.Subnets) != 1 {
		n.t.Fatalf("subnet %s: %v", name, err)
	}
	made, err := n.other().CreateNetworkInterface(n.t.Context(), &sdk.CreateNetworkInterfaceInput{
		SubnetId: found.Subnets[0].SubnetId,
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: []types.Tag{{Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(n.instance))}},
		}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return n.describe(vpc.ENIID(*made.NetworkInterface.NetworkInterfaceId))
}

// AWS's CNI delegated prefixes to an interface of the node, which has no other address.
func TestAnInterfaceWithPrefixesStaysAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t)
		n.settle()
		second := n.attached(0, 1)
		if _, err := n.other().AssignPrivateIpAddresses(t.Context(), &sdk.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: aws.String(string(second.ID)), Ipv4PrefixCount: aws.Int32(2),
		}); err != nil {
			t.Fatal(err)
		}
		n.minutes(90)
		got := n.describe(second.ID)
		if !got.On(n.instance) || len(got.Prefixes) != 2 || n.wire.count("DetachNetworkInterface") > 0 {
			t.Errorf("%+v after %d detachments", got, n.wire.count("DetachNetworkInterface"))
		}
		view := n.ledger.View(time.Now())
		i := slices.IndexFunc(view.ENIs, func(e ipam.ENIView) bool { return e.ID == second.ID })
		if i < 0 || len(view.ENIs[i].Prefixes) != 2 || view.ENIs[i].Kept() == "" {
			t.Errorf("the ledger has %+v", view.ENIs)
		}
	})
}

// partial is EC2 with descriptions that lack what the agent reads.
type partial struct {
	ec2.API
	subnets    []types.Subnet
	interfaces []types.NetworkInterface
}

func (p partial) DescribeSubnets(context.Context, *sdk.DescribeSubnetsInput, ...func(*sdk.Options)) (*sdk.DescribeSubnetsOutput, error) {
	return &sdk.DescribeSubnetsOutput{Subnets: p.subnets}, nil
}

func (p partial) DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: p.interfaces}, nil
}

// described is an interface of i-1 that lacks nothing.
func described(id string, device int32, change func(*types.NetworkInterface)) types.NetworkInterface {
	n := types.NetworkInterface{
		NetworkInterfaceId: aws.String(id), MacAddress: aws.String("02:00:00:00:00:01"), SubnetId: aws.String("subnet-1"),
		InterfaceType: types.NetworkInterfaceTypeInterface, Status: types.NetworkInterfaceStatusInUse,
		PrivateIpAddresses: []types.NetworkInterfacePrivateIpAddress{{PrivateIpAddress: aws.String("10.0.0.5"), Primary: aws.Bool(true)}},
		TagSet:             []types.Tag{{Key: aws.String(vpc.TagInstanceID), Value: aws.String("i-1")}, {Key: aws.String("no-value")}},
		Attachment: &types.NetworkInterfaceAttachment{
			AttachmentId: aws.String("a"), InstanceId: aws.String("i-1"), DeviceIndex: aws.Int32(device), Status: types.AttachmentStatusAttached,
		},
	}
	change(&n)
	return n
}

func TestWhatADescriptionLacksConcernsThatObjectOnly(t *testing.T) {
	good := types.Subnet{SubnetId: aws.String("subnet-1"), CidrBlock: aws.String("10.0.0.0/24")}
	odd := map[string]struct {
		change    func(*types.NetworkInterface)
		unmanaged string // a part of the reason; empty: managed
		skipped   string // a part of the reason; empty: not reported
	}{
		"nothing":              {func(*types.NetworkInterface) {}, "", ""},
		"an id":                {func(n *types.NetworkInterface) { n.NetworkInterfaceId = nil }, "", "without an id"},
		"a MAC":                {func(n *types.NetworkInterface) { n.MacAddress = nil }, "cannot be read: MAC", "cannot be read: MAC"},
		"IPv4 addresses":       {func(n *types.NetworkInterface) { n.PrivateIpAddresses = nil }, "no private IPv4", "no private IPv4"},
		"a device index":       {func(n *types.NetworkInterface) { n.Attachment.DeviceIndex = nil }, "", ""},
		"a known status":       {func(n *types.NetworkInterface) { n.Attachment.Status = "moving" }, "", ""},
		"a known type":         {func(n *types.NetworkInterface) { n.InterfaceType = "quantum" }, `"quantum"`, ""},
		"a prefix's text":      {func(n *types.NetworkInterface) { n.Ipv4Prefixes = []types.Ipv4PrefixSpecification{{}} }, "cannot be read: prefix", "cannot be read: prefix"},
		"a manager of its own": {func(n *types.NetworkInterface) { n.RequesterManaged = aws.Bool(true) }, "an AWS service manages it", ""},
		"an operator of its own": {func(n *types.NetworkInterface) {
			n.Operator = &types.OperatorResponse{Managed: aws.Bool(true), Principal: aws.String("eks.amazonaws.com")}
		}, "eks.amazonaws.com manages it", ""},
	}
	for name, c := range odd {
		t.Run(name, func(t *testing.T) {
			api := partial{subnets: []types.Subnet{
				good,
				{SubnetId: aws.String("subnet-6"), Ipv6Native: aws.Bool(true), AvailableIpAddressCount: aws.Int32(0)},
				{SubnetId: aws.String("subnet-x"), CidrBlock: aws.String("10.0.0.0")},
				{SubnetId: aws.String("subnet-p"), CidrBlock: aws.String("10.0.1.0/24"), State: types.SubnetStatePending},
				{CidrBlock: aws.String("10.0.2.0/24")},
			}}
			api.interfaces = []types.NetworkInterface{
				described("eni-0", 0, func(*types.NetworkInterface) {}), described("eni-odd", 1, c.change),
				described("eni-2", 2, func(*types.NetworkInterface) {}),
			}
			x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: api, Fresh: api}, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			subnets, err := x.Subnets(t.Context(), "vpc-1", region+"a")
			if err != nil {
				t.Fatal(err)
			}
			usable := ec2.SubnetsOf(subnets, "subnet-1", "lab", nil, "")
			if len(subnets) != 5 || len(usable) != 1 || usable[0].Free != -1 {
				t.Errorf("of %d subnets, %v are usable", len(subnets), usable)
			}
			found, err := x.Interfaces(t.Context(), "i-1")
			if err != nil || len(found) != 3 {
				t.Fatalf("%d interfaces, %v", len(found), err)
			}
			managed, primaries := 0, 0
			for _, i := range found {
				seen := ec2.ObservedOf(i, cloud.Node{Instance: "i-1"}, subnets).ENI
				if seen.Primary {
					primaries++
				}
				if !seen.Unmanaged {
					managed++
				}
				if i.ID == "eni-odd" && (seen.Unmanaged != (c.unmanaged != "") || !strings.Contains(seen.WhyUnmanaged, c.unmanaged)) {
					t.Errorf("unmanaged: %q, want %q", seen.WhyUnmanaged, c.unmanaged)
				}
			}
			if primaries != 1 || managed < 2 {
				t.Errorf("%d primary interfaces, %d managed", primaries, managed)
			}
			reported := fmt.Sprint(ec2.SkippedOf(found, nil))
			if (reported != "[]") != (c.skipped != "") || !strings.Contains(reported, c.skipped) {
				t.Errorf("reported %s, want %q", reported, c.skipped)
			}
			if got := ec2.SkippedOf(nil, subnets); len(got) != 4 {
				t.Errorf("skipped subnets: %v", got)
			}
		})
	}
}
