package ec2

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) routeActions() []query.Action {
	put := func(name string, do func(cloud.RouteTableHandle, netip.Prefix, cloud.RouteTarget) error) query.Action {
		return query.Handle(query.Spec[putRoute, returned]{
			Name: name, Page: page(name), Permit: permitTable[putRoute],
			Do: func(_ *query.Call, r *putRoute) (*returned, error) {
				dst, to, err := r.wanted()
				if err != nil {
					return nil, err
				}
				return done(do(a.cloud.RouteTable(vpc.RouteTableID(r.Table)), dst, to))
			},
		})
	}
	return []query.Action{
		query.Handle(query.Spec[describeTables, tableList]{
			Name: "DescribeRouteTables", Page: page("DescribeRouteTables"), ReadOnly: true,
			Permit: onAnyResource[describeTables], Do: listTables,
		}),
		put("CreateRoute", cloud.RouteTableHandle.CreateRoute),
		put("ReplaceRoute", cloud.RouteTableHandle.ReplaceRoute),
		query.Handle(query.Spec[deleteRoute, returned]{
			Name: "DeleteRoute", Page: page("DeleteRoute"), Permit: permitTable[deleteRoute],
			Do: func(_ *query.Call, r *deleteRoute) (*returned, error) {
				dst, err := destination(r.CIDR, r.CIDR6)
				if err != nil {
					return nil, err
				}
				return done(a.cloud.RouteTable(vpc.RouteTableID(r.Table)).DeleteRoute(dst))
			},
		}),
	}
}

type describeTables struct {
	query.DryRun
	Page
	IDs     []string `q:"RouteTableId"`
	Filters []Filter `q:"Filter"`
}

type routeXML struct {
	CIDR          string `q:"destinationCidrBlock,omitempty"`
	CIDR6         string `q:"destinationIpv6CidrBlock,omitempty"`
	Gateway       string `q:"gatewayId,omitempty"`
	Instance      string `q:"instanceId,omitempty"`
	InstanceOwner string `q:"instanceOwnerId,omitempty"`
	Interface     string `q:"networkInterfaceId,omitempty"`
	Origin        string `q:"origin"`
	State         string `q:"state"`
}

type associationStateXML struct {
	State string `q:"state"`
}

type associationXML struct {
	ID     string              `q:"routeTableAssociationId"`
	Table  string              `q:"routeTableId"`
	Subnet string              `q:"subnetId,omitempty"`
	Main   bool                `q:"main"`
	State  associationStateXML `q:"associationState"`
}

// tableXML is RouteTable. Source: API_RouteTable.html.
type tableXML struct {
	ID           string           `q:"routeTableId"`
	VPC          string           `q:"vpcId"`
	Owner        string           `q:"ownerId"`
	Routes       []routeXML       `q:"routeSet"`
	Associations []associationXML `q:"associationSet"`
	// Propagating is always empty: virtual private gateways are not supported.
	Propagating []struct{} `q:"propagatingVgwSet"`
	Tags        []tagXML   `q:"tagSet"`
}

type tableList struct {
	Tables    []tableXML `q:"routeTableSet"`
	NextToken string     `q:"nextToken,omitempty"`
}

func listTables(c *query.Call, r *describeTables) (*tableList, error) {
	out, next, err := listPage(c, listing[*cloud.RouteTable]{
		kind: cloud.KindTable, set: "routeTableId", all: cloud.Sorted(c.State.RouteTables), ids: r.IDs, filters: r.Filters, page: r.Page, most: smallPage,
		id:    func(t *cloud.RouteTable) string { return string(t.ID) },
		tags:  func(t *cloud.RouteTable) cloud.Tags { return t.Tags },
		attrs: tableAttributes(c.State),
	}, func(t *cloud.RouteTable) tableXML { return newTableXML(c.State, t) })
	return &tableList{out, next}, err
}

func newTableXML(s *cloud.State, t *cloud.RouteTable) tableXML {
	return tableXML{
		ID: string(t.ID), VPC: string(s.VPC.ID), Owner: s.Account, Tags: tagsXML(t.Tags), Associations: associations(s, t),
		Routes: each(t.Routes, func(r cloud.Route) routeXML { return newRouteXML(s, r) }),
	}
}

// tableAttributes are the filters of DescribeRouteTables.
func tableAttributes(s *cloud.State) attributes[*cloud.RouteTable] {
	type table = *cloud.RouteTable
	each := func(f func(routeXML) string) func(table) []string {
		return func(t table) []string {
			var out []string
			for _, r := range t.Routes {
				out = append(out, maybe(f(newRouteXML(s, r)))...)
			}
			return out
		}
	}
	joined := func(f func(associationXML) []string) func(table) []string {
		return func(t table) []string {
			var out []string
			for _, x := range associations(s, t) {
				out = append(out, f(x)...)
			}
			return out
		}
	}
	return merged(attributes[table]{
		"route-table-id":                         func(t table) []string { return one(string(t.ID)) },
		"vpc-id":                                 func(table) []string { return one(string(s.VPC.ID)) },
		"owner-id":                               func(table) []string { return one(s.Account) },
		"association.subnet-id":                  joined(func(x associationXML) []string { return maybe(x.Subnet) }),
		"association.main":                       joined(func(x associationXML) []string { return yesNo(x.Main) }),
		"association.route-table-id":             joined(func(x associationXML) []string { return one(x.Table) }),
		"association.route-table-association-id": joined(func(x associationXML) []string { return one(x.ID) }),
		"route.destination-cidr-block":           each(func(r routeXML) string { return r.CIDR }),
		"route.destination-ipv6-cidr-block":      each(func(r routeXML) string { return r.CIDR6 }),
		"route.gateway-id":                       each(func(r routeXML) string { return r.Gateway }),
		"route.instance-id":                      each(func(r routeXML) string { return r.Instance }),
		"route.origin":                           each(func(r routeXML) string { return r.Origin }),
		"route.state":                            each(func(r routeXML) string { return r.State }),
	}, absent[table](
		"association.gateway-id", "route.destination-prefix-list-id", "route.egress-only-internet-gateway-id",
		"route.nat-gateway-id", "route.transit-gateway-id", "route.vpc-peering-connection-id",
	))
}

func newRouteXML(s *cloud.State, r cloud.Route) routeXML {
	x := routeXML{Gateway: string(r.Gateway), Interface: string(r.Interface), Origin: r.Origin, State: "active"}
	if r.Destination.Addr().Is4() {
		x.CIDR = r.Destination.String()
	} else {
		x.CIDR6 = r.Destination.String()
	}
	if i := s.Interfaces[r.Interface]; i != nil && i.Attachment != nil && i.Attachment.Instance != "" {
		x.Instance, x.InstanceOwner = string(i.Attachment.Instance), s.Account
	}
	if !s.Active(r) {
		x.State = "blackhole"
	}
	return x
}

// associations lists the subnets that are associated with a table, and the VPC for
// the main table.
func associations(s *cloud.State, t *cloud.RouteTable) []associationXML {
	var out []associationXML
	id := string(t.ID)
	if t.Main {
		out = append(out, associationXML{
			ID: string(t.MainAssociation()), Table: id, Main: true, State: associationStateXML{"associated"},
		})
	}
	for _, n := range cloud.Sorted(s.Subnets) {
		if n.Table == t.ID && n.Association != "" {
			out = append(out, associationXML{
				ID: string(n.Association), Table: id, Subnet: string(n.ID),
				State: associationStateXML{"associated"},
			})
		}
	}
	return out
}

type putRoute struct {
	query.DryRun
	Table     string `q:"RouteTableId,required"`
	CIDR      string `q:"DestinationCidrBlock"`
	CIDR6     string `q:"DestinationIpv6CidrBlock"`
	Gateway   string `q:"GatewayId"`
	Interface string `q:"NetworkInterfaceId"`
	Instance  string `q:"InstanceId"`
	NAT       string `q:"NatGatewayId"`
}

func (r putRoute) tableID() string { return r.Table }

type deleteRoute struct {
	query.DryRun
	Table string `q:"RouteTableId,required"`
	CIDR  string `q:"DestinationCidrBlock"`
	CIDR6 string `q:"DestinationIpv6CidrBlock"`
}

func (r deleteRoute) tableID() string { return r.Table }

// permitTable requires permission for the one route table that a request names.
func permitTable[Req interface{ tableID() string }](c *query.Call, r *Req) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.table((*r).tableID())
	return q.result()
}

func (r *putRoute) wanted() (netip.Prefix, cloud.RouteTarget, error) {
	to := cloud.RouteTarget{
		Gateway: vpc.GatewayID(r.Gateway), Interface: vpc.ENIID(r.Interface), Instance: vpc.InstanceID(r.Instance),
	}
	p := &parser{}
	p.exclusive(r.Gateway != "", r.Interface != "", r.Instance != "", r.NAT != "")
	switch {
	case r.NAT != "":
		p.fail(noNATGateway(r.NAT))
	case to == (cloud.RouteTarget{}):
		p.fail(cloud.MissingParameter("gatewayId, networkInterfaceId or instanceId"))
	}
	if p.err != nil {
		return netip.Prefix{}, to, p.err
	}
	dst, err := destination(r.CIDR, r.CIDR6)
	return dst, to, err
}

// noNATGateway is EC2's error for an unknown NAT gateway: there are none here. Source:
// github.com/boto/boto3/issues/779.
func noNATGateway(id string) error {
	return cloud.Errorf("InvalidNatGatewayID.NotFound", "The natGateway ID '%s' does not exist", id)
}

// destination reads a route's destination; host bits are cleared, as EC2 does.
func destination(cidr, cidr6 string) (netip.Prefix, error) {
	p := &parser{}
	p.exclusive(cidr != "", cidr6 != "")
	var dst netip.Prefix
	switch {
	case cidr != "":
		dst = p.block("destinationCidrBlock", cidr, true)
	case cidr6 != "":
		dst = p.block("destinationIpv6CidrBlock", cidr6, false)
	default:
		p.fail(cloud.MissingParameter("destinationCidrBlock"))
	}
	return dst, p.err
}
