package cloud_test

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// Each call that EC2 refuses returns EC2's error code and leaves the account
// unchanged.
func TestRefusedCallsReturnEC2sErrorsAndChangeNothing(t *testing.T) {
	s := spec()
	s.Quotas.GroupsPerInterface = 1
	s.Hosts = []cloud.HostSpec{{Name: "cluster", Subnet: "a", Groups: []string{"node"}}}
	c, err := cloud.New(s, cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	subnet := func(name string) vpc.SubnetID { return c.State().SubnetNamed(name).ID }
	one, two := c.State().InstanceNamed("one").ID, c.State().InstanceNamed("two").ID
	node := c.State().GroupNamed("node").ID
	elsewhere := create(t, c, cloud.NewInterface{Subnet: subnet("b")})
	here := create(t, c, cloud.NewInterface{Subnet: subnet("a")})
	branch := create(t, c, cloud.NewInterface{Subnet: subnet("a"), Type: vpc.TypeBranch})
	trunk := create(t, c, cloud.NewInterface{Subnet: subnet("a"), Type: vpc.TypeTrunk})
	aws := c.State().HostInterface("cluster")
	if err := attach(c, create(t, c, cloud.NewInterface{Subnet: subnet("a")}).ID, one, 2, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Terminate([]vpc.InstanceID{two}); err != nil {
		t.Fatal(err)
	}
	var table vpc.RouteTableID
	for table = range c.State().RouteTables {
	}
	before := c.State().Revision
	for name, refused := range map[string]struct {
		err           error
		code, message string
	}{
		"attach to another zone": {
			attach(c, elsewhere.ID, one, 1, 0), "InvalidParameterValue",
			"You may not attach a network interface to an instance if they are not in the same availability zone",
		},
		"attach to a terminated instance": {
			attach(c, here.ID, two, 1, 0), "IncorrectState",
			"The instance '" + string(two) + "' is not in a valid state for this operation: terminated",
		},
		"attach at an index in use": {
			attach(c, here.ID, one, 2, 0), "InvalidParameterValue",
			"Instance '" + string(one) + "' already has an interface attached at device index '2'.",
		},
		"attach beyond the last index": {attach(c, here.ID, one, 16, 0), "InvalidParameterValue", "Value (16) for parameter deviceIndex is invalid."},
		"attach before the first":      {attach(c, here.ID, one, -1, 0), "InvalidParameterValue", "Value (-1) for parameter deviceIndex is invalid."},
		"attach to another card": {
			attach(c, here.ID, one, 1, 1), "InvalidParameterValue", "Network card index 1 is not valid for instance type t3.medium",
		},
		"attach a branch": {
			attach(c, branch.ID, one, 1, 0), "InvalidParameterValue",
			"Interface type branch cannot be attached to an instance: '" + string(branch.ID) + "'",
		},
		"attach a trunk to a type without trunks": {
			attach(c, trunk.ID, one, 1, 0), "UnsupportedOperation", "Instance type t3.medium does not support trunk interfaces.",
		},
		"delete an interface managed by AWS": {c.Interface(aws.ID).Delete(), "OperationNotPermitted", "You do not have permission to access the specified resource."},
		"modify an interface managed by AWS": {c.Interface(aws.ID).SetDescription("mine"), "OperationNotPermitted", "You do not have permission to access the specified resource."},
		"detach an interface managed by AWS": {c.Detach(aws.Attachment.ID), "OperationNotPermitted", "You are not allowed to manage 'ela-attach' attachments."},
		"detach the primary interface": {
			c.Detach(c.State().Primary(one).Attachment.ID), "OperationNotPermitted",
			"The network interface at device index 0 and networkCard index 0 cannot be detached.",
		},
		"route to an instance with several interfaces": {
			c.RouteTable(table).CreateRoute(prefix("192.0.2.0/24"), cloud.RouteTarget{Instance: one}), "InvalidInstanceID",
			"There are multiple interfaces attached to instance '" + string(one) + "'. Please specify an interface ID for the operation instead.",
		},
		"set more groups than the quota": {
			c.Interface(here.ID).SetGroups([]vpc.SecurityGroupID{node, c.State().GroupNamed("default").ID}), "SecurityGroupsPerInterfaceLimitExceeded", "",
		},
		"allow a group that does not exist": {
			authorize(c, node, cloud.Rule{Protocol: -1, From: -1, To: -1, Group: "sg-00000000000000001"}), "InvalidGroup.NotFound",
			"The security group 'sg-00000000000000001' does not exist",
		},
		"reboot a terminated instance": {
			c.Reboot([]vpc.InstanceID{one, two}), "IncorrectState", "The instance '" + string(two) + "' is not in the 'running' state.",
		},
		"delete a local route": {
			c.RouteTable(table).DeleteRoute(prefix("10.0.0.0/16")), "InvalidParameterValue",
			"cannot remove local route 10.0.0.0/16 in route table " + string(table),
		},
		"name a group twice": {
			c.Interface(here.ID).SetGroups([]vpc.SecurityGroupID{node, node}), "InvalidParameterValue",
			"Value (" + string(node) + ") for parameter groupId is invalid. Duplicate group.",
		},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, refused.err, refused.code, refused.message) })
	}
	if now := c.State().Revision; now != before {
		t.Errorf("the account changed %d times", now-before)
	}
	if n := c.State().Instances[one].Reboots; n != 0 {
		t.Errorf("one of two instances was rebooted %d times, want all or none", n)
	}
}

func attach(c *cloud.Cloud, eni vpc.ENIID, to vpc.InstanceID, index, card int) error {
	_, err := c.Interface(eni).Attach(to, index, card)
	return err
}

func authorize(c *cloud.Cloud, group vpc.SecurityGroupID, r cloud.Rule) error {
	_, err := c.Group(group).Authorize(cloud.Ingress, []cloud.Rule{r})
	return err
}

func TestInterfaceQuotaIsEnforced(t *testing.T) {
	s := spec()
	s.Quotas.Interfaces = len(s.Instances) + 1
	c, err := cloud.New(s, cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID}
	last := create(t, c, w)
	_, err = c.CreateInterface(w)
	wantCode(t, err, "NetworkInterfaceLimitExceeded", "")
	if err := c.Interface(last.ID).Delete(); err != nil {
		t.Fatal(err)
	}
	create(t, c, w)
}

// A rule that names a group counts for both families, a rule with a range for its
// own. Source: VPC user guide, "Amazon VPC quotas".
func TestRuleNamingAGroupCountsForBothFamilies(t *testing.T) {
	s := spec()
	s.Quotas.RulesPerGroup = 2
	c, err := cloud.New(s, cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	group, other := c.State().GroupNamed("node").ID, c.State().GroupNamed("default").ID
	add := func(r cloud.Rule) error {
		r.Protocol = 6
		return authorize(c, group, r)
	}
	v4, v6 := prefix("192.0.2.0/24"), prefix("2001:db8::/32")
	for _, r := range []cloud.Rule{{From: 1, To: 1, Group: other}, {From: 2, To: 2, Peer: v4}, {From: 3, To: 3, Peer: v6}} {
		if err := add(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []cloud.Rule{{From: 4, To: 4, Group: other}, {From: 5, To: 5, Peer: v4}, {From: 6, To: 6, Peer: v6}} {
		wantCode(t, add(r), "RulesPerSecurityGroupLimitExceeded", "")
	}
}

func TestFirstAndLastPrefixOfAnIPv6SubnetAreReserved(t *testing.T) {
	c := newCloud(t, cloud.Options{})
	i := create(t, c, cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID})
	for p, good := range map[string]bool{
		"2600:1f14:abc:de00::/80": false, "2600:1f14:abc:de00:ffff::/80": false, "2600:1f14:abc:de00:1::/80": true,
	} {
		_, err := c.Interface(i.ID).AssignIPv6(cloud.Want{Prefixes: []netip.Prefix{prefix(p)}})
		if good && err != nil {
			t.Errorf("%s: %v", p, err)
		}
		if !good {
			wantCode(t, err, "InvalidParameterValue", "Prefix "+p+" is already in use, or holds addresses that are.")
		}
	}
}

func TestUntagRemovesByKeyOrByKeyAndValue(t *testing.T) {
	c := newCloud(t, cloud.Options{})
	i := create(t, c, cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID, Tags: cloud.Tags{"a": "1", "b": "2", "c": "3"}})
	no, yes := "no", "2"
	if err := c.Untag([]string{string(i.ID)}, map[string]*string{"a": &no, "b": &yes, "c": nil}); err != nil {
		t.Fatal(err)
	}
	if tags := c.State().Interfaces[i.ID].Tags; len(tags) != 1 || tags["a"] != "1" {
		t.Errorf("remaining tags are %v, want only a, with its different value", tags)
	}
}
