package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// Primaries returns the primary interfaces of the given instances.
	Primaries(ctx context.Context, ids []vpc.InstanceID) ([]Primary, error)
	// Bind tags an interface with the id of an instance, so that the role of the instance
	// may change it (deploy/iam/node-policy.json).
	Bind(ctx context.Context, id vpc.ENIID, to vpc.InstanceID) error
	// Delete deletes a detached interface; EC2 refuses to delete an attached one.
	// Deleting one that does not exist succeeds.
	Delete(ctx context.Context, id vpc.ENIID) error
}

// Describer is the part of the SDK's client that reads the inventory.
type Describer interface {
	DescribeNetworkInterfaces(context.Context, *sdk.DescribeNetworkInterfacesInput, ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error)
	DescribeInstances(context.Context, *sdk.DescribeInstancesInput, ...func(*sdk.Options)) (*sdk.DescribeInstancesOutput, error)
}

// Tagger is the part of the SDK's client that binds.
type Tagger interface {
	CreateTags(context.Context, *sdk.CreateTagsInput, ...func(*sdk.Options)) (*sdk.CreateTagsOutput, error)
}

// Fleet implements EC2: it reads and tags with the SDK, and deletes through the executor,
// which adds budgets, brakes and the handling of lost replies.
type Fleet struct {
	Read     Describer
	Tag      Tagger
	Executor *ec2.Executor
}

// Budget is how many calls of one API action the controller may make: more than a node's agent
// (ec2.DefaultBudget), because it makes those for all nodes. Of a change it is what EC2 gives the
// account, less a tenth of the burst, because calls do not arrive in the times in which they are
// sent; of a read half of that. Throttling halves a rate. Source: EC2 developer guide, "Request
// throttling for the Amazon EC2 API".
func Budget(action string) ec2.Budget {
	switch {
	case strings.HasPrefix(action, "Describe"):
		return ec2.Budget{PerSecond: 10, Burst: 50}
	case action == "CreateTags":
		return ec2.Budget{PerSecond: 10, Burst: 90}
	case action == "CreateNetworkInterface", action == "DeleteNetworkInterface", action == "ModifyNetworkInterfaceAttribute":
		return ec2.Budget{PerSecond: 5, Burst: 90}
	}
	return ec2.Budget{PerSecond: 5, Burst: 45}
}

// Bounds of paged reads.
const (
	pageSize      = 1000
	maxPages      = 200
	instanceBatch = 100 // values per filter; EC2 accepts 200
)

// Interfaces implements EC2.
func (f Fleet) Interfaces(ctx context.Context, cluster string) ([]leak.Interface, error) {
	filters := []types.Filter{{Name: aws.String("tag:" + vpc.TagManagedBy), Values: leak.Marks()}}
	if cluster != "" {
		filters = append(filters, types.Filter{Name: aws.String("tag:" + vpc.TagClusterName), Values: []string{cluster}})
	}
	found, err := f.described(ctx, filters)
	if err != nil {
		return nil, fmt.Errorf("describe our interfaces: %w", err)
	}
	var out []leak.Interface
	for _, n := range found {
		out = append(out, leak.Interface{ID: vpc.ENIID(aws.ToString(n.NetworkInterfaceId)), Status: string(n.Status), Tags: tagsOf(n)})
	}
	return out, nil
}

// described returns the interfaces that match all filters. On an error some may be missing.
func (f Fleet) described(ctx context.Context, filters []types.Filter) ([]types.NetworkInterface, error) {
	req := &sdk.DescribeNetworkInterfacesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	var out []types.NetworkInterface
	for range maxPages {
		page, err := f.Read.DescribeNetworkInterfaces(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("%d read so far: %w", len(out), err)
		}
		out = append(out, page.NetworkInterfaces...)
		if aws.ToString(page.NextToken) == "" {
			return out, nil
		}
		req.NextToken = page.NextToken
	}
	return nil, fmt.Errorf("more than %d pages", maxPages)
}

func tagsOf(n types.NetworkInterface) map[string]string {
	out := map[string]string{}
	for _, t := range n.TagSet {
		out[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return out
}

// Primary is the primary interface of an instance.
type Primary struct {
	ID       vpc.ENIID
	Instance vpc.InstanceID // that it is attached to
	BoundTo  vpc.InstanceID // by its tag; empty without one
}

// Primaries implements EC2.
func (f Fleet) Primaries(ctx context.Context, ids []vpc.InstanceID) ([]Primary, error) {
	var out []Primary
	for batch := range slices.Chunk(ids, instanceBatch) {
		found, err := f.described(ctx, []types.Filter{
			{Name: aws.String("attachment.instance-id"), Values: texts(batch)},
			{Name: aws.String("attachment.device-index"), Values: []string{"0"}},
		})
		if err != nil {
			return nil, fmt.Errorf("describe primary interfaces: %w", err)
		}
		for _, n := range found {
			a := n.Attachment
			if a == nil || aws.ToInt32(a.DeviceIndex) != 0 || aws.ToInt32(a.NetworkCardIndex) != 0 {
				continue
			}
			out = append(out, Primary{
				ID: vpc.ENIID(aws.ToString(n.NetworkInterfaceId)), Instance: vpc.InstanceID(aws.ToString(a.InstanceId)),
				BoundTo: vpc.InstanceID(tagsOf(n)[vpc.TagInstanceID]),
			})
		}
	}
	return out, nil
}

// Bind implements EC2.
func (f Fleet) Bind(ctx context.Context, id vpc.ENIID, to vpc.InstanceID) error {
	_, err := f.Tag.CreateTags(ctx, &sdk.CreateTagsInput{
		Resources: []string{string(id)},
		Tags:      []types.Tag{{Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(to))}},
	})
	return err
}

func texts(ids []vpc.InstanceID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// Instances implements EC2. A terminated instance counts as not existing: EC2 has
// detached its interfaces.
func (f Fleet) Instances(ctx context.Context, ids []vpc.InstanceID) (leak.Instances, error) {
	exist := leak.Instances{}
	for batch := range slices.Chunk(ids, instanceBatch) {
		// A filter, not InstanceIds: one unknown ID there would fail the whole call.
		req := &sdk.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("instance-id"), Values: texts(batch)}}}
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
