//go:build lab

package e2e

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// account is the lab's account at EC2, with AWS's own client.
type account struct{ api *ec2.Client }

func (l lab) account(t testing.TB) account {
	t.Helper()
	at := l.status(t).Endpoints
	cfg, err := config.LoadDefaultConfig(t.Context(),
		config.WithRegion("us-west-2"),
		config.WithSharedCredentialsFiles([]string{at.Credentials}),
		config.WithSharedConfigFiles([]string{}),
		config.WithBaseEndpoint(at.EC2))
	if err != nil {
		t.Fatalf("client of %s: %v", at.EC2, err)
	}
	return account{ec2.NewFromConfig(cfg)}
}

func (a account) interfaces(t testing.TB) []types.NetworkInterface {
	t.Helper()
	var all []types.NetworkInterface
	pages := ec2.NewDescribeNetworkInterfacesPaginator(a.api, &ec2.DescribeNetworkInterfacesInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatalf("describe interfaces: %v", err)
		}
		all = append(all, page.NetworkInterfaces...)
	}
	return all
}

// holders maps every assigned address in EC2 to its interface. An address with two
// interfaces is a failure.
func (a account) holders(t testing.TB) map[netip.Addr]string {
	t.Helper()
	held := map[netip.Addr]string{}
	for _, eni := range a.interfaces(t) {
		for _, private := range eni.PrivateIpAddresses {
			addr := netip.MustParseAddr(aws.ToString(private.PrivateIpAddress))
			if other, twice := held[addr]; twice {
				t.Errorf("EC2 has %s on %s and on %s", addr, other, aws.ToString(eni.NetworkInterfaceId))
			}
			held[addr] = aws.ToString(eni.NetworkInterfaceId)
		}
	}
	return held
}

// exists reports whether an interface exists.
func (a account) exists(t testing.TB, id string) bool {
	t.Helper()
	return slices.ContainsFunc(a.interfaces(t), func(eni types.NetworkInterface) bool { return aws.ToString(eni.NetworkInterfaceId) == id })
}

// leak makes an unattached interface with tags.
func (a account) leak(t testing.TB, tags map[string]string) (id string) {
	t.Helper()
	subnet := ""
	for _, eni := range a.interfaces(t) {
		if eni.Attachment != nil && aws.ToString(eni.Attachment.InstanceId) != "" {
			subnet = aws.ToString(eni.SubnetId)
		}
	}
	out, err := a.api.CreateNetworkInterface(t.Context(), &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(subnet), Description: aws.String("leaked by a test"), TagSpecifications: tagged(tags),
	})
	if err != nil {
		t.Fatalf("leak an interface: %v", err)
	}
	return aws.ToString(out.NetworkInterface.NetworkInterfaceId)
}

func (a account) deleteInterface(t testing.TB, id string) {
	t.Helper()
	if _, err := a.api.DeleteNetworkInterface(t.Context(), &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(id)}); err != nil {
		t.Errorf("delete %s: %v", id, err)
	}
}

func tagged(tags map[string]string) []types.TagSpecification {
	var list []types.Tag
	for k, v := range tags {
		list = append(list, types.Tag{Key: aws.String(k), Value: aws.String(v)})
	}
	return []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: list}}
}

// nodesRule finds the group of the nodes and its rule that refers to itself.
func (a account) nodesRule(t testing.TB) (*string, types.IpPermission) {
	t.Helper()
	out, err := a.api.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range out.Reservations {
		for _, inst := range res.Instances {
			for _, g := range inst.SecurityGroups {
				groups, err := a.api.DescribeSecurityGroups(t.Context(), &ec2.DescribeSecurityGroupsInput{GroupIds: []string{aws.ToString(g.GroupId)}})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range groups.SecurityGroups[0].IpPermissions {
					for _, pair := range p.UserIdGroupPairs {
						if aws.ToString(pair.GroupId) == aws.ToString(g.GroupId) {
							p.IpRanges, p.Ipv6Ranges, p.PrefixListIds = nil, nil, nil
							p.UserIdGroupPairs = []types.UserIdGroupPair{{GroupId: g.GroupId}}
							return g.GroupId, p
						}
					}
				}
			}
		}
	}
	t.Fatal("no node's group has a rule that refers to itself")
	return nil, types.IpPermission{}
}
