package world

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/fabric"
)

// must returns a value that cannot fail.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// privateAccount has a gateway, to which no subnet has a route.
func privateAccount(t *testing.T) *cloud.Cloud {
	t.Helper()
	return must[*cloud.Cloud](t)(cloud.New(cloud.Spec{
		Region: "us-west-2", Account: "111122223333",
		VPC:         cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, InternetGateway: true},
		RouteTables: []cloud.RouteTableSpec{{Name: "main", Main: true}},
		Subnets:     []cloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.0.0/24")}},
		Instances:   []cloud.InstanceSpec{{Name: "one", Type: "m5.large", Subnet: "a", Namespace: "guest", Metadata: cloud.DefaultMetadata()}},
	}, cloud.Options{Instant: true}))
}

// What is created later is routed as what lab.yaml describes: ranges, subnets, route
// tables, and the elastic address with which a private one passes the gateway.
func TestTheFabricFollowsTheNetworkOfTheAccount(t *testing.T) {
	c := privateAccount(t)
	network := c.VPC(c.State().VPC.ID)
	more := netip.MustParsePrefix("100.64.0.0/16")
	if err := network.AddCIDR(more); err != nil {
		t.Fatal(err)
	}
	made := must[*cloud.Subnet](t)(network.CreateSubnet(cloud.NewSubnet{CIDR: netip.MustParsePrefix("100.64.1.0/24")}))
	table := must[*cloud.RouteTable](t)(network.CreateRouteTable(nil))
	if err := c.RouteTable(table.ID).CreateRoute(netip.MustParsePrefix("0.0.0.0/0"), cloud.RouteTarget{Gateway: c.State().Gateway}); err != nil {
		t.Fatal(err)
	}
	must[cloud.RouteAssociationID](t)(c.RouteTable(table.ID).Associate(made.ID))
	eni := must[*cloud.Interface](t)(c.CreateInterface(cloud.NewInterface{Subnet: made.ID}))
	must[*cloud.Attachment](t)(c.Interface(eni.ID).Attach(c.State().InstanceNamed("one").ID, 1, 0))
	address := must[*cloud.Address](t)(c.Elastic().Allocate(nil))
	id := must[cloud.AssociationID](t)(c.Elastic().Associate(cloud.Association{Address: address.ID, Interface: eni.ID}))

	f := topology(c.State())
	if !slices.Contains(f.CIDRs, more) {
		t.Errorf("the fabric has the ranges %v, want %s among them", f.CIDRs, more)
	}
	routed := func(s vpc.SubnetID) []fabric.Route {
		k := slices.IndexFunc(topology(c.State()).Subnets, func(n fabric.Subnet) bool { return n.ID == s })
		if k < 0 {
			return nil
		}
		return topology(c.State()).Subnets[k].Routes
	}
	if got := routed(made.ID); len(got) != 1 || !got[0].Target.Internet {
		t.Errorf("the subnet has the routes %+v, want one to the internet gateway", got)
	}
	public := func() []fabric.Public {
		f := topology(c.State())
		return f.Ports[slices.IndexFunc(f.Ports, func(p fabric.Port) bool { return p.ID == eni.ID })].Public
	}
	if got := public(); len(got) != 1 || got[0] != (fabric.Public{Private: eni.PrimaryIPv4(), Address: address.Public}) {
		t.Errorf("%v pass the gateway, want %s as %s", got, eni.PrimaryIPv4(), address.Public)
	}
	if err := c.Elastic().Disassociate(id); err != nil {
		t.Fatal(err)
	}
	if got := public(); len(got) != 0 {
		t.Errorf("%v pass the gateway, want none", got)
	}
	if err := c.RouteTable(table.ID).Disassociate(c.State().Subnets[made.ID].Association); err != nil {
		t.Fatal(err)
	}
	if got := routed(made.ID); len(got) != 0 {
		t.Errorf("without the table the subnet has the routes %+v", got)
	}
}

// Metadata shows an elastic address as the public one.
func TestMetadataShowsAnElasticAddress(t *testing.T) {
	c := privateAccount(t)
	n := c.State().InstanceNamed("one")
	primary := c.State().Primary(n.ID)
	address := must[*cloud.Address](t)(c.Elastic().Allocate(nil))
	id := must[cloud.AssociationID](t)(c.Elastic().Associate(cloud.Association{Address: address.ID, Interface: primary.ID}))
	shown := func() netip.Addr { return describe(c.State(), n).Interfaces[0].Public[primary.PrimaryIPv4()] }
	if got := shown(); got != address.Public {
		t.Errorf("metadata shows %s, want %s", got, address.Public)
	}
	if err := c.Elastic().Disassociate(id); err != nil {
		t.Fatal(err)
	}
	if got := shown(); got.IsValid() {
		t.Errorf("metadata shows %s, want none", got)
	}
}

// A branch is a port on its trunk's link, with its own groups and addresses, while the trunk's
// machine has that link.
func TestTheFabricHasABranchOnItsTrunksLink(t *testing.T) {
	c := privateAccount(t)
	one := c.State().InstanceNamed("one")
	trunk := must[*cloud.Interface](t)(c.CreateInterface(cloud.NewInterface{Subnet: one.Subnet, Type: vpc.TypeTrunk}))
	attachment := must[*cloud.Attachment](t)(c.Interface(trunk.ID).Attach(one.ID, 1, 0))
	branch := must[*cloud.Interface](t)(c.CreateInterface(cloud.NewInterface{Subnet: one.Subnet}))
	port := func(id vpc.ENIID) *fabric.Port {
		ports := topology(c.State()).Ports
		if k := slices.IndexFunc(ports, func(p fabric.Port) bool { return p.ID == id }); k >= 0 {
			return &ports[k]
		}
		return nil
	}
	if port(branch.ID) != nil {
		t.Error("the fabric has an interface that nothing uses")
	}
	must[*cloud.Interface](t)(c.Interface(trunk.ID).AssociateBranch(branch.ID, 7))
	group := must[*cloud.Group](t)(c.VPC(c.State().VPC.ID).CreateGroup("pods", "pods", nil))
	if err := c.Interface(branch.ID).SetGroups([]vpc.SecurityGroupID{group.ID}); err != nil {
		t.Fatal(err)
	}
	p := port(branch.ID)
	if p == nil || p.Key != (fabric.PortKey{ENI: trunk.ID, VLAN: 7}) || p.Guest != "" || p.Device != "" || p.MAC != branch.MAC ||
		!slices.Equal(p.Groups, []vpc.SecurityGroupID{group.ID}) || !slices.Equal(p.Addresses, branch.IPv4.Addresses) {
		t.Fatalf("the branch is the port %+v", p)
	}
	if p := port(trunk.ID); p == nil || p.Key != (fabric.PortKey{ENI: trunk.ID}) || p.Device != "eth1" {
		t.Errorf("the trunk is the port %+v", p)
	}
	if err := c.Detach(attachment.ID); err != nil {
		t.Fatal(err)
	}
	if port(branch.ID) != nil || port(trunk.ID) != nil {
		t.Error("the fabric has ports of a trunk that was detached")
	}
}
