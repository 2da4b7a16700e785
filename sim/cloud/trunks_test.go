package cloud_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// trunkOn attaches a trunk to an instance.
func trunkOn(t testing.TB, c *cloud.Cloud, name string) *cloud.Interface {
	t.Helper()
	n := c.State().InstanceNamed(name)
	i := create(t, c, cloud.NewInterface{Subnet: n.Subnet, Type: vpc.TypeTrunk})
	a, err := c.Interface(i.ID).Attach(n.ID, 1, 0)
	if err == nil {
		err = c.FinishAttach(a.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func associate(c *cloud.Cloud, trunk, branch vpc.ENIID, vlan int) error {
	_, err := c.Interface(trunk).AssociateBranch(branch, vlan)
	return err
}

// branchOf makes an interface and associates it with a trunk.
func branchOf(t testing.TB, c *cloud.Cloud, trunk *cloud.Interface, vlan int) *cloud.Interface {
	t.Helper()
	i, err := c.Interface(trunk.ID).AssociateBranch(create(t, c, cloud.NewInterface{Subnet: trunk.Subnet}).ID, vlan)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestAnAssociatedInterfaceIsABranchInUseWithoutAnAttachment(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	trunk := trunkOn(t, c, "two")
	made := branchOf(t, c, trunk, 7)
	i := c.State().Interfaces[made.ID]
	if i.Type != vpc.TypeBranch || i.Status() != "in-use" || i.Attachment != nil || i.Trunk.Trunk != trunk.ID || i.Trunk.VLAN != 7 {
		t.Fatalf("%+v", i)
	}
	id := i.Trunk.ID
	if all := cloud.Branches(c.State()); len(all) != 1 || all[0].Trunk.ID != id {
		t.Errorf("associations %v, want %s", all, id)
	}
	if err := c.Interface(made.ID).Disassociate(id); err != nil {
		t.Fatal(err)
	}
	if i := c.State().Interfaces[made.ID]; i.Status() != "available" || i.Trunk != nil || len(cloud.Branches(c.State())) != 0 {
		t.Errorf("after the disassociation: %+v", i)
	}
	wantCode(t, c.Interface(made.ID).Disassociate(id), "InvalidAssociationID.NotFound", "The association ID '"+string(id)+"' does not exist")
	if err := associate(c, trunk.ID, made.ID, 7); err != nil {
		t.Errorf("associate again: %v", err)
	}
}

func TestGroupsOfAnAssociatedBranchAreModifiedLive(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	i := branchOf(t, c, trunkOn(t, c, "two"), 1)
	node := c.State().GroupNamed("node").ID
	if err := c.Interface(i.ID).SetGroups([]vpc.SecurityGroupID{node}); err != nil {
		t.Fatal(err)
	}
	now := c.State().Interfaces[i.ID]
	if len(now.Groups) != 1 || now.Groups[0] != node || now.Trunk == nil || now.Trunk.ID != i.Trunk.ID {
		t.Errorf("%+v", now)
	}
}

func TestAssociationsThatEC2DoesNotMakeAreRefusedAndChangeNothing(t *testing.T) {
	s := spec()
	s.Hosts = []cloud.HostSpec{{Name: "cluster", Subnet: "a"}}
	s.Instances = append(s.Instances, cloud.InstanceSpec{Name: "far", Type: "m5.large", Subnet: "b"})
	c, err := cloud.New(s, cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	two := c.State().InstanceNamed("two")
	plain := func() *cloud.Interface { return create(t, c, cloud.NewInterface{Subnet: two.Subnet}) }
	trunk, far := trunkOn(t, c, "two"), trunkOn(t, c, "far")
	loose := create(t, c, cloud.NewInterface{Subnet: two.Subnet, Type: vpc.TypeTrunk})
	attached := plain()
	if err := attach(c, attached.ID, two.ID, 2, 0); err != nil {
		t.Fatal(err)
	}
	branch, free := branchOf(t, c, trunk, 1), plain()
	aws := c.State().HostInterface("cluster").ID
	const unknown vpc.ENIID = "eni-00000000000000001"
	notFound := "The networkInterface ID '" + string(unknown) + "' does not exist"
	before := c.State()
	for name, refused := range map[string]struct {
		err           error
		code, message string
	}{
		"an unknown trunk":  {associate(c, unknown, free.ID, 2), "InvalidNetworkInterfaceID.NotFound", notFound},
		"an unknown branch": {associate(c, trunk.ID, unknown, 2), "InvalidNetworkInterfaceID.NotFound", notFound},
		"a VLAN in use":     {associate(c, trunk.ID, free.ID, 1), "InvalidVlanId.Duplicate", "VlanId '1' is in use"},
		"no VLAN": {
			associate(c, trunk.ID, free.ID, 0), "InvalidParameterValue", "Value (0) for parameter vlanId is invalid. It must be between 1 and 4094.",
		},
		"a VLAN beyond 4094":    {associate(c, trunk.ID, free.ID, 4095), "InvalidParameterValue", ""},
		"an attached interface": {associate(c, trunk.ID, attached.ID, 2), "InvalidParameterValue", "Network interface '" + string(attached.ID) + "' is currently in use."},
		"a branch of another":   {associate(c, far.ID, branch.ID, 2), "InvalidParameterValue", "Network interface '" + string(branch.ID) + "' is currently in use."},
		"a trunk as the branch": {associate(c, trunk.ID, loose.ID, 2), "InvalidParameterValue", ""},
		"the trunk itself":      {associate(c, trunk.ID, trunk.ID, 2), "InvalidParameterValue", ""},
		"no trunk":              {associate(c, free.ID, plain().ID, 2), "InvalidParameterValue", ""},
		"a trunk that is not attached": {
			associate(c, loose.ID, free.ID, 2), "IncorrectState", "The trunk interface '" + string(loose.ID) + "' is not attached to an instance.",
		},
		"a trunk of another zone":     {associate(c, far.ID, free.ID, 2), "InvalidParameterValue", ""},
		"an interface managed by AWS": {associate(c, trunk.ID, aws, 2), "OperationNotPermitted", ""},
		"attach an associated branch": {attach(c, branch.ID, two.ID, 2, 0), "InvalidParameterValue", "Network interface '" + string(branch.ID) + "' is currently in use."},
		"delete an associated branch": {c.Interface(branch.ID).Delete(), "InvalidParameterValue", "Network interface '" + string(branch.ID) + "' is currently in use."},
		"attach a trunk to a type without": {
			attach(c, loose.ID, c.State().InstanceNamed("one").ID, 1, 0), "UnsupportedOperation", "Instance type t3.medium does not support trunk interfaces.",
		},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, refused.err, refused.code, refused.message) })
	}
	if now := c.State(); len(cloud.Branches(now)) != 1 || now.Interfaces[branch.ID] != before.Interfaces[branch.ID] {
		t.Errorf("a refused association changed the account: %v", cloud.Branches(now))
	}
}

func TestBranchesOfATrunkAreLimitedByTheInstanceType(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	trunk := trunkOn(t, c, "two") // m5.large: nine
	var last *cloud.Interface
	for vlan := 1; vlan <= 9; vlan++ {
		last = branchOf(t, c, trunk, vlan)
	}
	more := create(t, c, cloud.NewInterface{Subnet: trunk.Subnet})
	wantCode(t, associate(c, trunk.ID, more.ID, 10), "AttachmentLimitExceeded", "Branch interface count 10 exceeds the limit for m5.large")
	if err := errors.Join(c.Interface(last.ID).Disassociate(last.Trunk.ID), associate(c, trunk.ID, more.ID, 9)); err != nil {
		t.Errorf("one is free again: %v", err)
	}
}

// What ends a trunk ends its associations: the branches are available and keep their
// addresses.
func TestTheEndOfATrunkEndsItsAssociations(t *testing.T) {
	for name, end := range map[string]func(c *cloud.Cloud, trunk *cloud.Interface) error{
		"detached": func(c *cloud.Cloud, trunk *cloud.Interface) error { return c.Detach(trunk.Attachment.ID) },
		"its instance terminated": func(c *cloud.Cloud, trunk *cloud.Interface) error {
			return c.Terminate([]vpc.InstanceID{trunk.Attachment.Instance})
		},
		"deleted with its instance": func(c *cloud.Cloud, trunk *cloud.Interface) error {
			return errors.Join(
				c.Interface(trunk.ID).SetDeleteOnTermination(trunk.Attachment.ID, true),
				c.Terminate([]vpc.InstanceID{trunk.Attachment.Instance}),
			)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t, cloud.Options{Instant: true})
			trunk := trunkOn(t, c, "two")
			branches := []*cloud.Interface{branchOf(t, c, trunk, 1), branchOf(t, c, trunk, 2)}
			if err := end(c, c.State().Interfaces[trunk.ID]); err != nil {
				t.Fatal(err)
			}
			if left := cloud.Branches(c.State()); len(left) != 0 {
				t.Errorf("%d associations are left", len(left))
			}
			for _, b := range branches {
				i := c.State().Interfaces[b.ID]
				if i == nil || i.Status() != "available" || i.PrimaryIPv4() != b.PrimaryIPv4() {
					t.Fatalf("branch %+v, want available", i)
				}
				if err := c.Interface(b.ID).Delete(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// No sequence of calls gives two branches of a trunk one VLAN, a trunk more branches than its
// instance's type takes, or a branch an attachment.
func TestNoSequenceOfCallsViolatesAnInvariantOfTrunks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := spec()
		s.Limits = map[string]vpc.Limits{"m5.large": {ENIs: 3, IPv4: 10, IPv6: 10, Branches: 2, Nitro: true}}
		c, err := cloud.New(s, cloud.Options{Instant: rapid.Bool().Draw(rt, "instant")})
		if err != nil {
			rt.Fatal(err)
		}
		for _, kind := range []vpc.InterfaceType{vpc.TypeTrunk, vpc.TypeTrunk, vpc.TypeBranch, "", "", ""} {
			if _, err := c.CreateInterface(cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID, Type: kind}); err != nil {
				rt.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "calls") {
			before := c.State()
			if err := trunkStep(rt, c); err != nil && c.State() != before {
				rt.Fatalf("the call was refused (%v) and the account changed", err)
			}
			checkTrunks(rt, c.State())
		}
	})
}

// trunkStep makes one random call.
func trunkStep(t *rapid.T, c *cloud.Cloud) error {
	s := c.State()
	i, other := pick(t, "interface", cloud.Sorted(s.Interfaces)), pick(t, "other", cloud.Sorted(s.Interfaces))
	switch rapid.IntRange(0, 9).Draw(t, "call") {
	case 0, 1, 2, 3:
		return associate(c, i.ID, other.ID, rapid.IntRange(0, 4).Draw(t, "vlan"))
	case 4:
		if i.Trunk == nil {
			return nil
		}
		return c.Interface(i.ID).Disassociate(i.Trunk.ID)
	case 5, 6:
		a, err := c.Interface(i.ID).Attach(pick(t, "instance", cloud.Sorted(s.Instances)).ID, rapid.IntRange(0, 3).Draw(t, "index"), 0)
		if err != nil {
			return err
		}
		return c.FinishAttach(a.ID)
	case 7:
		if i.Attachment == nil {
			return nil
		}
		if err := c.Detach(i.Attachment.ID); err != nil {
			return err
		}
		return c.FinishDetach(i.Attachment.ID)
	case 8:
		if len(s.Interfaces) < 4 {
			return nil
		}
		return c.Interface(i.ID).Delete()
	default:
		if rapid.IntRange(0, 9).Draw(t, "terminate") > 0 {
			return nil
		}
		return c.Terminate([]vpc.InstanceID{pick(t, "instance", cloud.Sorted(s.Instances)).ID})
	}
}

func checkTrunks(t interface{ Fatalf(string, ...any) }, s *cloud.State) {
	vlans := map[vpc.ENIID]map[int]vpc.ENIID{}
	for _, i := range cloud.Branches(s) {
		trunk := s.Interfaces[i.Trunk.Trunk]
		switch {
		case i.Attachment != nil || i.Type != vpc.TypeBranch:
			t.Fatalf("%s is associated: type %s, attachment %+v", i.ID, i.Type, i.Attachment)
		case trunk == nil || trunk.Type != vpc.TypeTrunk || trunk.Attachment == nil:
			t.Fatalf("%s is associated with %s: %+v", i.ID, i.Trunk.Trunk, trunk)
		}
		used := vlans[trunk.ID]
		if used == nil {
			used = map[int]vpc.ENIID{}
			vlans[trunk.ID] = used
		}
		if by := used[i.Trunk.VLAN]; by != "" {
			t.Fatalf("VLAN %d of %s is that of %s and %s", i.Trunk.VLAN, trunk.ID, by, i.ID)
		}
		used[i.Trunk.VLAN] = i.ID
		if most := s.Instances[trunk.Attachment.Instance].Limits.Branches; len(used) > most {
			t.Fatalf("%s has %d branches, more than %d", trunk.ID, len(used), most)
		}
	}
}
