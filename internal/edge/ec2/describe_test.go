package ec2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// describing is EC2 with functions for some of its calls.
type describing struct {
	API
	interfaces func(context.Context, *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error)
	tables     func(*ec2.DescribeRouteTablesInput) []types.RouteTable
	kinds      []types.InstanceTypeInfo
	created    *types.NetworkInterface
	assigned   []types.AssignedPrivateIpAddress
}

func (d describing) DescribeNetworkInterfaces(ctx context.Context, in *ec2.DescribeNetworkInterfacesInput, _ ...func(*ec2.Options)) (*ec2.DescribeNetworkInterfacesOutput, error) {
	found, err := d.interfaces(ctx, in)
	return &ec2.DescribeNetworkInterfacesOutput{NetworkInterfaces: found}, err
}

func (d describing) DescribeRouteTables(_ context.Context, in *ec2.DescribeRouteTablesInput, _ ...func(*ec2.Options)) (*ec2.DescribeRouteTablesOutput, error) {
	return &ec2.DescribeRouteTablesOutput{RouteTables: d.tables(in)}, nil
}

func (d describing) DescribeInstanceTypes(context.Context, *ec2.DescribeInstanceTypesInput, ...func(*ec2.Options)) (*ec2.DescribeInstanceTypesOutput, error) {
	return &ec2.DescribeInstanceTypesOutput{InstanceTypes: d.kinds}, nil
}

func (d describing) CreateNetworkInterface(context.Context, *ec2.CreateNetworkInterfaceInput, ...func(*ec2.Options)) (*ec2.CreateNetworkInterfaceOutput, error) {
	return &ec2.CreateNetworkInterfaceOutput{NetworkInterface: d.created}, nil
}

func (d describing) AssignPrivateIpAddresses(context.Context, *ec2.AssignPrivateIpAddressesInput, ...func(*ec2.Options)) (*ec2.AssignPrivateIpAddressesOutput, error) {
	return &ec2.AssignPrivateIpAddressesOutput{AssignedPrivateIpAddresses: d.assigned}, nil
}

// on returns an executor; its EC2 shows these interfaces, or answers with an error.
func on(t *testing.T, err error, found ...types.NetworkInterface) *Executor {
	t.Helper()
	x := executorOf(t, Options{Tries: 1})
	x.o.Clients.Kept = describing{interfaces: func(context.Context, *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error) {
		return found, err
	}}
	return x
}

// shown is an interface with secondary addresses.
func shown(id string, secondary ...string) types.NetworkInterface {
	n := types.NetworkInterface{NetworkInterfaceId: aws.String(id), MacAddress: aws.String("02:00:00:00:00:01")}
	for _, a := range secondary {
		n.PrivateIpAddresses = append(n.PrivateIpAddresses, types.NetworkInterfacePrivateIpAddress{PrivateIpAddress: aws.String(a)})
	}
	return n
}

func TestAnObservationHasWhatEC2Describes(t *testing.T) {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	i := Interface{
		ID: "eni-1", Type: vpc.TypeInterface, Subnet: "subnet-2", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Primary: netip.MustParseAddr("10.0.2.9"),
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.10")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.2.16/28")},
		Groups: []vpc.SecurityGroupID{"sg-1"}, Requester: "AROA:i-2",
		Tags: map[string]string{
			vpc.TagInstanceID: "i-1", vpc.TagIntent: "act-1", vpc.TagCreatedAt: created.Format(time.RFC3339),
			vpc.TagManagedBy: vpc.ManagedBy, vpc.TagClusterName: "lab",
		},
		Attachment: &Attachment{ID: "eni-attach-1", Instance: "i-1", Device: 3, Status: "attached"},
	}
	subnets := []Subnet{
		{ID: "subnet-1", CIDR: netip.MustParsePrefix("10.0.1.0/24")},
		{ID: "subnet-2", CIDR: netip.MustParsePrefix("10.0.2.0/24")},
		{ID: "subnet-3", CIDR: netip.MustParsePrefix("10.0.3.0/24")},
	}
	node := cloud.Node{Instance: "i-1", Cluster: "lab"}
	want := ipam.Observed{
		ENI: ipam.ENI{
			ID: "eni-1", Type: vpc.TypeInterface, Device: 3, Attachment: "eni-attach-1", MAC: i.MAC, Subnet: "subnet-2", SubnetCIDR: subnets[1].CIDR,
			PrimaryIP: i.Primary, Groups: i.Groups, Prefixes: []ipam.Prefix{{CIDR: i.Prefixes[0]}}, Created: created,
		},
		Attached: true, NotOurs: "AROA:i-2 made it, and not the role of this instance", Intent: "act-1", Addresses: i.Addresses,
	}
	if got := ObservedOf(i, node, subnets); !reflect.DeepEqual(got, want) {
		t.Errorf("attached: %+v\nwant %+v", got, want)
	}
	i.Attachment, i.Requester, i.Tags[vpc.TagCreatedAt] = nil, "AROA:i-1", "yesterday"
	want.ENI.Device, want.ENI.Attachment, want.ENI.Created, want.Attached, want.NotOurs = -1, "", time.Time{}, false, ""
	if got := ObservedOf(i, node, subnets); !reflect.DeepEqual(got, want) {
		t.Errorf("not attached: %+v\nwant %+v", got, want)
	}
	if got := ObservedOf(i, node, subnets[:1]).ENI.SubnetCIDR; got.IsValid() {
		t.Errorf("of a subnet that is not described: %s", got)
	}
}

func TestASubnetWithoutATableOfItsOwnHasTheMainOne(t *testing.T) {
	all := []Subnet{{ID: "home"}, {ID: "other", Tags: map[string]string{vpc.TagSubnetRole: "1"}}}
	for main, want := range map[vpc.RouteTableID]bool{"rtb-1": true, "rtb-2": false} {
		got := SubnetsOf(all, "home", "lab", map[vpc.SubnetID]vpc.RouteTableID{"home": "rtb-1"}, main)
		if len(got) != 2 || got[1].SameRoutes != want {
			t.Errorf("main table %s: %+v, want the same routes %v", main, got, want)
		}
	}
}

func TestWhatCannotBeReadIsLeftOut(t *testing.T) {
	i := readInterface(types.NetworkInterface{
		MacAddress:   aws.String("02:00:00:00:00:01"),
		Ipv4Prefixes: []types.Ipv4PrefixSpecification{{Ipv4Prefix: aws.String("10.0.0")}, {Ipv4Prefix: aws.String("10.0.0.16/28")}},
	})
	if len(i.Prefixes) != 1 || len(i.Unreadable) != 1 {
		t.Errorf("prefixes %v, unreadable %q", i.Prefixes, i.Unreadable)
	}
	s := readSubnet(types.Subnet{SubnetId: aws.String("subnet-1"), CidrBlock: aws.String("10.0.0"), State: types.SubnetStatePending})
	if !strings.HasPrefix(s.Unusable, "its IPv4 range cannot be read") {
		t.Errorf("a pending subnet with an odd range: %q", s.Unusable)
	}
}

func TestTheLimitsAreThoseOfTheDefaultCard(t *testing.T) {
	card := func(index, most int32) types.NetworkCardInfo {
		return types.NetworkCardInfo{NetworkCardIndex: aws.Int32(index), MaximumNetworkInterfaces: aws.Int32(most)}
	}
	x := executorOf(t, Options{})
	x.o.Clients.Kept = describing{kinds: []types.InstanceTypeInfo{{NetworkInfo: &types.NetworkInfo{
		MaximumNetworkInterfaces: aws.Int32(7), Ipv4AddressesPerInterface: aws.Int32(10), NetworkCards: []types.NetworkCardInfo{card(0, 5), card(1, 2)},
	}}}}
	if got, err := x.InstanceLimits(t.Context(), "x1.large"); err != nil || got.ENIs != 5 || got.Cards != 2 || got.IPv4 != 10 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhatAnInterfaceThatIsShownMeansForItsAction(t *testing.T) {
	attachment := func(id vpc.AttachmentID, status string) Interface {
		return Interface{ID: "eni-1", Attachment: &Attachment{ID: id, Instance: "i-1", Status: status, Device: 3, DeleteOnTermination: true}}
	}
	denied := &Error{Action: "A", Code: "UnauthorizedOperation"}
	detach := cloud.Action{Kind: cloud.Detach, ENI: "eni-1", Attachment: "a"}
	attach := cloud.Action{Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1", Device: 1}
	for name, c := range map[string]struct {
		e                    execution
		shown                Interface
		late                 bool
		known, open, recheck bool
		err                  error
	}{
		"still attached":                          {execution{action: detach, open: true}, attachment("a", "attached"), true, false, false, false, nil},
		"still attached, and denied":              {execution{action: detach, denied: denied}, attachment("a", "attached"), false, true, false, false, denied},
		"detaching":                               {execution{action: detach}, attachment("a", "detaching"), false, true, false, false, nil},
		"another attachment that is detaching":    {execution{action: detach}, attachment("b", "detaching"), false, false, false, true, errStale},
		"not attached, perhaps not yet":           {execution{action: detach, open: true}, Interface{ID: "eni-1"}, false, false, true, true, errStale},
		"not attached any more":                   {execution{action: detach}, Interface{ID: "eni-1"}, true, true, false, false, nil},
		"attached, and deleted with its instance": {execution{action: attach, open: true}, attachment("a", "attached"), false, true, true, false, nil},
		"not attached yet":                        {execution{action: attach, open: true}, Interface{ID: "eni-1"}, false, false, false, false, nil},
		"not attached, and denied":                {execution{action: attach, denied: denied}, Interface{ID: "eni-1"}, true, true, false, false, denied},
		"not attached, and denied lately":         {execution{action: attach, denied: denied}, Interface{ID: "eni-1"}, false, false, false, false, nil},
	} {
		e := c.e
		e.x, e.started = executorOf(t, Options{}), time.Now() // without EC2: no call is needed
		out, known, err := e.compare(t.Context(), c.shown, c.late)
		if known != c.known || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || e.open != c.open || e.recheck != c.recheck {
			t.Errorf("%s: known %v, %v, open %v, recheck %v; want %v, %v, %v, %v", name, known, err, e.open, e.recheck, c.known, c.err, c.open, c.recheck)
		}
		if found := known && err == nil && e.action.Kind == cloud.Attach; found != (out.Attachment == "a" && out.Device == 3) {
			t.Errorf("%s: outcome %+v", name, out)
		}
	}
}

func TestAnInterfaceThatIsAttachedElsewhereIsNamed(t *testing.T) {
	e := &execution{x: &Executor{}, action: cloud.Action{Kind: cloud.Attach, ENI: "eni-1", Instance: "i-1"}}
	_, err := e.elsewhere(Interface{Attachment: &Attachment{Instance: "i-2"}})
	if want := "EC2 AttachNetworkInterface eni-1: InvalidNetworkInterface.InUse: it is attached to i-2"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A repetition was refused; the first call may have had its effect.
func TestARefusedRepetitionIsTheResultOnceADescribeCannotBeStale(t *testing.T) {
	refused := coded("InsufficientCidrBlocks", 400)
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			ago  time.Duration
			err  error
			want next
		}{
			"a describe that may be stale":    {10*time.Second - 1, nil, again},
			"a describe that cannot be stale": {10 * time.Second, nil, end},
			"a describe that failed":          {time.Minute, io.EOF, again},
		} {
			e := &execution{x: on(t, c.err), action: cloud.Action{ID: "act-1", Kind: cloud.CreateENI}, open: true, refused: refused, refusedAt: time.Now().Add(-c.ago)}
			e.x.o.Tries = 2
			_, next, err := e.check(t.Context())
			if next != c.want || next == end && !errors.Is(err, refused) {
				t.Errorf("%s: next %d, %v; want %d", name, next, err, c.want)
			}
		}
	})
}

func TestAddressesOfALostCallAreSearchedForTheWindow(t *testing.T) {
	action := cloud.Action{Kind: cloud.AssignAddresses, ENI: "eni-1", Count: 1, Held: []netip.Addr{netip.MustParseAddr("10.0.0.5")}, Recent: []netip.Addr{netip.MustParseAddr("10.0.0.6")}}
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			resumed     bool
			err         error
			found       []types.NetworkInterface
			known, open bool
			text        string        // of the error
			least, most time.Duration // of the search
		}{
			"the address is there":       {false, nil, []types.NetworkInterface{shown("eni-1", "10.0.0.5", "10.0.0.6", "10.0.0.7")}, true, true, "", 0, 0},
			"no address is new":          {false, nil, []types.NetworkInterface{shown("eni-1", "10.0.0.5", "10.0.0.6")}, false, false, "", 10 * time.Second, 15 * time.Second},
			"nor was one before a start": {true, nil, []types.NetworkInterface{shown("eni-1", "10.0.0.5")}, true, false, "EC2 AssignPrivateIpAddresses eni-1: " + CodeNotCarriedOut + ": it had no effect before the restart", 10 * time.Second, 15 * time.Second},
			"the interface is not there": {false, nil, nil, true, true, "InvalidNetworkInterfaceID.NotFound", 10 * time.Second, 15 * time.Second},
			"the describe is refused":    {false, refusal("UnauthorizedOperation"), nil, false, true, "UnauthorizedOperation", 0, 0},
		} {
			e := &execution{x: on(t, c.err, c.found...), action: action, open: true, resumed: c.resumed}
			began := time.Now()
			out, known, err := e.findAssigned(t.Context())
			took := time.Since(began)
			if known != c.known || e.open != c.open || (err != nil) != (c.text != "") || err != nil && !strings.Contains(err.Error(), c.text) || took < c.least || took > c.most {
				t.Errorf("%s: %+v, known %v, open %v, %v after %s; want %+v", name, out, known, e.open, err, took, c)
			}
			if name == "the address is there" && !slices.Equal(out.Addresses, []netip.Addr{netip.MustParseAddr("10.0.0.7")}) {
				t.Errorf("%s: %v", name, out.Addresses)
			}
		}
		ctx, end := context.WithTimeout(t.Context(), time.Millisecond)
		defer end()
		e := &execution{x: on(t, nil, shown("eni-1")), action: action, open: true}
		if _, known, err := e.findAssigned(ctx); known || !errors.Is(err, context.DeadlineExceeded) || !e.open {
			t.Errorf("the agent stops during a pause: known %v, %v, open %v", known, err, e.open)
		}
	})
}

func TestAReadIsRepeatedUntilItIsAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		calls int
	}{
		"no reply":      {io.EOF, 2},
		"no connection": {fmt.Errorf("%w: %w", errNoConnection, io.EOF), 2},
		"throttled":     {refusal("Throttling"), 2},
		"refused":       {refusal("UnauthorizedOperation"), 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			x := executorOf(t, Options{})
			x.o.Clients.Kept = describing{interfaces: func(context.Context, *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error) {
				if calls++; calls == 1 {
					return nil, c.err
				}
				return []types.NetworkInterface{shown("eni-1")}, nil
			}}
			if _, err := x.Interface(t.Context(), "eni-1"); (err == nil) != (c.calls == 2) || calls != c.calls {
				t.Errorf("%s: %v after %d calls, want %d", name, err, calls, c.calls)
			}
		})
	}
}

// The budget gives the next token after a time longer than that of one read.
func TestAReadWaitsForTheBudgetInSeveralTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := on(t, nil, shown("eni-1"))
		x.o.Tries, x.budgets = 8, newBudgets(func(string) Budget { return Budget{PerSecond: 1.0 / 30, Burst: 1} })
		for range 2 {
			if _, err := x.Interface(t.Context(), "eni-1"); err != nil {
				t.Error(err)
			}
		}
	})
}

// The call that hangs is ended, and over, before the read returns.
func TestAReadEndsTheCallThatItDoesNotNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, ended := prometheus.NewRegistry(), false
		x := executorOf(t, Options{Registry: registry})
		x.o.Clients.Kept = describing{interfaces: func(ctx context.Context, _ *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return nil, ctx.Err()
		}}
		x.o.Clients.Fresh = describing{interfaces: func(context.Context, *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error) {
			return []types.NetworkInterface{shown("eni-1")}, nil
		}}
		began := time.Now()
		_, err := x.Interface(t.Context(), "eni-1")
		if took := time.Since(began); err != nil || !ended || took != 3*time.Second {
			t.Errorf("%v after %s, the other call has ended: %v", err, took, ended)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "trunkline_ec2_hedged_reads_total" && f.GetMetric()[0].GetCounter().GetValue() == 1 {
				return
			}
		}
		t.Error("the second read is not counted")
	})
}

func TestAReadThatItsCallerEndsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := executorOf(t, Options{})
		x.o.Clients.Kept = describing{interfaces: func(ctx context.Context, _ *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		x.o.Clients.Fresh = x.o.Clients.Kept
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := x.Interface(ctx, "eni-1"); err == nil || !strings.HasPrefix(err.Error(), "EC2 DescribeNetworkInterfaces eni-1: ") {
			t.Errorf("%v", err)
		}
		time.Sleep(10 * time.Minute) // the read goes on for callers that have joined it
	})
}

func TestAMissingInterfaceIsNamedByItsID(t *testing.T) {
	_, err := on(t, nil).Interface(t.Context(), "eni-1")
	var e *Error
	if !errors.As(err, &e) || e.Action != "DescribeNetworkInterfaces" || e.Object != "eni-1" || !IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

func TestInterfacesAreOrderedByCardAndDevice(t *testing.T) {
	at := func(id string, card, device int32) types.NetworkInterface {
		n := shown(id)
		n.Attachment = &types.NetworkInterfaceAttachment{NetworkCardIndex: aws.Int32(card), DeviceIndex: aws.Int32(device)}
		return n
	}
	found, err := on(t, nil, at("d", 1, 0), at("c", 0, 2), at("a", 0, 0), at("b", 0, 1), at("e", 1, 1)).Interfaces(t.Context(), "i-1")
	order := ""
	for _, i := range found {
		order += string(i.ID)
	}
	if err != nil || order != "abcde" {
		t.Errorf("%s, %v", order, err)
	}
}

func TestReadsAskForWhatTheyNeed(t *testing.T) {
	x := executorOf(t, Options{})
	asked := ""
	x.o.Clients.Kept = describing{
		interfaces: func(_ context.Context, in *ec2.DescribeNetworkInterfacesInput) ([]types.NetworkInterface, error) {
			asked = fmt.Sprintf("%s, %d a page", describe(in.Filters), aws.ToInt32(in.MaxResults))
			return nil, nil
		},
		tables: func(in *ec2.DescribeRouteTablesInput) []types.RouteTable {
			asked = describe(in.Filters)
			return nil
		},
	}
	if _, err := x.Interfaces(t.Context(), "i-1"); err != nil || asked != "attachment.instance-id=i-1, 1000 a page" {
		t.Errorf("interfaces: %q, %v", asked, err)
	}
	if _, _, err := x.RouteTables(t.Context(), "vpc-1"); err != nil || asked != "vpc-id=vpc-1" {
		t.Errorf("route tables: %q, %v", asked, err)
	}
}

func TestARefusalThatIsRepeatedAfterItsTimeIsCountedFromOne(t *testing.T) {
	x, start := &Executor{o: Options{Log: slog.New(slog.DiscardHandler)}}, time.Now().Add(-40*time.Minute)
	denied := &Error{Action: "A", Object: "1", Code: "AuthFailure"}
	x.refused.note("A", "1", denied, start)
	x.refused.note("B", "2", nil, start.Add(refusalKept+1))
	x.refused.note("A", "1", denied, start.Add(refusalKept+2))
	if r, ok := x.LastRefusal(); !ok || r.Count != 1 {
		t.Errorf("%+v, %v; want one", r, ok)
	}
}

func TestAReplyThatLacksItsResultIsAnError(t *testing.T) {
	unnamed := shown("")
	unnamed.MacAddress = aws.String("x")
	create, assign := cloud.Action{Kind: cloud.CreateENI, Subnet: "subnet-1"}, cloud.Action{Kind: cloud.AssignAddresses, ENI: "eni-1"}
	odd := shown("eni-1")
	odd.MacAddress = aws.String("x")
	for want, c := range map[string]struct {
		action cloud.Action
		api    describing
	}{
		"EC2 CreateNetworkInterface: no reply: the reply holds no interface":                        {create, describing{}},
		"EC2 CreateNetworkInterface: no reply: the reply's interface cannot be read: MAC":           {create, describing{created: &unnamed}},
		"EC2 CreateNetworkInterface eni-1: no reply: the reply's interface cannot be read: MAC":     {create, describing{created: &odd}},
		"EC2 AssignPrivateIpAddresses eni-1: no reply: the reply holds no address":                  {assign, describing{}},
		"EC2 AssignPrivateIpAddresses eni-1: no reply: ParseAddr(\"10.0\"): IPv4 address too short": {assign, describing{assigned: []types.AssignedPrivateIpAddress{{PrivateIpAddress: aws.String("10.0")}}}},
	} {
		x := executorOf(t, Options{})
		x.o.Clients.Kept = c.api
		_, err := (&execution{x: x, sender: sender{x}, action: c.action}).send(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), want) || !isAmbiguous(err) {
			t.Errorf("%v, want %s, and that the effect may exist", err, want)
		}
	}
}

func TestARequestHasNoEmptyFields(t *testing.T) {
	if r := createRequest(cloud.Action{ID: "a", Subnet: "subnet-1"}); r.Description != nil || r.SecondaryPrivateIpAddressCount != nil || r.Groups != nil {
		t.Errorf("%+v", r)
	}
	r := createRequest(cloud.Action{ID: "a", Subnet: "subnet-1", Description: "d", Count: 1})
	if aws.ToString(r.Description) != "d" || aws.ToInt32(r.SecondaryPrivateIpAddressCount) != 1 || aws.ToString(r.ClientToken) != "a" {
		t.Errorf("%+v", r)
	}
}
