package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// EC2 is the part of EC2 that the controller uses.
type EC2 interface {
	// Interfaces returns all interfaces with our tag and the cluster's. On an error
	// the list is incomplete.
	Interfaces(ctx context.Context, cluster string) ([]leak.Interface, error)
	// Instances returns which of the given instances exist.
	Instances(ctx context.Context, ids []vpc.InstanceID) (leak.Instances, error)
	// Delete deletes a detached interface; EC2 refuses to delete an attached one.
	// Deleting one that does not exist succeeds.
	Delete(ctx context.Context, id vpc.ENIID) error
}

// Describer is the part of the SDK's client that reads the inventory.
type Describer interface {
	DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error)
	DescribeInstances(context.Context, *sdk.DescribeInstancesInput, ...func(*sdk.Options)) (*sdk.DescribeInstancesOutput, error)
}

// Fleet implements EC2: it reads with the SDK, and deletes through the executor, which
// adds budgets, brakes and the handling of lost replies.
type Fleet struct {
	Read     Describer
	Executor *ec2.Executor
}

// Bounds of paged reads.
const (
	pageSize      = 1000
	maxPages      = 200
	instanceBatch = 100 // values per filter; EC2 accepts 200
)

// Interfaces implements EC2.
func (f Fleet) Interfaces(ctx context.Context, cluster string) ([]leak.Interface, error) {
	filters := []types.Filter{{Name: aws.String("tag:" + vpc.TagManagedBy), Values: []string{leak.Mark}}}
	if cluster != "" {
		filters = append(filters, types.Filter{Name: aws.String("tag:" + vpc.TagClusterName), Values: []string{cluster}})
	}
	req := &sdk.DescribeNetworkInterfacesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	var out []leak.Interface
	for range maxPages {
		page, err := f.Read.DescribeNetworkInterfaces(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("describe our interfaces, %d read so far: %w", len(out), err)
		}
		for _, n := range page.NetworkInterfaces {
			eni := leak.Interface{ID: vpc.ENIID(aws.ToString(n.NetworkInterfaceId)), Status: string(n.Status), Tags: map[string]string{}}
			for _, t := range n.TagSet {
				eni.Tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
			}
			out = append(out, eni)
		}
		if aws.ToString(page.NextToken) == "" {
			return out, nil
		}
		req.NextToken = page.NextToken
	}
	return nil, fmt.Errorf("describe our interfaces: more than %d pages", maxPages)
}

// Instances implements EC2. A terminated instance counts as not existing: EC2 has
// detached its interfaces.
func (f Fleet) Instances(ctx context.Context, ids []vpc.InstanceID) (leak.Instances, error) {
	exist := leak.Instances{}
	for batch := range slices.Chunk(ids, instanceBatch) {
		values := make([]string, len(batch))
		for i, id := range batch {
			values[i] = string(id)
		}
		// A filter, not InstanceIds: one unknown ID there would fail the whole call.
		req := &sdk.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("instance-id"), Values: values}}}
		if err := f.page(ctx, req, exist); err != nil {
			return nil, err
		}
	}
	return exist, nil
}

func (f Fleet) page(ctx context.Context, req *sdk.DescribeInstancesInput, exist leak.Instances) error {
	for range maxPages {
		page, err := f.Read.DescribeInstances(ctx, req)
		if err != nil {
			return fmt.Errorf("describe the instances of our interfaces: %w", err)
		}
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				terminated := i.State != nil && i.State.Name == types.InstanceStateNameTerminated
				exist[vpc.InstanceID(aws.ToString(i.InstanceId))] = !terminated
			}
		}
		if aws.ToString(page.NextToken) == "" {
			return nil
		}
		req.NextToken = page.NextToken
	}
	return fmt.Errorf("describe the instances of our interfaces: more than %d pages", maxPages)
}

// Delete implements EC2. No journal has the deletion: the next pass learns from EC2
// whether an unfinished one happened.
func (f Fleet) Delete(ctx context.Context, id vpc.ENIID) error {
	_, err := f.Executor.Do(ctx, cloud.Action{
		ID: "collect-" + cloud.ActionID(id), Kind: cloud.DeleteENI, ENI: id, Began: time.Now(),
		Why: "it belongs to no instance",
	})
	if ec2.IsNotFound(err) {
		return nil
	}
	return err
}

// owners returns the instances in the tags of the given interfaces, sorted.
func owners(list []leak.Interface) []vpc.InstanceID {
	seen := map[vpc.InstanceID]bool{}
	for _, e := range list {
		if id := e.Tags[vpc.TagInstanceID]; id != "" {
			seen[vpc.InstanceID(id)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
