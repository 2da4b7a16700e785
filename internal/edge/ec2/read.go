package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// read makes a read call: coalesced with identical reads in flight, hedged, and repeated
// while EC2 throttles or does not reply. key identifies the request.
func read[T any](ctx context.Context, x *Executor, action, key string, ask func(context.Context, API) (T, error)) (T, error) {
	flight := x.reads.DoChan(action+" "+key, func() (any, error) {
		// The first caller's context may end while other callers wait for the reply.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*x.o.ReadTimeout)
		defer cancel()
		for n := 0; ; n++ {
			got, err := hedge(ctx, x, action, key, ask)
			if err == nil || n+1 >= x.o.Tries || !IsThrottled(err) && !isAmbiguous(err) && !unsent(err) && !errors.Is(err, errNotSent) {
				return got, err
			}
			if x.pause(ctx, n) != nil {
				return got, err
			}
		}
	})
	var zero T
	select {
	case r := <-flight:
		if r.Err != nil {
			return zero, r.Err
		}
		return r.Val.(T), nil
	case <-ctx.Done():
		return zero, &Error{Action: action, Object: key, Err: context.Cause(ctx)}
	}
}

// hedge sends a read, and again on a fresh connection after HedgeAfter without a reply:
// a kept connection hangs after its path broke. It returns the first success.
func hedge[T any](ctx context.Context, x *Executor, action, key string, ask func(context.Context, API) (T, error)) (T, error) {
	type reply struct {
		got T
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, x.o.ReadTimeout)
	replies := make(chan reply, 2)
	running := 0
	start := func(api API) {
		running++
		go func() {
			var r reply
			r.err = x.call(ctx, action, key, x.o.ReadTimeout, func(ctx context.Context) (err error) {
				r.got, err = ask(ctx, api)
				return err
			})
			replies <- r
		}()
	}
	defer func() {
		cancel()
		for range running {
			<-replies
		}
	}()
	start(x.o.Clients.Kept)
	late := time.NewTimer(x.o.HedgeAfter)
	defer late.Stop()
	for {
		select {
		case r := <-replies:
			running--
			if r.err == nil || running == 0 {
				return r.got, r.err
			}
		case <-late.C:
			x.metrics.hedged.WithLabelValues(action).Inc()
			start(x.o.Clients.Fresh)
		}
	}
}

// Interface describes one interface. A NotFound error quotes its id.
func (x *Executor) Interface(ctx context.Context, id vpc.ENIID) (Interface, error) {
	found, err := read(ctx, x, "DescribeNetworkInterfaces", string(id), func(ctx context.Context, api API) ([]Interface, error) {
		return interfaces(ctx, api, &ec2.DescribeNetworkInterfacesInput{NetworkInterfaceIds: []string{string(id)}})
	})
	if err != nil {
		return Interface{}, err
	}
	if len(found) != 1 {
		return Interface{}, &Error{
			Action: "DescribeNetworkInterfaces", Object: string(id), Code: "InvalidNetworkInterfaceID.NotFound",
			Message: fmt.Sprintf("The networkInterface ID '%s' does not exist", id),
		}
	}
	return found[0], nil
}

// GroupsOf reads the security groups of up to 200 interfaces, by one call: EC2 permits so many values of
// a filter. Interfaces that do not exist are missing in it.
func (x *Executor) GroupsOf(ctx context.Context, ids []vpc.ENIID) (map[vpc.ENIID][]vpc.SecurityGroupID, error) {
	values := make([]string, 0, len(ids))
	for _, id := range ids {
		values = append(values, string(id))
	}
	found, err := x.filtered(ctx, filter("network-interface-id", values...))
	groups := make(map[vpc.ENIID][]vpc.SecurityGroupID, len(found))
	for _, i := range found {
		groups[i.ID] = i.Groups
	}
	return groups, err
}

// Interfaces describes all interfaces on an instance, by network card and device index.
func (x *Executor) Interfaces(ctx context.Context, id vpc.InstanceID) ([]Interface, error) {
	found, err := x.filtered(ctx, filter("attachment.instance-id", string(id)))
	slices.SortFunc(found, func(a, b Interface) int {
		return cmp.Or(cmp.Compare(a.card(), b.card()), cmp.Compare(a.device(), b.device()))
	})
	return found, err
}

// Seen describes the interfaces on an instance and its strays. It reads strays only if
// all is set, or if one of known is not on the instance, so that an observation of an
// unchanged node is one call.
func (x *Executor) Seen(ctx context.Context, id vpc.InstanceID, known []vpc.ENIID, all bool) ([]Interface, error) {
	found, err := x.Interfaces(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, k := range known {
		all = all || !slices.ContainsFunc(found, func(i Interface) bool { return i.ID == k })
	}
	if !all {
		return found, nil
	}
	strays, err := x.Strays(ctx, id)
	return append(found, strays...), err
}

// Strays describes interfaces with this instance's tag that are attached to no instance:
// a crash between CreateENI and Attach leaves one if the journal is lost too. Others may
// have written the tag; see ipam.Provenance.
func (x *Executor) Strays(ctx context.Context, id vpc.InstanceID) ([]Interface, error) {
	return x.filtered(ctx, filter("tag:"+vpc.TagInstanceID, string(id)), filter("status", "available"))
}

func (x *Executor) byTag(ctx context.Context, key, value string) ([]Interface, error) {
	return x.filtered(ctx, filter("tag:"+key, value))
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

func (x *Executor) filtered(ctx context.Context, by ...types.Filter) ([]Interface, error) {
	found, err := read(ctx, x, "DescribeNetworkInterfaces", describe(by), func(ctx context.Context, api API) ([]Interface, error) {
		return interfaces(ctx, api, &ec2.DescribeNetworkInterfacesInput{Filters: by, MaxResults: aws.Int32(1000)})
	})
	return slices.Clone(found), err // coalesced callers share the slice
}

// describe prints filters for error texts.
func describe(by []types.Filter) string {
	out := make([]string, len(by))
	for i, f := range by {
		out[i] = aws.ToString(f.Name) + "=" + strings.Join(f.Values, ",")
	}
	return strings.Join(out, " ")
}

// maxPages bounds every paged read.
const maxPages = 100

func interfaces(ctx context.Context, api API, req *ec2.DescribeNetworkInterfacesInput) ([]Interface, error) {
	var out []Interface
	for range maxPages {
		page, err := api.DescribeNetworkInterfaces(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, n := range page.NetworkInterfaces {
			out = append(out, readInterface(n))
		}
		if aws.ToString(page.NextToken) == "" {
			return out, nil
		}
		req.NextToken = page.NextToken
	}
	return nil, fmt.Errorf("describe interfaces: more than %d pages", maxPages)
}

// Subnets describes the subnets of a VPC in one zone.
func (x *Executor) Subnets(ctx context.Context, id vpc.ID, zone string) ([]Subnet, error) {
	return x.subnets(ctx, filter("vpc-id", string(id)), filter("availability-zone", zone))
}

// SubnetsOf describes all subnets of a VPC.
func (x *Executor) SubnetsOf(ctx context.Context, id vpc.ID) ([]Subnet, error) {
	return x.subnets(ctx, filter("vpc-id", string(id)))
}

// SubnetsByID describes subnets. Those that do not exist are left out.
func (x *Executor) SubnetsByID(ctx context.Context, ids ...vpc.SubnetID) ([]Subnet, error) {
	var values []string // a filter: an unknown id in SubnetIds would be an error
	for _, id := range ids {
		values = append(values, string(id))
	}
	return x.subnets(ctx, filter("subnet-id", values...))
}

func (x *Executor) subnets(ctx context.Context, by ...types.Filter) ([]Subnet, error) {
	return read(ctx, x, "DescribeSubnets", describe(by), func(ctx context.Context, api API) ([]Subnet, error) {
		var out []Subnet
		req := &ec2.DescribeSubnetsInput{Filters: by}
		for range maxPages {
			page, err := api.DescribeSubnets(ctx, req)
			if err != nil {
				return nil, err
			}
			for _, n := range page.Subnets {
				out = append(out, readSubnet(n))
			}
			if aws.ToString(page.NextToken) == "" {
				return out, nil
			}
			req.NextToken = page.NextToken
		}
		return nil, fmt.Errorf("describe subnets: more than %d pages", maxPages)
	})
}

// RouteTables returns the route table of each subnet of a VPC. A subnet that is not
// in the map uses main, which every VPC has. The agent works without them: AWS's managed
// policy AmazonEKS_CNI_Policy does not permit the call, and a refusal for that reason
// (IsUnpermitted) is not kept as the last refusal.
func (x *Executor) RouteTables(ctx context.Context, id vpc.ID) (of map[vpc.SubnetID]vpc.RouteTableID, main vpc.RouteTableID, err error) {
	by := []types.Filter{filter("vpc-id", string(id))}
	tables, err := read(ctx, x, describeRouteTables, describe(by), func(ctx context.Context, api API) ([]types.RouteTable, error) {
		var out []types.RouteTable
		req := &ec2.DescribeRouteTablesInput{Filters: by}
		for range maxPages {
			page, err := api.DescribeRouteTables(ctx, req)
			if err != nil {
				return nil, err
			}
			out = append(out, page.RouteTables...)
			if aws.ToString(page.NextToken) == "" {
				return out, nil
			}
			req.NextToken = page.NextToken
		}
		return nil, fmt.Errorf("describe route tables: more than %d pages", maxPages)
	})
	if err != nil {
		return nil, "", err
	}
	of = make(map[vpc.SubnetID]vpc.RouteTableID)
	for _, t := range tables {
		for _, a := range t.Associations {
			if aws.ToBool(a.Main) {
				main = vpc.RouteTableID(aws.ToString(t.RouteTableId))
			}
			if s := aws.ToString(a.SubnetId); s != "" {
				of[vpc.SubnetID(s)] = vpc.RouteTableID(aws.ToString(t.RouteTableId))
			}
		}
	}
	return of, main, nil
}
