//go:build lab

package e2e

import (
	"net/netip"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// account returns AWS's own client of the lab's EC2 API.
func (l lab) account(t testing.TB) *ec2.Client {
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
	return ec2.NewFromConfig(cfg)
}

func (l lab) interfaces(t testing.TB) []types.NetworkInterface {
	t.Helper()
	var all []types.NetworkInterface
	pages := ec2.NewDescribeNetworkInterfacesPaginator(l.account(t), &ec2.DescribeNetworkInterfacesInput{})
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
func (l lab) holders(t testing.TB) map[netip.Addr]string {
	t.Helper()
	held := map[netip.Addr]string{}
	for _, eni := range l.interfaces(t) {
		for _, a := range eni.PrivateIpAddresses {
			addr := netip.MustParseAddr(aws.ToString(a.PrivateIpAddress))
			if other, twice := held[addr]; twice {
				t.Errorf("EC2 has %s on %s and on %s", addr, other, aws.ToString(eni.NetworkInterfaceId))
			}
			held[addr] = aws.ToString(eni.NetworkInterfaceId)
		}
	}
	return held
}
