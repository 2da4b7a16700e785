package ec2

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) networkActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeSubnets, subnetList]{
			Name: "DescribeSubnets", Page: page("DescribeSubnets"), ReadOnly: true,
			Permit: onAnyResource[describeSubnets], Do: listSubnets,
		}),
		query.Handle(query.Spec[describeVPCs, vpcList]{
			Name: "DescribeVpcs", Page: page("DescribeVpcs"), ReadOnly: true,
			Permit: onAnyResource[describeVPCs], Do: listVPCs,
		}),
		query.Handle(query.Spec[describeZones, zoneList]{
			Name: "DescribeAvailabilityZones", Page: page("DescribeAvailabilityZones"), ReadOnly: true,
			Permit: onAnyResource[describeZones], Do: listZones,
		}),
	}
}

type describeSubnets struct {
	query.DryRun
	Page
	IDs     []string `q:"SubnetId"`
	Filters []Filter `q:"Filter"`
}

type cidrStateXML struct {
	State string `q:"state"`
}

type subnetIPv6XML struct {
	ID    string       `q:"associationId"`
	CIDR  string       `q:"ipv6CidrBlock"`
	State cidrStateXML `q:"ipv6CidrBlockState"`
}

// hostnamesXML is PrivateDnsNameOptionsOnLaunch: instances are named after their
// address.
type hostnamesXML struct {
	Type  string `q:"hostnameType"`
	HasA  bool   `q:"enableResourceNameDnsARecord"`
	HasA6 bool   `q:"enableResourceNameDnsAAAARecord"`
}

// publicAccessXML is BlockPublicAccessStates: only route tables block the internet
// gateway here.
type publicAccessXML struct {
	Mode string `q:"internetGatewayBlockMode"`
}

// subnetXML is Subnet, without the members for local zones and outposts. Source:
// API_Subnet.html.
type subnetXML struct {
	ID            string          `q:"subnetId"`
	ARN           string          `q:"subnetArn"`
	State         string          `q:"state"`
	Owner         string          `q:"ownerId"`
	VPC           string          `q:"vpcId"`
	CIDR          string          `q:"cidrBlock,omitempty"`
	IPv6          []subnetIPv6XML `q:"ipv6CidrBlockAssociationSet"`
	Free          int             `q:"availableIpAddressCount"`
	Zone          string          `q:"availabilityZone"`
	ZoneID        string          `q:"availabilityZoneId"`
	DefaultFor    bool            `q:"defaultForAz"`
	Public        bool            `q:"mapPublicIpOnLaunch"`
	CustomerOwned bool            `q:"mapCustomerOwnedIpOnLaunch"`
	AssignIPv6    bool            `q:"assignIpv6AddressOnCreation"`
	DNS64         bool            `q:"enableDns64"`
	OnlyIPv6      bool            `q:"ipv6Native"`
	Hostnames     hostnamesXML    `q:"privateDnsNameOptionsOnLaunch"`
	PublicAccess  publicAccessXML `q:"blockPublicAccessStates"`
	Tags          []tagXML        `q:"tagSet,omitempty"`
}

type subnetList struct {
	Subnets   []subnetXML `q:"subnetSet"`
	NextToken string      `q:"nextToken,omitempty"`
}

func listSubnets(c *query.Call, r *describeSubnets) (*subnetList, error) {
	out, next, err := listPage(c, listing[*cloud.Subnet]{
		kind: cloud.KindSubnet, set: "subnets", all: cloud.Sorted(c.State.Subnets), ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(n *cloud.Subnet) string { return string(n.ID) },
		tags:  func(n *cloud.Subnet) cloud.Tags { return n.Tags },
		attrs: subnetAttributes(c),
	}, func(n *cloud.Subnet) subnetXML { return newSubnetXML(c, n) })
	return &subnetList{out, next}, err
}

// subnetAttributes are the filters of DescribeSubnets.
func subnetAttributes(c *query.Call) attributes[*cloud.Subnet] {
	type subnet = *cloud.Subnet
	s := c.State
	ipv6 := func(f func(subnetIPv6XML) string) func(subnet) []string {
		return func(n subnet) []string { return each(newSubnetXML(c, n).IPv6, f) }
	}
	all := attributes[subnet]{
		"subnet-id":                       func(n subnet) []string { return one(string(n.ID)) },
		"subnet-arn":                      func(n subnet) []string { return one(arn(c, cloud.KindSubnet, string(n.ID))) },
		"vpc-id":                          func(subnet) []string { return one(string(s.VPC.ID)) },
		"availability-zone":               func(n subnet) []string { return one(n.Zone) },
		"availability-zone-id":            func(n subnet) []string { return one(ZoneID(n.Zone)) },
		"cidr-block":                      func(n subnet) []string { return maybe(prefixText(n.CIDR)) },
		"owner-id":                        func(subnet) []string { return one(s.Account) },
		"state":                           func(subnet) []string { return one("available") },
		"default-for-az":                  func(subnet) []string { return yesNo(false) },
		"enable-dns64":                    func(subnet) []string { return yesNo(false) },
		"ipv6-native":                     func(n subnet) []string { return yesNo(!n.CIDR.IsValid()) },
		"map-customer-owned-ip-on-launch": func(subnet) []string { return yesNo(false) },
		"map-public-ip-on-launch":         func(n subnet) []string { return yesNo(n.Public) },
		"available-ip-address-count":      func(n subnet) []string { return one(strconv.Itoa(s.FreeIPv4(n))) },

		"ipv6-cidr-block-association.association-id":  ipv6(func(x subnetIPv6XML) string { return x.ID }),
		"ipv6-cidr-block-association.ipv6-cidr-block": ipv6(func(x subnetIPv6XML) string { return x.CIDR }),
		"ipv6-cidr-block-association.state":           ipv6(func(x subnetIPv6XML) string { return x.State.State }),

		"private-dns-name-options-on-launch.hostname-type":                        func(n subnet) []string { return one(newSubnetXML(c, n).Hostnames.Type) },
		"private-dns-name-options-on-launch.enable-resource-name-dns-a-record":    func(n subnet) []string { return yesNo(newSubnetXML(c, n).Hostnames.HasA) },
		"private-dns-name-options-on-launch.enable-resource-name-dns-aaaa-record": func(n subnet) []string { return yesNo(newSubnetXML(c, n).Hostnames.HasA6) },
	}
	for alias, name := range map[string]string{
		"availabilityZone": "availability-zone", "availabilityZoneId": "availability-zone-id",
		"cidr": "cidr-block", "cidrBlock": "cidr-block", "defaultForAz": "default-for-az",
	} {
		all[alias] = all[name]
	}
	return merged(all, absent[subnet]("customer-owned-ipv4-pool", "enable-lni-at-device-index", "outpost-arn"))
}

// prefixText is a range in EC2's form; empty without one: an IPv6-only subnet has no
// cidrBlock. Source: AWS CLI reference, ec2 create-subnet, the example of an IPv6-only subnet.
func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func newSubnetXML(c *query.Call, n *cloud.Subnet) subnetXML {
	x := subnetXML{
		ID: string(n.ID), ARN: arn(c, cloud.KindSubnet, string(n.ID)), State: "available",
		Owner: c.State.Account, VPC: string(c.State.VPC.ID), CIDR: prefixText(n.CIDR), Free: c.State.FreeIPv4(n), OnlyIPv6: !n.CIDR.IsValid(),
		Zone: n.Zone, ZoneID: ZoneID(n.Zone), Public: n.Public, AssignIPv6: n.AssignIPv6, Tags: tagsXML(n.Tags),
		Hostnames: hostnamesXML{Type: "ip-name"}, PublicAccess: publicAccessXML{"off"},
	}
	if n.CIDR6.IsValid() {
		x.IPv6 = []subnetIPv6XML{{
			ID: "subnet-cidr-assoc-" + string(n.ID[len("subnet-"):]), CIDR: n.CIDR6.String(),
			State: cidrStateXML{"associated"},
		}}
	}
	return x
}

type describeVPCs struct {
	query.DryRun
	Page
	IDs     []string `q:"VpcId"`
	Filters []Filter `q:"Filter"`
}

type vpcCIDRXML struct {
	ID    string       `q:"associationId"`
	CIDR  string       `q:"cidrBlock"`
	State cidrStateXML `q:"cidrBlockState"`
}

type vpcIPv6XML struct {
	ID    string       `q:"associationId"`
	CIDR  string       `q:"ipv6CidrBlock"`
	State cidrStateXML `q:"ipv6CidrBlockState"`
	Pool  string       `q:"ipv6Pool"`
}

// vpcXML is Vpc. Source: API_Vpc.html.
type vpcXML struct {
	ID    string       `q:"vpcId"`
	Owner string       `q:"ownerId"`
	State string       `q:"state"`
	CIDR  string       `q:"cidrBlock"`
	CIDRs []vpcCIDRXML `q:"cidrBlockAssociationSet"`
	IPv6  []vpcIPv6XML `q:"ipv6CidrBlockAssociationSet,omitempty"`
	// DHCP is always "default": DHCP option sets are not supported.
	DHCP         string          `q:"dhcpOptionsId"`
	Tenancy      string          `q:"instanceTenancy"`
	Default      bool            `q:"isDefault"`
	PublicAccess publicAccessXML `q:"blockPublicAccessStates"`
	Tags         []tagXML        `q:"tagSet,omitempty"`
}

type vpcList struct {
	VPCs      []vpcXML `q:"vpcSet"`
	NextToken string   `q:"nextToken,omitempty"`
}

func listVPCs(c *query.Call, r *describeVPCs) (*vpcList, error) {
	out, next, err := listPage(c, listing[*cloud.VPC]{
		kind: cloud.KindVPC, set: "vpc", all: []*cloud.VPC{&c.State.VPC}, ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(v *cloud.VPC) string { return string(v.ID) },
		tags:  func(v *cloud.VPC) cloud.Tags { return v.Tags },
		attrs: vpcAttributes(c.State),
	}, func(v *cloud.VPC) vpcXML { return newVPCXML(c.State, v) })
	return &vpcList{out, next}, err
}

// vpcAttributes are the filters of DescribeVpcs.
func vpcAttributes(s *cloud.State) attributes[*cloud.VPC] {
	type network = *cloud.VPC
	ipv4 := func(f func(vpcCIDRXML) string) func(network) []string {
		return func(v network) []string { return each(newVPCXML(s, v).CIDRs, f) }
	}
	ipv6 := func(f func(vpcIPv6XML) string) func(network) []string {
		return func(v network) []string { return each(newVPCXML(s, v).IPv6, f) }
	}
	return attributes[network]{
		"vpc-id":     func(v network) []string { return one(string(v.ID)) },
		"cidr":       func(v network) []string { return one(v.CIDRs[0].String()) },
		"owner-id":   func(network) []string { return one(s.Account) },
		"state":      func(network) []string { return one("available") },
		"is-default": func(network) []string { return yesNo(false) },

		"dhcp-options-id": func(v network) []string { return one(newVPCXML(s, v).DHCP) },

		"cidr-block-association.association-id":       ipv4(func(x vpcCIDRXML) string { return x.ID }),
		"cidr-block-association.cidr-block":           ipv4(func(x vpcCIDRXML) string { return x.CIDR }),
		"cidr-block-association.state":                ipv4(func(x vpcCIDRXML) string { return x.State.State }),
		"ipv6-cidr-block-association.association-id":  ipv6(func(x vpcIPv6XML) string { return x.ID }),
		"ipv6-cidr-block-association.ipv6-cidr-block": ipv6(func(x vpcIPv6XML) string { return x.CIDR }),
		"ipv6-cidr-block-association.ipv6-pool":       ipv6(func(x vpcIPv6XML) string { return x.Pool }),
		"ipv6-cidr-block-association.state":           ipv6(func(x vpcIPv6XML) string { return x.State.State }),
	}
}

func newVPCXML(s *cloud.State, v *cloud.VPC) vpcXML {
	x := vpcXML{
		ID: string(v.ID), Owner: s.Account, State: "available", CIDR: v.CIDRs[0].String(),
		DHCP: "default", Tenancy: "default", PublicAccess: publicAccessXML{"off"}, Tags: tagsXML(v.Tags),
	}
	id := string(v.ID[len("vpc-"):])
	for n, cidr := range v.CIDRs {
		x.CIDRs = append(x.CIDRs, vpcCIDRXML{
			ID: "vpc-cidr-assoc-" + id[:len(id)-1] + strconv.Itoa(n), CIDR: cidr.String(), State: cidrStateXML{"associated"},
		})
	}
	if v.CIDR6.IsValid() {
		x.IPv6 = []vpcIPv6XML{{ID: "vpc-cidr-assoc-6" + id[1:], CIDR: v.CIDR6.String(), State: cidrStateXML{"associated"}, Pool: "Amazon"}}
	}
	return x
}

type describeZones struct {
	query.DryRun
	Names   []string `q:"ZoneName"`
	IDs     []string `q:"ZoneId"`
	All     bool     `q:"AllAvailabilityZones"` // there are no zones to opt in to
	Filters []Filter `q:"Filter"`
}

// zoneXML is AvailabilityZone. Source: API_AvailabilityZone.html.
type zoneXML struct {
	Name   string `q:"zoneName"`
	ID     string `q:"zoneId"`
	Region string `q:"regionName"`
	State  string `q:"zoneState"`
	OptIn  string `q:"optInStatus"`
	Type   string `q:"zoneType"`
	Border string `q:"networkBorderGroup"`
	Group  string `q:"groupName"`
}

type zoneList struct {
	Zones []zoneXML `q:"availabilityZoneInfo"`
}

// listZones lists the zones of the account; see cloud.State.Zones.
func listZones(c *query.Call, r *describeZones) (*zoneList, error) {
	byName := map[string]zoneXML{}
	for _, zone := range c.State.Zones() {
		region := c.State.Region
		byName[zone] = zoneXML{
			Name: zone, ID: ZoneID(zone), Region: region, State: "available", OptIn: "opt-in-not-required",
			Type: "availability-zone", Border: region, Group: region + "-zg-1",
		}
	}
	for _, name := range r.Names {
		if _, ok := byName[name]; !ok {
			return nil, cloud.InvalidParameter("Invalid availability zone: [%s]", name)
		}
	}
	for _, id := range r.IDs {
		if !slices.ContainsFunc(sortedKeys(byName), func(name string) bool { return byName[name].ID == id }) {
			return nil, cloud.InvalidParameter("Invalid availability zone-id: [%s]", id)
		}
	}
	asked := func(z zoneXML) bool {
		return (len(r.Names) == 0 || slices.Contains(r.Names, z.Name)) &&
			(len(r.IDs) == 0 || slices.Contains(r.IDs, z.ID))
	}
	out := &zoneList{}
	for _, name := range sortedKeys(byName) {
		if asked(byName[name]) {
			out.Zones = append(out.Zones, byName[name])
		}
	}
	var err error
	out.Zones, err = keep(c, out.Zones, r.Filters, zoneAttributes(), nil)
	return out, err
}

// zoneAttributes are the filters of DescribeAvailabilityZones.
func zoneAttributes() attributes[zoneXML] {
	return merged(absent[zoneXML]("message", "parent-zone-id", "parent-zone-name"), attributes[zoneXML]{
		"group-name":    func(z zoneXML) []string { return one(z.Group) },
		"zone-name":     func(z zoneXML) []string { return one(z.Name) },
		"zone-id":       func(z zoneXML) []string { return one(z.ID) },
		"zone-type":     func(z zoneXML) []string { return one(z.Type) },
		"region-name":   func(z zoneXML) []string { return one(z.Region) },
		"state":         func(z zoneXML) []string { return one(z.State) },
		"opt-in-status": func(z zoneXML) []string { return one(z.OptIn) },
	})
}
