package ec2

import (
	"context"
	"fmt"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// limitCache holds the limits of instance types, which never change.
type limitCache struct {
	mu    sync.Mutex
	known map[string]vpc.Limits
}

// InstanceLimits returns what an instance type such as "m5.xlarge" can hold on its
// default network card. EC2 is called once per type. Source: DescribeInstanceTypes, networkInfo, which lacks the
// number of branches: it stays 0.
func (x *Executor) InstanceLimits(ctx context.Context, instanceType string) (vpc.Limits, error) {
	x.limits.mu.Lock()
	known, ok := x.limits.known[instanceType]
	x.limits.mu.Unlock()
	if ok {
		return known, nil
	}
	found, err := read(ctx, x, "DescribeInstanceTypes", instanceType, func(ctx context.Context, api API) ([]types.InstanceTypeInfo, error) {
		reply, err := api.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{
			InstanceTypes: []types.InstanceType{types.InstanceType(instanceType)},
		})
		if err != nil {
			return nil, err
		}
		return reply.InstanceTypes, nil
	})
	if err != nil {
		return vpc.Limits{}, err
	}
	if len(found) != 1 || found[0].NetworkInfo == nil {
		return vpc.Limits{}, fmt.Errorf("limits of instance type %s: EC2 returned none", instanceType)
	}
	n := found[0].NetworkInfo
	limits := vpc.Limits{
		ENIs: int(aws.ToInt32(n.MaximumNetworkInterfaces)), IPv4: int(aws.ToInt32(n.Ipv4AddressesPerInterface)),
		IPv6: int(aws.ToInt32(n.Ipv6AddressesPerInterface)), BareMetal: aws.ToBool(found[0].BareMetal),
		Nitro: found[0].Hypervisor == types.InstanceTypeHypervisorNitro, Cards: max(1, len(n.NetworkCards)),
	}
	// The type's maximum is of all its network cards together.
	for _, c := range n.NetworkCards {
		if aws.ToInt32(c.NetworkCardIndex) == vpc.DefaultCard && c.MaximumNetworkInterfaces != nil {
			limits.ENIs = int(*c.MaximumNetworkInterfaces)
		}
	}
	if limits.ENIs < 1 || limits.IPv4 < 1 {
		return vpc.Limits{}, fmt.Errorf("limits of instance type %s: EC2 returned %d interfaces with %d addresses, both must be positive", instanceType, limits.ENIs, limits.IPv4)
	}
	x.limits.mu.Lock()
	defer x.limits.mu.Unlock()
	if x.limits.known == nil {
		x.limits.known = make(map[string]vpc.Limits)
	}
	x.limits.known[instanceType] = limits
	return limits, nil
}
