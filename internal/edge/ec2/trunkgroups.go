package ec2

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Groups returns the VPC of each of the given security groups that exists.
func (t Trunks) Groups(ctx context.Context, ids []string) (map[string]vpc.ID, error) {
	found, err := t.describeGroups(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := map[string]vpc.ID{}
	for _, g := range found {
		out[aws.ToString(g.GroupId)] = vpc.ID(aws.ToString(g.VpcId))
	}
	return out, nil
}

// Allowing returns those of the given security groups that have a rule, in the order of their ids.
func (t Trunks) Allowing(ctx context.Context, ids []string) ([]string, error) {
	found, err := t.describeGroups(ctx, ids)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, g := range found {
		if len(g.IpPermissions)+len(g.IpPermissionsEgress) > 0 {
			out = append(out, aws.ToString(g.GroupId))
		}
	}
	slices.Sort(out)
	return out, nil
}

func (t Trunks) describeGroups(ctx context.Context, ids []string) (all []types.SecurityGroup, _ error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	for batch := range slices.Chunk(ids, 200) { // values of a filter that EC2 accepts
		by := []types.Filter{filter("group-id", batch...)}
		found, err := read(ctx, t.Executor, "DescribeSecurityGroups", describe(by), func(ctx context.Context, api API) ([]types.SecurityGroup, error) {
			reply, err := api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: by})
			if err != nil {
				return nil, err
			}
			return reply.SecurityGroups, nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
