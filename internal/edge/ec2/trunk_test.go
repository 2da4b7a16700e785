package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

// trunks is the controller's executor on the embedded EC2, of an account that may make the trunk
// calls.
type trunks struct {
	*world
	ec2.Trunks
	carrier vpc.ENIID // a trunk that is attached
}

func onTrunks(t *testing.T, f func(w *trunks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &trunks{world: startWith(t, func(s *simcloud.Spec) {
			s.Quotas.TrunkCalls = true
			s.Groups = append(s.Groups, simcloud.GroupSpec{Name: "web", Description: "web"})
		})}
		w.Trunks = ec2.Trunks{Executor: w.world.Executor, Cluster: "c"}
		w.carrier = w.act(w.action("trunk", trunk.Action{Kind: trunk.CreateTrunk, Subnet: w.subnet, Groups: trunk.NewGroups(w.group)})).ENI
		w.act(w.action("attach", trunk.Action{Kind: trunk.AttachTrunk, ENI: w.carrier, Device: 3}))
		f(w)
	})
}

func (w *trunks) action(id string, a trunk.Action) trunk.Action {
	a.ID, a.Instance, a.Began = cloud.ActionID(id), w.instance, time.Now()
	return a
}

func (w *trunks) act(a trunk.Action) trunk.Outcome {
	w.t.Helper()
	out, err := w.Trunks.Do(w.t.Context(), a, false)
	if err != nil {
		w.t.Fatalf("%s: %v", a, err)
	}
	return out
}

func (w *trunks) create(id string) trunk.Action {
	return w.action(id, trunk.Action{Kind: trunk.CreateBranch, Subnet: w.subnet, Groups: trunk.NewGroups(w.group)})
}

func (w *trunks) associate(id string, eni vpc.ENIID, vlan int) trunk.Action {
	return w.action(id, trunk.Action{Kind: trunk.Associate, ENI: eni, Trunk: w.carrier, VLAN: vlan})
}

// branches are the interfaces with the tags of trunks and branches.
func (w *trunks) seen() trunk.Observation {
	w.t.Helper()
	of, err := w.Associations(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	o, skipped, err := w.Branches(w.t.Context(), w.instance, of)
	if err != nil || len(skipped) > 0 {
		w.t.Fatalf("%v, skipped %v", err, skipped)
	}
	return o
}

// Each try of an action that has been completed has the outcome of the first one, with the client
// token and after EC2 has forgotten it.
func TestARepeatedActionOfABranchHasTheSameOutcome(t *testing.T) {
	for _, later := range []time.Duration{time.Second, 2 * time.Hour} {
		t.Run(later.String(), func(t *testing.T) {
			onTrunks(t, func(w *trunks) {
				again := func(a trunk.Action) trunk.Outcome {
					w.t.Helper()
					first := w.act(a)
					time.Sleep(later)
					second, err := w.Trunks.Do(w.t.Context(), a, true)
					if err != nil || fmt.Sprint(first) != fmt.Sprint(second) {
						w.t.Fatalf("%s: first %+v, again %+v, %v", a, first, second, err)
					}
					return first
				}
				b := again(w.create("b-1"))
				again(w.action("tag-1", trunk.Action{Kind: trunk.TagBranch, ENI: b.ENI, Trunk: w.carrier, VLAN: 7}))
				as := again(w.associate("as-1", b.ENI, 7))
				again(w.action("groups-1", trunk.Action{Kind: trunk.SetGroups, ENI: b.ENI, Groups: trunk.NewGroups(w.group)}))
				again(w.action("attach", trunk.Action{Kind: trunk.AttachTrunk, ENI: w.carrier, Device: 3}))
				o := w.seen()
				if len(o.Interfaces) != 2 || !o.Complete {
					w.t.Fatalf("EC2 has %+v", o)
				}
				for _, i := range o.Interfaces {
					switch i.ENI {
					case b.ENI:
						if i.Association != as.Association || i.VLAN != 7 || i.Intent != "b-1" || i.IPv4 != b.IPv4 || i.MAC != b.MAC {
							w.t.Errorf("branch %+v, association %s", i, as.Association)
						}
					case w.carrier:
						if i.Device != 3 || i.Type != vpc.TypeTrunk {
							w.t.Errorf("trunk %+v", i)
						}
					}
				}
				again(w.action("dis-1", trunk.Action{Kind: trunk.Disassociate, ENI: b.ENI, Association: as.Association, VLAN: 7}))
				again(w.action("del-1", trunk.Action{Kind: trunk.DeleteBranch, ENI: b.ENI}))
				if o := w.seen(); len(o.Interfaces) != 1 {
					w.t.Errorf("EC2 has %+v", o.Interfaces)
				}
			})
		})
	}
}

// A try without a reply has an unknown outcome, and the next one finds the effect of the first.
func TestATryWithoutAReplyIsNotASecondInterface(t *testing.T) {
	onTrunks(t, func(w *trunks) {
		lose := func(action string) {
			w.wire.cut(nil, func(a string) error {
				if a == action {
					return errCut
				}
				return nil
			})
		}
		try := func(a trunk.Action, call string) trunk.Outcome {
			w.t.Helper()
			lose(call)
			_, err := w.Trunks.Do(w.t.Context(), a, false)
			if f := ec2.TrunkFailure(err); err == nil || f.Definite || f.Reason != trunk.FailOther {
				w.t.Fatalf("%s without a reply: %v, %+v", a, err, f)
			}
			w.wire.cut(nil, nil)
			out, err := w.Trunks.Do(w.t.Context(), a, true)
			if err != nil {
				w.t.Fatalf("%s again: %v", a, err)
			}
			return out
		}
		b := try(w.create("b-1"), "CreateNetworkInterface")
		as := try(w.associate("as-1", b.ENI, 7), "AssociateTrunkInterface")
		try(w.action("dis-1", trunk.Action{Kind: trunk.Disassociate, ENI: b.ENI, Association: as.Association}), "DisassociateTrunkInterface")
		second := try(w.action("t-2", trunk.Action{Kind: trunk.CreateTrunk, Subnet: w.subnet, Groups: trunk.NewGroups(w.group)}), "CreateNetworkInterface")
		try(w.action("a-2", trunk.Action{Kind: trunk.AttachTrunk, ENI: second.ENI, Device: 2}), "AttachNetworkInterface")
		if i := w.describe(second.ENI); i.Attachment == nil || !i.Attachment.DeleteOnTermination {
			w.t.Errorf("%+v, want deletion with the instance", i.Attachment)
		}
		try(w.action("del-1", trunk.Action{Kind: trunk.DeleteBranch, ENI: b.ENI}), "DeleteNetworkInterface")
		if n := len(w.seen().Interfaces); n != 2 {
			w.t.Errorf("%d interfaces, want the two trunks", n)
		}
	})
}

// A deletion that had its effect without a reply is repeated. EC2 may deny the repetition, because
// the permission depends on a tag that the interface had.
func TestADeniedDeletionOfAnInterfaceThatIsGoneIsDone(t *testing.T) {
	onTrunks(t, func(w *trunks) {
		gone, stays := w.act(w.create("b-1")).ENI, w.act(w.create("b-2")).ENI
		w.act(w.action("del-1", trunk.Action{Kind: trunk.DeleteBranch, ENI: gone}))
		w.set(faults.Plan{Calls: []faults.Call{{Action: "DeleteNetworkInterface", Do: faults.Fail, Code: "UnauthorizedOperation", Status: 403, Count: -1}}})
		for _, c := range []struct {
			eni   vpc.ENIID
			again bool
			done  bool
		}{{gone, true, true}, {gone, false, false}, {stays, true, false}} {
			_, err := w.Trunks.Do(w.t.Context(), w.action("del", trunk.Action{Kind: trunk.DeleteBranch, ENI: c.eni}), c.again)
			if (err == nil) != c.done || err != nil && ec2.Code(err) != "UnauthorizedOperation" {
				w.t.Errorf("delete %s, again %v: %v, done %v is wanted", c.eni, c.again, err, c.done)
			}
		}
	})
}

func TestEC2sErrorsAreTheReasonsOfThePlan(t *testing.T) {
	onTrunks(t, func(w *trunks) {
		one, two := w.act(w.create("b-1")).ENI, w.act(w.create("b-2")).ENI
		w.act(w.associate("as-1", one, 7))
		const none = vpc.ENIID("eni-0123456789abcdef0")
		unknown := w.create("b-3")
		unknown.Groups = trunk.NewGroups("sg-0123456789abcdef0")
		many := w.create("b-4")
		for n := range 6 {
			many.Groups = append(many.Groups, vpc.SecurityGroupID(fmt.Sprintf("sg-0123456789abcde%02d", n)))
		}
		spare := w.act(w.action("t-2", trunk.Action{Kind: trunk.CreateTrunk, Subnet: w.subnet, Groups: trunk.NewGroups(w.group)})).ENI
		for _, c := range []struct {
			a    trunk.Action
			want trunk.Reason
		}{
			{unknown, trunk.FailGroups},
			{many, trunk.FailGroups},
			{w.action("g", trunk.Action{Kind: trunk.SetGroups, ENI: one, Groups: unknown.Groups}), trunk.FailGroups},
			{w.associate("as-2", two, 7), trunk.FailVLAN},
			{w.associate("as-3", none, 8), trunk.FailNotFound},
			{w.associate("as-4", one, 8), trunk.FailOther}, // it is associated under VLAN 7
			{w.action("tag", trunk.Action{Kind: trunk.TagBranch, ENI: none, Trunk: w.carrier, VLAN: 8}), trunk.FailNotFound},
			{w.action("at", trunk.Action{Kind: trunk.AttachTrunk, ENI: spare, Device: 3}), trunk.FailDevice},
			{w.action("del", trunk.Action{Kind: trunk.DeleteBranch, ENI: one}), trunk.FailOther}, // in use
			{w.action("local", trunk.Action{Kind: trunk.Release, Pod: "p"}), trunk.FailOther},
		} {
			_, err := w.Trunks.Do(w.t.Context(), c.a, false)
			if f := ec2.TrunkFailure(err); err == nil || f.Reason != c.want || !f.Definite || f.Message == "" {
				w.t.Errorf("%s: %v: %+v, want %s", c.a, err, f, c.want)
			}
		}
		for n := 8; ; n++ { // up to the limit of an m5.xlarge
			eni := w.act(w.create(fmt.Sprintf("more-%d", n))).ENI
			_, err := w.Trunks.Do(w.t.Context(), w.associate(fmt.Sprintf("as-%d", n), eni, n), false)
			if err == nil && n < 30 {
				continue
			}
			if f := ec2.TrunkFailure(err); n != 25 || f.Reason != trunk.FailLimit || !f.Definite {
				w.t.Errorf("branch %d: %v, %+v", n-6, err, f)
			}
			return
		}
	})
}

func TestAFullSubnetAndAThrottledCall(t *testing.T) {
	onTrunks(t, func(w *trunks) {
		tiny := vpc.SubnetID("")
		subnets, err := w.world.Subnets(w.t.Context(), w.describe(w.carrier).VPC, region+"a")
		if err != nil {
			w.t.Fatal(err)
		}
		for _, n := range subnets {
			if n.Addresses() == 11 {
				tiny = n.ID
			}
		}
		for n := 0; ; n++ {
			a := w.create(fmt.Sprintf("b-%d", n))
			a.Subnet = tiny
			_, err := w.Trunks.Do(w.t.Context(), a, false)
			if err == nil && n < 20 {
				continue
			}
			if f := ec2.TrunkFailure(err); n != 11 || f.Reason != trunk.FailSubnet || !f.Definite {
				w.t.Errorf("interface %d of 11: %v, %+v", n+1, err, f)
			}
			break
		}
		throttled := &ec2.Error{Action: "CreateTags", Code: "RequestLimitExceeded", Status: 503}
		if f := ec2.TrunkFailure(throttled); f.Reason != trunk.FailThrottled || !f.Definite {
			w.t.Errorf("%+v", f)
		}
		if f := ec2.TrunkFailure(&ec2.Error{Action: "CreateTags", Code: "InternalError", Status: 500}); f.Definite {
			w.t.Errorf("an error inside EC2 is definite: %+v", f)
		}
	})
}

func TestTheBrakesOfTheExecutorStopBranches(t *testing.T) {
	onTrunks(t, func(w *trunks) {
		b := w.act(w.create("b-1")).ENI
		w.world.SetBrake(cloud.FreezeRelease, "test")
		for _, c := range []struct {
			a    trunk.Action
			stop bool
		}{{w.create("b-2"), false}, {w.action("d", trunk.Action{Kind: trunk.DeleteBranch, ENI: b}), true}} {
			_, err := w.Trunks.Do(w.t.Context(), c.a, false)
			if errors.Is(err, ec2.ErrFrozen) != c.stop || c.stop && !ec2.TrunkFailure(err).Definite {
				w.t.Errorf("%s: %v", c.a, err)
			}
		}
	})
}

// twoPages serves two branches on two pages, and one that cannot be read.
type twoPages struct{ ec2.API }

func (p twoPages) DescribeNetworkInterfaces(_ context.Context, in *sdk.DescribeNetworkInterfacesInput, _ ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	branch := func(id, mac string) types.NetworkInterface {
		return types.NetworkInterface{
			NetworkInterfaceId: aws.String(id), MacAddress: aws.String(mac), InterfaceType: types.NetworkInterfaceTypeBranch,
			PrivateIpAddresses: []types.NetworkInterfacePrivateIpAddress{{PrivateIpAddress: aws.String("10.0.0.9"), Primary: aws.Bool(true)}},
		}
	}
	if aws.ToString(in.NextToken) == "" {
		return &sdk.DescribeNetworkInterfacesOutput{NextToken: aws.String("2"), NetworkInterfaces: []types.NetworkInterface{branch("eni-01234567", "02:00:00:00:00:01"), branch("eni-odd", "no MAC")}}, nil
	}
	return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: []types.NetworkInterface{branch("eni-89abcdef", "02:00:00:00:00:02")}}, nil
}

func (p twoPages) DescribeTrunkInterfaceAssociations(_ context.Context, in *sdk.DescribeTrunkInterfaceAssociationsInput, _ ...func(*sdk.Options)) (*sdk.DescribeTrunkInterfaceAssociationsOutput, error) {
	one := func(id string, vlan int32) []types.TrunkInterfaceAssociation {
		return []types.TrunkInterfaceAssociation{{AssociationId: aws.String("trunk-assoc-" + id), BranchInterfaceId: aws.String("eni-" + id), TrunkInterfaceId: aws.String("eni-t"), VlanId: aws.Int32(vlan)}}
	}
	if aws.ToString(in.NextToken) == "" {
		return &sdk.DescribeTrunkInterfaceAssociationsOutput{NextToken: aws.String("2"), InterfaceAssociations: one("01234567", 1)}, nil
	}
	return &sdk.DescribeTrunkInterfaceAssociationsOutput{InterfaceAssociations: one("89abcdef", 2)}, nil
}

// manyPages has a page of associations for each branch, of which each takes as long as at EC2.
type manyPages struct {
	twoPages
	pages int
	wait  func()
}

func (p manyPages) DescribeTrunkInterfaceAssociations(_ context.Context, in *sdk.DescribeTrunkInterfaceAssociationsInput, _ ...func(*sdk.Options)) (*sdk.DescribeTrunkInterfaceAssociationsOutput, error) {
	p.wait()
	at, _ := strconv.Atoi(aws.ToString(in.NextToken)) // 0 without one
	out := &sdk.DescribeTrunkInterfaceAssociationsOutput{InterfaceAssociations: []types.TrunkInterfaceAssociation{{
		AssociationId: aws.String("trunk-assoc-1"), BranchInterfaceId: aws.String(fmt.Sprintf("eni-%08x", at)), TrunkInterfaceId: aws.String("eni-t"), VlanId: aws.Int32(1),
	}}}
	if at+1 < p.pages {
		out.NextToken = aws.String(strconv.Itoa(at + 1))
	}
	return out, nil
}

// A listing may take longer than one read, and each of its pages is counted by the budget.
func TestAListingOfManyAssociationsIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := manyPages{pages: 400, wait: func() { time.Sleep(300 * time.Millisecond) }}
		x, err := ec2.NewExecutor(ec2.Options{
			Clients: ec2.Clients{Kept: api}, Log: slog.New(slog.DiscardHandler), Budget: func(string) ec2.Budget { return ec2.Budget{PerSecond: 2, Burst: 10} },
		})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		of, err := ec2.Trunks{Executor: x}.Associations(t.Context())
		if err != nil || of.Len() != 400 || !of.At.Equal(began) {
			t.Errorf("%d associations since %s, %v; want 400 since %s", of.Len(), of.At, err, began)
		}
		if took := time.Since(began); took < 390*time.Second/2 {
			t.Errorf("the pages took %s: they are faster than the budget", took)
		}
	})
}

// One odd interface does not keep the others from being observed, and the observation does not
// show that anything is absent.
func TestAnOddInterfaceIsSkippedAndReported(t *testing.T) {
	x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: twoPages{}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	of, err := ec2.Trunks{Executor: x}.Associations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, skipped, err := ec2.Trunks{Executor: x}.Branches(t.Context(), "i-1", of)
	if err != nil || o.Complete || len(o.Interfaces) != 2 || o.Interfaces[0].VLAN != 1 || o.Interfaces[1].VLAN != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if len(skipped) != 1 || skipped[0].Object != "interface eni-odd" || skipped[0].Why == "" {
		t.Errorf("skipped %v", skipped)
	}
}

func TestTheGroupsThatExistAreReadWithTheirVPC(t *testing.T) {
	onTrunks(t, func(w *trunks) {
		got, err := w.Groups(w.t.Context(), []string{string(w.group), "sg-0123456789abcdef0", string(w.group)})
		if err != nil || len(got) != 1 || got[string(w.group)] != w.describe(w.carrier).VPC {
			w.t.Errorf("%v, %v", got, err)
		}
		h, err := w.Host(w.t.Context(), w.instance)
		if err != nil || h.Subnet.ID != w.subnet || !slices.Equal(h.Devices, []int{0}) || !h.Groups.Equal(trunk.NewGroups(w.group)) {
			w.t.Errorf("%+v, %v", h, err)
		}
		for id, want := range map[vpc.InstanceID]bool{w.instance: true, "i-0123456789abcdef0": false} {
			if got, stopped, err := w.Exists(w.t.Context(), id); err != nil || got != want || stopped {
				w.t.Errorf("%s exists: %v, %v", id, got, err)
			}
		}
	})
}
