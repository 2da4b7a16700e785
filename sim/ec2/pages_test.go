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

func TestPagesNeitherRepeatNorSkipItems(t *testing.T) {
	a := start(t, seeded())
	wanted := map[string]bool{}
	for n := range 17 {
		i := a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), Description: aws.String(fmt.Sprintf("page-%d", n))})
		wanted[*i.NetworkInterfaceId] = true
	}
	in := &awsec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{{Name: aws.String("description"), Values: []string{"page-*"}}}, MaxResults: aws.Int32(5),
	}
	seen := map[string]bool{}
	pages := awsec2.NewDescribeNetworkInterfacesPaginator(a, in)
	for pages.HasMorePages() {
		out, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range out.NetworkInterfaces {
			if seen[*i.NetworkInterfaceId] || !wanted[*i.NetworkInterfaceId] {
				t.Errorf("%s is repeated or was not requested", *i.NetworkInterfaceId)
			}
			seen[*i.NetworkInterfaceId] = true
			// Items of earlier pages may be deleted; later pages do not shift.
			if _, err := a.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: i.NetworkInterfaceId}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(seen) != len(wanted) {
		t.Errorf("saw %d of %d", len(seen), len(wanted))
	}
	_, err := a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(5), NextToken: aws.String("rubbish")})
	want(t, err, "InvalidNextToken", "")
	_, err = a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(2)})
	want(t, err, "InvalidParameterValue", "Value ( 2 ) for parameter maxResults is invalid. Expecting a value greater than 5.")
}

func TestPageSizeIsBoundedAndTokenBelongsToItsQuery(t *testing.T) {
	a := start(t, seeded())
	for range 8 {
		a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")})
	}
	describe := func(size int32, token *string, filters ...types.Filter) (*awsec2.DescribeNetworkInterfacesOutput, error) {
		return a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(size), NextToken: token, Filters: filters})
	}
	for _, size := range []int32{0, 4, -1} {
		_, err := describe(size, nil)
		want(t, err, "InvalidParameterValue", fmt.Sprintf("Value ( %d ) for parameter maxResults is invalid. Expecting a value greater than 5.", size))
	}
	first := ok[*awsec2.DescribeNetworkInterfacesOutput](t)(describe(5, nil))
	if len(first.NetworkInterfaces) != 5 || first.NextToken == nil {
		t.Fatalf("%d interfaces, token %v", len(first.NetworkInterfaces), first.NextToken)
	}
	if all := ok[*awsec2.DescribeNetworkInterfacesOutput](t)(describe(5000, nil)); len(all.NetworkInterfaces) != 11 || all.NextToken != nil {
		t.Errorf("a page of 5000 has %d, token %v; want all eleven", len(all.NetworkInterfaces), all.NextToken)
	}
	// The size may change between pages, the query may not.
	rest := ok[*awsec2.DescribeNetworkInterfacesOutput](t)(describe(6, first.NextToken))
	if len(rest.NetworkInterfaces) != 6 || rest.NextToken != nil {
		t.Errorf("%d on the second page, token %v; want the last six", len(rest.NetworkInterfaces), rest.NextToken)
	}
	for _, i := range first.NetworkInterfaces {
		if slices.ContainsFunc(rest.NetworkInterfaces, func(o types.NetworkInterface) bool { return *o.NetworkInterfaceId == *i.NetworkInterfaceId }) {
			t.Errorf("%s is on the second page too", *i.NetworkInterfaceId)
		}
	}
	_, err := describe(5, first.NextToken, filter("status", "available"))
	want(t, err, "InvalidNextToken", "The token '"+*first.NextToken+"' is invalid")
	_, err = a.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{NextToken: first.NextToken})
	want(t, err, "InvalidNextToken", "")
	_, err = describe(5, aws.String(strings.Repeat("A", 10000)))
	want(t, err, "InvalidNextToken", "")
	_, err = a.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{
		MaxResults: aws.Int32(5), NetworkInterfaceIds: []string{*first.NetworkInterfaces[0].NetworkInterfaceId},
	})
	want(t, err, "InvalidParameterCombination", "The parameter networkInterfaceIdSet cannot be used with the parameter maxResults")
}
