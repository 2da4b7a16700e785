package ec2_test

import (
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/edge/ec2"
)

func TestGroupsThatAllowSomethingAreNamed(t *testing.T) {
	w := start(t)
	c := w.groupClient()
	everything := []types.IpPermission{{IpProtocol: aws.String("-1"), IpRanges: []types.IpRange{{CidrIp: aws.String("0.0.0.0/0")}}}}
	closed, inbound, outbound := w.newGroup(c, "closed"), w.newGroup(c, "inbound"), w.newGroup(c, "outbound")
	if _, err := c.AuthorizeSecurityGroupIngress(t.Context(), &sdk.AuthorizeSecurityGroupIngressInput{GroupId: &inbound, IpPermissions: everything}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AuthorizeSecurityGroupEgress(t.Context(), &sdk.AuthorizeSecurityGroupEgressInput{GroupId: &outbound, IpPermissions: everything}); err != nil {
		t.Fatal(err)
	}
	trunks := ec2.Trunks{Executor: w.Executor}
	got, err := trunks.Allowing(t.Context(), []string{closed, outbound, "sg-0123456789abcdef0", inbound, inbound})
	if want := slices.Sorted(slices.Values([]string{inbound, outbound})); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := trunks.Allowing(t.Context(), []string{closed}); err != nil || len(got) != 0 {
		t.Errorf("%v, %v of a group without rules", got, err)
	}
	w.wire.cut(func(string) error { return errCut }, nil)
	if got, err := trunks.Allowing(t.Context(), []string{closed}); err == nil {
		t.Errorf("%v and no error without an answer", got)
	}
}
