package ec2_test

import (
	"context"
	"errors"
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
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
)

// paged is EC2 with descriptions of several pages; the token of a page is its number.
type paged struct {
	ec2.API
	pages int // without an end if 0
	asked []string
}

// next returns the number of the page that a token asks for, and the token of the one after it.
func (p *paged) next(token *string) (int, *string) {
	p.asked = append(p.asked, aws.ToString(token))
	page := len(p.asked)
	if page == p.pages {
		return page, nil
	}
	return page, aws.String(fmt.Sprint(page + 1))
}

func (p *paged) DescribeNetworkInterfaces(_ context.Context, in *sdk.DescribeNetworkInterfacesInput, _ ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	page, token := p.next(in.NextToken)
	return &sdk.DescribeNetworkInterfacesOutput{NextToken: token, NetworkInterfaces: []types.NetworkInterface{
		described(fmt.Sprint("eni-", page), int32(page), func(*types.NetworkInterface) {}),
	}}, nil
}

func (p *paged) DescribeSubnets(_ context.Context, in *sdk.DescribeSubnetsInput, _ ...func(*sdk.Options)) (*sdk.DescribeSubnetsOutput, error) {
	page, token := p.next(in.NextToken)
	return &sdk.DescribeSubnetsOutput{NextToken: token, Subnets: []types.Subnet{{SubnetId: aws.String(fmt.Sprint("subnet-", page))}}}, nil
}

func (p *paged) DescribeRouteTables(_ context.Context, in *sdk.DescribeRouteTablesInput, _ ...func(*sdk.Options)) (*sdk.DescribeRouteTablesOutput, error) {
	page, token := p.next(in.NextToken)
	return &sdk.DescribeRouteTablesOutput{NextToken: token, RouteTables: []types.RouteTable{{
		RouteTableId: aws.String(fmt.Sprint("rtb-", page)), Associations: []types.RouteTableAssociation{{SubnetId: aws.String(fmt.Sprint("subnet-", page))}},
	}}}, nil
}

// on is an executor with a client, which makes each call once.
func on(t *testing.T, api ec2.API) *ec2.Executor {
	t.Helper()
	x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: api}, Log: slog.New(slog.DiscardHandler), Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestEveryPageOfADescriptionIsRead(t *testing.T) {
	for what, read := range map[string]func(*ec2.Executor) (int, error){
		"interfaces": func(x *ec2.Executor) (int, error) { all, err := x.Interfaces(t.Context(), "i-1"); return len(all), err },
		"subnets": func(x *ec2.Executor) (int, error) {
			all, err := x.Subnets(t.Context(), "vpc-1", "a")
			return len(all), err
		},
		"route tables": func(x *ec2.Executor) (int, error) {
			all, _, err := x.RouteTables(t.Context(), "vpc-1")
			return len(all), err
		},
	} {
		three := &paged{pages: 3}
		if n, err := read(on(t, three)); err != nil || n != 3 || !slices.Equal(three.asked, []string{"", "2", "3"}) {
			t.Errorf("%s: %d, %v; asked for the pages %q", what, n, err, three.asked)
		}
		endless := &paged{}
		if _, err := read(on(t, endless)); err == nil || !strings.Contains(err.Error(), "describe "+what+": more than 100 pages") || len(endless.asked) != 100 {
			t.Errorf("%s without an end: %v after %d pages", what, err, len(endless.asked))
		}
	}
}

func TestARefusedReadIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Fail, Code: "UnauthorizedOperation", Count: -1}}})
		for action, read := range map[string]func() error{
			"DescribeNetworkInterfaces": func() error { _, err := w.Seen(t.Context(), w.instance, nil, true); return err },
			"DescribeSubnets":           func() error { _, err := w.Subnets(t.Context(), "vpc-1", region+"a"); return err },
			"DescribeRouteTables":       func() error { _, _, err := w.RouteTables(t.Context(), "vpc-1"); return err },
			"DescribeInstanceTypes":     func() error { _, err := w.InstanceLimits(t.Context(), "m5.large"); return err },
		} {
			before := w.wire.count(action)
			if err := read(); !ec2.IsUnpermitted(err) || ec2.Code(err) != "UnauthorizedOperation" {
				t.Errorf("%s: %v", action, err)
			}
			if n := w.wire.count(action) - before; n != 1 {
				t.Errorf("%s was called %d times", action, n)
			}
			// The agent works without the route tables.
			if r, ok := w.LastRefusal(); ok && r.Action == "DescribeRouteTables" {
				t.Errorf("kept as the last refusal: %v", r.Error)
			}
		}
	})
}

// EC2 answers an id that it does not show by an empty list in some replies.
func TestAnInterfaceThatADescriptionLeavesOutIsNotFound(t *testing.T) {
	_, err := on(t, partial{}).Interface(t.Context(), "eni-7")
	if !ec2.IsNotFound(err) || !strings.Contains(err.Error(), "The networkInterface ID 'eni-7' does not exist") {
		t.Errorf("%v", err)
	}
}

func TestADescriptionIsReadWhole(t *testing.T) {
	api := partial{
		interfaces: []types.NetworkInterface{described("eni-2", 2, func(n *types.NetworkInterface) {
			n.InterfaceType, n.Description, n.VpcId, n.AvailabilityZone = "", aws.String("for pods"), aws.String("vpc-1"), aws.String("zone-a")
			n.RequesterId = aws.String("AROA:i-1")
			n.Groups = []types.GroupIdentifier{{GroupId: aws.String("sg-1")}, {GroupId: aws.String("sg-2")}}
			n.PrivateIpAddresses = append(n.PrivateIpAddresses, types.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String("10.0.0.6")},
				types.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String("ten")})
			n.Ipv4Prefixes = []types.Ipv4PrefixSpecification{{Ipv4Prefix: aws.String("10.0.0.16/28")}}
			n.Ipv6Prefixes = []types.Ipv6PrefixSpecification{{Ipv6Prefix: aws.String("2001:db8::/80")}}
			n.Attachment.NetworkCardIndex, n.Attachment.DeleteOnTermination = aws.Int32(1), aws.Bool(true)
			n.TagSet = []types.Tag{{Key: aws.String(vpc.TagCreatedAt), Value: aws.String("2026-03-01T12:00:00Z")}}
		})},
		subnets: []types.Subnet{{
			SubnetId: aws.String("subnet-1"), VpcId: aws.String("vpc-1"), AvailabilityZone: aws.String("zone-a"), CidrBlock: aws.String("10.0.0.0/24"),
			AvailableIpAddressCount: aws.Int32(7), State: types.SubnetStateAvailable, Tags: []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}},
		}},
	}
	mac, err := vpc.ParseMAC("02:00:00:00:00:01")
	if err != nil {
		t.Fatal(err)
	}
	want := ec2.Interface{
		ID: "eni-2", Type: vpc.TypeInterface, Status: "in-use", Description: "for pods", Subnet: "subnet-1", VPC: "vpc-1", Zone: "zone-a", MAC: mac,
		Primary: netip.MustParseAddr("10.0.0.5"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.6")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.16/28"), netip.MustParsePrefix("2001:db8::/80")},
		Groups:   []vpc.SecurityGroupID{"sg-1", "sg-2"}, Tags: map[string]string{vpc.TagCreatedAt: "2026-03-01T12:00:00Z"}, Requester: "AROA:i-1",
		Attachment: &ec2.Attachment{ID: "a", Instance: "i-1", Card: 1, Device: 2, Status: "attached", DeleteOnTermination: true},
		Unreadable: []string{`private address: ParseAddr("ten"): unable to parse IP`},
	}
	subnet := ec2.Subnet{ID: "subnet-1", VPC: "vpc-1", Zone: "zone-a", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Free: 7, Tags: map[string]string{"k": "v"}}
	x := on(t, api)
	found, err := x.Interfaces(t.Context(), "i-1")
	if diff := cmp.Diff([]ec2.Interface{want}, found, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("interface: %v (-want +got):\n%s", err, diff)
	}
	subnets, err := x.Subnets(t.Context(), "vpc-1", "zone-a")
	if diff := cmp.Diff([]ec2.Subnet{subnet}, subnets, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" || err != nil {
		t.Errorf("subnet: %v (-want +got):\n%s", err, diff)
	}
	if at := want.Created(); !at.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) || !(ec2.Interface{}).Created().IsZero() {
		t.Errorf("created at %s", at)
	}
}

// kinds is EC2 with descriptions of instance types.
type kinds struct {
	ec2.API
	types []types.InstanceTypeInfo
}

func (k kinds) DescribeInstanceTypes(context.Context, *sdk.DescribeInstanceTypesInput, ...func(*sdk.Options)) (*sdk.DescribeInstanceTypesOutput, error) {
	return &sdk.DescribeInstanceTypesOutput{InstanceTypes: k.types}, nil
}

func TestTheLimitsOfAnInstanceTypeAreThoseOfItsDefaultCard(t *testing.T) {
	card := func(index, interfaces int32) types.NetworkCardInfo {
		return types.NetworkCardInfo{NetworkCardIndex: aws.Int32(index), MaximumNetworkInterfaces: aws.Int32(interfaces)}
	}
	of := func(all, addresses int32, cards ...types.NetworkCardInfo) types.InstanceTypeInfo {
		return types.InstanceTypeInfo{
			BareMetal: aws.Bool(true), Hypervisor: types.InstanceTypeHypervisorNitro,
			NetworkInfo: &types.NetworkInfo{
				MaximumNetworkInterfaces: aws.Int32(all), Ipv4AddressesPerInterface: aws.Int32(addresses), Ipv6AddressesPerInterface: aws.Int32(9), NetworkCards: cards,
			},
		}
	}
	valid := func(interfaces, cards int) vpc.Limits {
		return vpc.Limits{ENIs: interfaces, IPv4: 15, IPv6: 9, BareMetal: true, Nitro: true, Cards: cards}
	}
	for name, c := range map[string]struct {
		types []types.InstanceTypeInfo
		want  vpc.Limits
		err   string
	}{
		"one card":                  {[]types.InstanceTypeInfo{of(4, 15)}, valid(4, 1), ""},
		"two cards":                 {[]types.InstanceTypeInfo{of(6, 15, card(1, 4), card(0, 2))}, valid(2, 2), ""},
		"a card without a limit":    {[]types.InstanceTypeInfo{of(6, 15, types.NetworkCardInfo{NetworkCardIndex: aws.Int32(0)})}, valid(6, 1), ""},
		"one interface":             {[]types.InstanceTypeInfo{of(1, 15)}, valid(1, 1), ""},
		"one address":               {[]types.InstanceTypeInfo{of(4, 1)}, vpc.Limits{ENIs: 4, IPv4: 1, IPv6: 9, BareMetal: true, Nitro: true, Cards: 1}, ""},
		"no description":            {nil, vpc.Limits{}, "EC2 returned none"},
		"two descriptions":          {[]types.InstanceTypeInfo{of(4, 15), of(4, 15)}, vpc.Limits{}, "EC2 returned none"},
		"no network in it":          {[]types.InstanceTypeInfo{{}}, vpc.Limits{}, "EC2 returned none"},
		"no interfaces":             {[]types.InstanceTypeInfo{of(0, 15)}, vpc.Limits{}, "0 interfaces with 15 addresses"},
		"no addresses":              {[]types.InstanceTypeInfo{of(4, 0)}, vpc.Limits{}, "4 interfaces with 0 addresses"},
		"no slot on the first card": {[]types.InstanceTypeInfo{of(4, 15, card(0, 0))}, vpc.Limits{}, "0 interfaces with 15 addresses"},
	} {
		got, err := on(t, kinds{types: c.types}).InstanceLimits(t.Context(), "x.large")
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, got, err, c.want, c.err)
		}
	}
}

// garbled is EC2 with replies that cannot be read, although the calls had their effect.
type garbled struct {
	ec2.API
	create func(*sdk.CreateNetworkInterfaceOutput)
	assign func(*sdk.AssignPrivateIpAddressesOutput)
}

func (g garbled) CreateNetworkInterface(ctx context.Context, in *sdk.CreateNetworkInterfaceInput, more ...func(*sdk.Options)) (*sdk.CreateNetworkInterfaceOutput, error) {
	out, err := g.API.CreateNetworkInterface(ctx, in, more...)
	if err == nil && g.create != nil {
		g.create(out)
	}
	return out, err
}

func (g garbled) AssignPrivateIpAddresses(ctx context.Context, in *sdk.AssignPrivateIpAddressesInput, more ...func(*sdk.Options)) (*sdk.AssignPrivateIpAddressesOutput, error) {
	out, err := g.API.AssignPrivateIpAddresses(ctx, in, more...)
	if err == nil && g.assign != nil {
		g.assign(out)
	}
	return out, err
}

func TestTheEffectOfACallIsFoundIfItsReplyCannotBeRead(t *testing.T) {
	for name, g := range map[string]garbled{
		"no interface": {create: func(out *sdk.CreateNetworkInterfaceOutput) { out.NetworkInterface = nil }},
		"no id":        {create: func(out *sdk.CreateNetworkInterfaceOutput) { out.NetworkInterface.NetworkInterfaceId = nil }},
		"no MAC":       {create: func(out *sdk.CreateNetworkInterfaceOutput) { out.NetworkInterface.MacAddress = nil }},
		"no address":   {assign: func(out *sdk.AssignPrivateIpAddressesOutput) { out.AssignedPrivateIpAddresses = nil }},
		"an address of text": {assign: func(out *sdk.AssignPrivateIpAddressesOutput) {
			out.AssignedPrivateIpAddresses[1].PrivateIpAddress = aws.String("ten")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, func(o *ec2.Options) {
					g.API = o.Clients.Kept
					o.Clients.Kept = g
				})
				made := w.do(w.createAction(2))
				assigned := w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: made.ENI, Count: 3, Held: made.Addresses})
				all := w.all()
				if len(all) != 1 || all[0].ID != made.ENI || all[0].MAC != made.MAC || all[0].Primary != made.PrimaryIP {
					t.Fatalf("created %+v, EC2 has %+v", made, all)
				}
				if want := slices.Concat(made.Addresses, assigned.Addresses); len(want) != 5 || !slices.Equal(all[0].Addresses, want) {
					t.Errorf("EC2 has %v, the outcomes %v", all[0].Addresses, want)
				}
			})
		})
	}
}

func TestANewInterfaceIsDescribedByItsAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		a := w.withID(cloud.Node{Instance: w.instance, Cluster: "lab"}.Complete(cloud.Action{
			Kind: cloud.CreateENI, Subnet: w.subnet, Groups: []vpc.SecurityGroupID{w.group}, Count: 2,
		}, time.Now()))
		out, err := w.Do(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		got := w.describe(out.ENI)
		if got.Description != a.Description || got.Description == "" || got.Subnet != w.subnet || len(got.Addresses) != 2 || !slices.Equal(got.Groups, a.Groups) {
			t.Errorf("EC2 has %+v", got)
		}
		want := map[string]string{vpc.TagIntent: string(a.ID)}
		for k, v := range a.Tags {
			want[k] = v
		}
		if diff := cmp.Diff(want, got.Tags); diff != "" || len(a.Tags) == 0 {
			t.Errorf("tags (-want +got):\n%s", diff)
		}
		if !slices.Equal(out.Groups, got.Groups) || out.MAC != got.MAC || out.PrimaryIP != got.Primary || !slices.Equal(out.Addresses, got.Addresses) {
			t.Errorf("outcome %+v", out)
		}
		// The id of an action is its client token: the call can be repeated.
		again, err := w.Recover(t.Context(), withBegan(a))
		if err != nil || again.ENI != out.ENI {
			t.Errorf("recovered %+v, %v", again, err)
		}
		if found := w.all(); len(found) != 1 {
			t.Errorf("%d interfaces", len(found))
		}
	})
}

func withBegan(a cloud.Action) cloud.Action {
	a.Began = time.Now()
	return a
}

func TestAnExecutorNeedsAClientAndALog(t *testing.T) {
	for name, o := range map[string]ec2.Options{
		"no client": {Log: slog.New(slog.DiscardHandler)}, "no log": {Clients: ec2.Clients{Kept: partial{}}},
	} {
		if x, err := ec2.NewExecutor(o); err == nil || x != nil {
			t.Errorf("%s: %v, %v", name, x, err)
		}
	}
}

// Without a second client a read that hangs is sent again by the first.
func TestWithoutASecondClientReadsAreSentAgainByTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *ec2.Options) { o.Clients.Fresh = nil })
		w.set(faults.Plan{Calls: []faults.Call{{Action: "DescribeNetworkInterfaces", Do: faults.Hang}}})
		before := w.wire.count("DescribeNetworkInterfaces")
		if found, err := w.Interfaces(t.Context(), w.instance); err != nil || len(found) != 1 {
			t.Errorf("interfaces = %v, %v", found, err)
		}
		if n := w.wire.count("DescribeNetworkInterfaces") - before; n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
	})
}

func TestAThrottledReadEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.boot(func(o *ec2.Options) { o.ReadTimeout, o.FirstPause, o.Tries = time.Second, 10*time.Second, 100 })
		w.set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Fail, Code: "RequestLimitExceeded", Count: -1}}})
		began := time.Now()
		if _, err := w.Interfaces(t.Context(), w.instance); !ec2.IsThrottled(err) {
			t.Errorf("%v, want that it is throttled", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %s, want four times the time of a read", took)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := w.Interfaces(ctx, w.instance); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "attachment.instance-id="+string(w.instance)) {
			t.Errorf("the caller's context ended: %v", err)
		}
		synctest.Wait()
		time.Sleep(time.Minute) // for the read that others may have joined
	})
}
