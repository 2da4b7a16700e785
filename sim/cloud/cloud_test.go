package cloud_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// spec is a small account: a large subnet, a tiny one with space for one /28, and
// three instances.
func spec() cloud.Spec {
	return cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 7,
		VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}, CIDR6: prefix("2600:1f14:abc:de00::/56"), InternetGateway: true},
		Subnets: []cloud.SubnetSpec{
			{Name: "a", Zone: "us-west-2a", CIDR: prefix("10.0.0.0/24"), CIDR6: prefix("2600:1f14:abc:de00::/64")},
			{Name: "tiny", Zone: "us-west-2a", CIDR: prefix("10.0.1.0/26")},
			{Name: "b", Zone: "us-west-2b", CIDR: prefix("10.0.2.0/24")},
		},
		Groups: []cloud.GroupSpec{{Name: "node"}},
		Instances: []cloud.InstanceSpec{
			{Name: "one", Type: "t3.medium", Subnet: "a", Groups: []string{"node"}},
			{Name: "two", Type: "m5.large", Subnet: "a", Groups: []string{"node"}},
			{Name: "old", Type: "t2.medium", Subnet: "a", Groups: []string{"node"}},
		},
	}
}

func newCloud(t testing.TB, o cloud.Options) *cloud.Cloud {
	t.Helper()
	c, err := cloud.New(spec(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t testing.TB, c *cloud.Cloud, w cloud.NewInterface) *cloud.Interface {
	t.Helper()
	i, err := c.CreateInterface(w)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func wantCode(t testing.TB, err error, code, message string) {
	t.Helper()
	var e *cloud.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want %s", err, code)
	}
	if e.Code != code || (message != "" && e.Message != message) {
		t.Fatalf("got %s: %s\nwant %s: %s", e.Code, e.Message, code, message)
	}
}

// check verifies the invariants that EC2 guarantees for a State.
func check(t interface{ Fatalf(string, ...any) }, s *cloud.State) {
	owner := map[netip.Addr]vpc.ENIID{}
	used := map[vpc.SubnetID]int{}
	var blocks []netip.Prefix
	take := func(a netip.Addr, i *cloud.Interface) {
		if other, taken := owner[a]; taken {
			t.Fatalf("%s belongs to %s and to %s", a, other, i.ID)
		}
		owner[a] = i.ID
		n := s.Subnets[i.Subnet]
		if !n.CIDR.Contains(a) || vpc.Reserved(n.CIDR, a) {
			t.Fatalf("%s of %s is reserved, or outside %s", a, i.ID, n.CIDR)
		}
		used[n.ID]++
	}
	for _, i := range s.Interfaces {
		if len(i.IPv4.Addresses) == 0 {
			t.Fatalf("%s has no primary address", i.ID)
		}
		for _, a := range i.IPv4.Addresses {
			take(a, i)
		}
		for _, p := range i.IPv4.Prefixes {
			if p.Bits() != vpc.DelegatedPrefix4 || p != p.Masked() {
				t.Fatalf("prefix %s of %s is no aligned /28", p, i.ID)
			}
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				take(a, i)
			}
		}
		for _, a := range i.IPv6.Addresses {
			if other, taken := owner[a]; taken {
				t.Fatalf("%s belongs to %s and to %s", a, other, i.ID)
			}
			owner[a] = i.ID
		}
		blocks = append(blocks, i.IPv6.Prefixes...)
	}
	for n, p := range blocks {
		for _, o := range blocks[:n] {
			if p.Overlaps(o) {
				t.Fatalf("prefixes %s and %s overlap", p, o)
			}
		}
		for a, id := range owner {
			if p.Contains(a) {
				t.Fatalf("%s of %s lies in the delegated %s", a, id, p)
			}
		}
	}
	for _, n := range s.Subnets {
		size := 1 << (32 - n.CIDR.Bits())
		if free := s.FreeIPv4(n); free != size-5-used[n.ID] {
			t.Fatalf("subnet %s: %d free, want %d of %d less %d used", n.Name, free, size-5, size, used[n.ID])
		}
	}
	for _, n := range s.Instances {
		checkInstance(t, s, n)
	}
}

func checkInstance(t interface{ Fatalf(string, ...any) }, s *cloud.State, n *cloud.Instance) {
	attached := s.InterfacesOf(n.ID)
	if len(attached) > n.Limits.ENIs {
		t.Fatalf("%s (%s) has %d interfaces", n.Name, n.Type, len(attached))
	}
	seen := map[int]bool{}
	for _, i := range attached {
		if len(i.IPv4.Addresses)+len(i.IPv4.Prefixes) > n.Limits.IPv4 || len(i.IPv6.Addresses)+len(i.IPv6.Prefixes) > n.Limits.IPv6 {
			t.Fatalf("%s on %s holds more than %d addresses", i.ID, n.Type, n.Limits.IPv4)
		}
		if seen[i.Attachment.DeviceIndex] {
			t.Fatalf("%s has two interfaces at index %d", n.Name, i.Attachment.DeviceIndex)
		}
		seen[i.Attachment.DeviceIndex] = true
	}
}

// No sequence of calls gives an address two owners, exceeds a limit or corrupts the
// free counts, and a refused call changes nothing.
func TestNoSequenceOfCallsViolatesAnInvariant(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCloud(t, cloud.Options{Instant: rapid.Bool().Draw(rt, "instant")})
		for range rapid.IntRange(1, 60).Draw(rt, "calls") {
			before := c.State()
			if err := step(rt, c); err != nil {
				var e *cloud.Error
				if !errors.As(err, &e) {
					rt.Fatalf("%v is not an EC2 error", err)
				}
				if c.State() != before {
					rt.Fatalf("the call was refused (%v) and the account changed", err)
				}
			}
			check(rt, c.State())
		}
	})
}

func pick[T any](t *rapid.T, label string, list []T) T {
	return list[rapid.IntRange(0, len(list)-1).Draw(t, label)]
}

// step makes one random call.
func step(t *rapid.T, c *cloud.Cloud) error {
	s := c.State()
	if len(s.Interfaces) == 0 {
		_, err := c.CreateInterface(cloud.NewInterface{Subnet: s.SubnetNamed("a").ID})
		return err
	}
	i := pick(t, "interface", cloud.Sorted(s.Interfaces))
	n := pick(t, "instance", cloud.Sorted(s.Instances))
	subnet := pick(t, "subnet", cloud.Sorted(s.Subnets))
	count := rapid.IntRange(0, 12)
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 0, byte(rapid.IntRange(0, 2).Draw(t, "net")), byte(rapid.IntRange(0, 255).Draw(t, "host"))})
	})
	switch rapid.IntRange(0, 43).Draw(t, "call") % 15 {
	case 0:
		w := cloud.NewInterface{Subnet: subnet.ID, IPv4: cloud.Want{Count: count.Draw(t, "count")}}
		if rapid.Bool().Draw(t, "prefix") {
			w.IPv4 = cloud.Want{PrefixCount: 1}
		}
		if rapid.Bool().Draw(t, "named") {
			w.Primary = address.Draw(t, "primary")
		}
		_, err := c.CreateInterface(w)
		return err
	case 1:
		return c.Interface(i.ID).Delete()
	case 2:
		_, err := c.Interface(i.ID).Attach(n.ID, rapid.IntRange(0, 4).Draw(t, "index"), 0)
		return err
	case 3:
		if i.Attachment == nil {
			return nil
		}
		if rapid.Bool().Draw(t, "finish") {
			return errors.Join(c.FinishAttach(i.Attachment.ID), c.FinishDetach(i.Attachment.ID))
		}
		return c.Detach(i.Attachment.ID)
	case 4:
		_, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Count: count.Draw(t, "count")})
		return err
	case 5:
		_, err := c.Interface(i.ID).AssignIPv4(cloud.Want{
			Addresses: rapid.SliceOfN(address, 1, 4).Draw(t, "addresses"), Reassign: rapid.Bool().Draw(t, "reassign"),
		})
		return err
	case 13: // an address that is already assigned
		other := pick(t, "other", cloud.Sorted(s.Interfaces))
		_, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Addresses: []netip.Addr{pick(t, "held", other.IPv4.Addresses)}, Reassign: true})
		return err
	case 6:
		_, err := c.Interface(i.ID).AssignIPv4(cloud.Want{PrefixCount: rapid.IntRange(1, 3).Draw(t, "count")})
		return err
	case 7, 12:
		return c.Interface(i.ID).UnassignIPv4(i.IPv4.Addresses[len(i.IPv4.Addresses)-1:], nil)
	case 8:
		return c.Interface(i.ID).UnassignIPv4(nil, i.IPv4.Prefixes)
	case 9, 10, 11:
		_, err := c.Interface(i.ID).AssignIPv6(cloud.Want{Count: count.Draw(t, "count"), PrefixCount: rapid.IntRange(0, 1).Draw(t, "prefixes")})
		return err
	default:
		return c.Terminate([]vpc.InstanceID{n.ID})
	}
}

func TestFragmentedSubnetHasAddressesButNoPrefix(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	tiny := c.State().SubnetNamed("tiny")
	// One address in each of the two /28 blocks without a reserved address.
	for _, a := range []string{"10.0.1.20", "10.0.1.40"} {
		create(t, c, cloud.NewInterface{Subnet: tiny.ID, Primary: netip.MustParseAddr(a)})
	}
	i := create(t, c, cloud.NewInterface{Subnet: tiny.ID, Primary: netip.MustParseAddr("10.0.1.5")})
	_, err := c.Interface(i.ID).AssignIPv4(cloud.Want{PrefixCount: 1})
	wantCode(t, err, "InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.")
	if _, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Count: 10}); err != nil {
		t.Fatalf("single addresses are free: %v", err)
	}
}

func TestFullSubnetIsRefusedWithEC2sErrors(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	tiny := c.State().SubnetNamed("tiny")
	i := create(t, c, cloud.NewInterface{Subnet: tiny.ID, IPv4: cloud.Want{Count: 40}})
	j := create(t, c, cloud.NewInterface{Subnet: tiny.ID, IPv4: cloud.Want{Count: 17}})
	if free := c.State().FreeIPv4(tiny); free != 0 {
		t.Fatalf("%d addresses are free, want none of 59", free)
	}
	_, err := c.Interface(j.ID).AssignIPv4(cloud.Want{Count: 1})
	wantCode(t, err, "InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy the request.")
	_, err = c.Interface(j.ID).AssignIPv4(cloud.Want{PrefixCount: 1})
	wantCode(t, err, "InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes")
	if err := c.Interface(i.ID).UnassignIPv4(i.IPv4.Addresses[1:2], nil); err != nil {
		t.Fatal(err)
	}
	got, err := c.Interface(j.ID).AssignIPv4(cloud.Want{Count: 1})
	if err != nil || got.Addresses[0] != i.IPv4.Addresses[1] {
		t.Fatalf("got %v, %v; want the one address that was freed, %s", got, err, i.IPv4.Addresses[1])
	}
}

func TestAddressLimitsFollowTheInstanceType(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	s := c.State()
	one, old := s.InstanceNamed("one"), s.InstanceNamed("old") // t3.medium and t2.medium: 3 × 6
	for index := 1; index <= 2; index++ {
		i := create(t, c, cloud.NewInterface{Subnet: one.Subnet, IPv4: cloud.Want{Count: 5}})
		if _, err := c.Interface(i.ID).Attach(one.ID, index, 0); err != nil {
			t.Fatal(err)
		}
		_, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Count: 1})
		wantCode(t, err, "PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
	}
	more := create(t, c, cloud.NewInterface{Subnet: one.Subnet})
	_, err := c.Interface(more.ID).Attach(one.ID, 3, 0)
	wantCode(t, err, "AttachmentLimitExceeded", "Interface count 4 exceeds the limit for t3.medium")
	_, err = c.Interface(more.ID).Attach(old.ID, 0, 0)
	wantCode(t, err, "InvalidParameterValue", "Instance '"+string(old.ID)+"' already has an interface attached at device index '0'.")
	_, err = c.Interface(s.Primary(old.ID).ID).AssignIPv4(cloud.Want{PrefixCount: 1})
	wantCode(t, err, "UnsupportedOperation", "")
}

func TestReassignmentMovesAnAddress(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	subnet := c.State().SubnetNamed("a").ID
	from := create(t, c, cloud.NewInterface{Subnet: subnet, IPv4: cloud.Want{Count: 1}})
	to := create(t, c, cloud.NewInterface{Subnet: subnet})
	a := from.IPv4.Addresses[1]
	_, err := c.Interface(to.ID).AssignIPv4(cloud.Want{Addresses: []netip.Addr{a}})
	wantCode(t, err, "InvalidParameterValue", "")
	if _, err := c.Interface(to.ID).AssignIPv4(cloud.Want{Addresses: []netip.Addr{a}, Reassign: true}); err != nil {
		t.Fatal(err)
	}
	if owner := c.State().Owner(a); owner.ID != to.ID {
		t.Fatalf("%s belongs to %s, want %s", a, owner.ID, to.ID)
	}
	_, err = c.Interface(to.ID).AssignIPv4(cloud.Want{Addresses: from.IPv4.Addresses[:1], Reassign: true})
	wantCode(t, err, "InvalidParameterValue", "")
}

func TestAttachmentIsAttachedOnlyAfterFinishAttach(t *testing.T) {
	c := newCloud(t, cloud.Options{})
	one := c.State().InstanceNamed("one")
	i := create(t, c, cloud.NewInterface{Subnet: one.Subnet})
	a, err := c.Interface(i.ID).Attach(one.ID, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	status := func() cloud.AttachmentStatus { return c.State().Interfaces[i.ID].Attachment.Status }
	if status() != cloud.Attaching {
		t.Fatalf("status %s, want attaching", status())
	}
	if err := c.FinishAttach(a.ID); err != nil || status() != cloud.Attached {
		t.Fatalf("status %s (%v), want attached", status(), err)
	}
	if err := c.Detach(a.ID); err != nil || status() != cloud.Detaching {
		t.Fatalf("status %s (%v), want detaching", status(), err)
	}
	wantCode(t, c.Interface(i.ID).Delete(), "InvalidParameterValue", "Network interface '"+string(i.ID)+"' is currently in use.")
	if err := errors.Join(c.FinishDetach(a.ID), c.Interface(i.ID).Delete()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.Interface(i.ID).Delete(), "InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '"+string(i.ID)+"' does not exist")
}

func TestTerminationDeletesOnlyMarkedInterfaces(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	one := c.State().InstanceNamed("one")
	primary := c.State().Primary(one.ID)
	var kept []vpc.ENIID
	for index := 1; index <= 2; index++ {
		i := create(t, c, cloud.NewInterface{Subnet: one.Subnet})
		a, err := c.Interface(i.ID).Attach(one.ID, index, 0)
		if err != nil {
			t.Fatal(err)
		}
		if index == 2 {
			if err := c.Interface(i.ID).SetDeleteOnTermination(a.ID, true); err != nil {
				t.Fatal(err)
			}
		} else {
			kept = append(kept, i.ID)
		}
	}
	if err := c.Terminate([]vpc.InstanceID{one.ID}); err != nil {
		t.Fatal(err)
	}
	s := c.State()
	if s.Instances[one.ID].State != cloud.Terminated || s.Interfaces[primary.ID] != nil || len(s.InterfacesOf(one.ID)) != 0 {
		t.Fatal("the instance or its primary interface still exists")
	}
	if i := s.Interfaces[kept[0]]; i == nil || i.Status() != "available" {
		t.Fatalf("%s without DeleteOnTermination: %+v, want available", kept[0], i)
	}
}

func TestStateAgoReturnsThePastState(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newCloud(t, cloud.Options{Now: func() time.Time { return now }, Instant: true})
	c.Retain(10 * time.Second)
	before := c.State()
	now = now.Add(time.Minute)
	i := create(t, c, cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID})
	now = now.Add(3 * time.Second)
	if got := c.StateAgo(5 * time.Second); got != before {
		t.Errorf("five seconds ago: revision %d, want %d", got.Revision, before.Revision)
	}
	if got := c.StateAgo(2 * time.Second); got.Interfaces[i.ID] == nil {
		t.Error("two seconds ago: the interface is missing")
	}
	// States beyond the retention are dropped.
	now = now.Add(time.Minute)
	create(t, c, cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID})
	if got := c.StateAgo(time.Hour); got.Interfaces[i.ID] == nil {
		t.Errorf("revision %d is retained for longer than ten seconds", got.Revision)
	}
}

func TestTheSameSeedMakesTheSameWorld(t *testing.T) {
	ids := func() []string {
		c := newCloud(t, cloud.Options{Instant: true})
		create(t, c, cloud.NewInterface{Subnet: c.State().SubnetNamed("a").ID, IPv4: cloud.Want{Count: 3}})
		var out []string
		for _, i := range cloud.Sorted(c.State().Interfaces) {
			out = append(out, string(i.ID), i.MAC.String())
			for _, a := range i.IPv4.Addresses {
				out = append(out, a.String())
			}
		}
		return out
	}
	if a, b := ids(), ids(); !slices.Equal(a, b) {
		t.Errorf("%v\n%v", a, b)
	}
}

func TestInvalidSpecErrorNamesThePart(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*cloud.Spec)
		want string
	}{
		"a subnet overlapping another": {func(s *cloud.Spec) { s.Subnets[1].CIDR = prefix("10.0.0.64/26") }, `subnet "tiny": CIDR 10.0.0.64/26: overlaps subnet "a" (10.0.0.0/24)`},
		"a subnet outside the VPC":     {func(s *cloud.Spec) { s.Subnets[0].CIDR = prefix("10.1.0.0/24") }, `subnet "a": CIDR 10.1.0.0/24: outside the VPC`},
		"a zone of another region":     {func(s *cloud.Spec) { s.Subnets[0].Zone = "eu-west-1a" }, `subnet "a": zone "eu-west-1a": want us-west-2 and one letter`},
		"an unknown group":             {func(s *cloud.Spec) { s.Instances[0].Groups = []string{"nope"} }, `instance "one": InvalidGroup.NotFound: The security group 'nope' does not exist`},
		"an unknown type":              {func(s *cloud.Spec) { s.Instances[0].Type = "m9.huge" }, `instance "one": InvalidParameterValue: Invalid value 'm9.huge' for InstanceType.`},
		"a duplicate name":             {func(s *cloud.Spec) { s.Instances[1].Name = "one" }, `instance "one": the name is given twice`},
		"a route without a gateway": {func(s *cloud.Spec) {
			s.VPC.InternetGateway = false
			s.RouteTables = []cloud.RouteTableSpec{{Name: "x", Routes: []cloud.RouteSpec{{Destination: prefix("0.0.0.0/0"), Gateway: "igw"}}}}
		}, `route table "x": route 0.0.0.0/0: the VPC has no internet gateway`},
		"a port range that ends before it begins": {func(s *cloud.Spec) {
			s.Groups[0].Ingress = []cloud.RuleSpec{{Protocol: "tcp", From: 443, To: 80, Groups: []string{"node"}}}
		}, `group "node": InvalidParameterValue: Invalid TCP/UDP port range (443:80)`},
		"an account of eleven digits": {func(s *cloud.Spec) { s.Account = "11112222333" }, `account "11112222333": want twelve digits`},
		"an address already assigned": {func(s *cloud.Spec) {
			s.Instances[0].Address = netip.MustParseAddr("10.0.0.9")
			s.Instances[1].Address = s.Instances[0].Address
		}, `instance "two": InvalidIPAddress.InUse: The specified address is already in use.`},
		"an address that is reserved": {func(s *cloud.Spec) { s.Instances[0].Address = netip.MustParseAddr("10.0.0.3") }, `instance "one": InvalidParameterValue: Address 10.0.0.3 is in subnet's reserved address range`},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec()
			test.edit(&s)
			_, err := cloud.New(s, cloud.Options{})
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}
