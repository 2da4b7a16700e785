package cloud

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// RouteTable is a route table of the VPC.
type RouteTable struct {
	ID     vpc.RouteTableID
	Name   string
	Main   bool
	Routes []Route // local ones first
	Tags   Tags
	// association of the main table with the VPC, if it was not made with the table; see
	// MainAssociation.
	association RouteAssociationID
}

// Route has a gateway or an interface as its target; exactly one is set.
type Route struct {
	Destination netip.Prefix
	Gateway     vpc.GatewayID // an internet gateway, or LocalGateway
	Interface   vpc.ENIID
	Origin      string // CreateRouteTable or CreateRoute
}

// LocalGateway is the target of a VPC's own routes.
const LocalGateway vpc.GatewayID = "local"

// Active reports whether a route's target exists and is attached; otherwise the
// route is a blackhole.
func (s *State) Active(r Route) bool {
	if r.Interface == "" {
		return r.Gateway == LocalGateway || r.Gateway == s.Gateway
	}
	i := s.Interfaces[r.Interface]
	return i != nil && i.Attachment != nil
}

// RouteTarget is the target that a request names. Exactly one field is set.
type RouteTarget struct {
	Gateway   vpc.GatewayID
	Interface vpc.ENIID
	Instance  vpc.InstanceID // its only interface
}

// RouteTableHandle changes the routes of one route table.
type RouteTableHandle struct {
	cloud *Cloud
	id    vpc.RouteTableID
}

// RouteTable returns the handle of a route table, which need not exist.
func (c *Cloud) RouteTable(id vpc.RouteTableID) RouteTableHandle { return RouteTableHandle{c, id} }

// CreateRoute adds a route. Creating a route that exists with the same
// target is a success, as on EC2.
func (h RouteTableHandle) CreateRoute(dst netip.Prefix, to RouteTarget) error {
	return h.cloud.apply(func(ch *change) error {
		t, r, err := ch.route(h.id, dst, to)
		if err != nil {
			return err
		}
		if i := t.index(dst); i >= 0 {
			if t.Routes[i] == r {
				return nil
			}
			return Errorf("RouteAlreadyExists", "The route identified by %s already exists.", dst)
		}
		if t.count(dst.Addr().Is4()) >= ch.Quotas.RoutesPerTable {
			return Errorf("RouteLimitExceeded", "The maximum number of routes has been reached.")
		}
		t.Routes = append(t.Routes, r)
		ch.RouteTables[h.id] = t
		return nil
	})
}

// ReplaceRoute changes the target of an existing route.
func (h RouteTableHandle) ReplaceRoute(dst netip.Prefix, to RouteTarget) error {
	return h.cloud.apply(func(ch *change) error {
		t, r, err := ch.route(h.id, dst, to)
		if err != nil {
			return err
		}
		i := t.index(dst)
		if i < 0 {
			return InvalidParameter("There is no route defined for '%s' in the route table. "+
				"Use CreateRoute instead.", dst)
		}
		t.Routes[i] = r
		ch.RouteTables[h.id] = t
		return nil
	})
}

// DeleteRoute removes a route.
func (h RouteTableHandle) DeleteRoute(dst netip.Prefix) error {
	return h.cloud.apply(func(ch *change) error {
		t, err := ch.table(h.id)
		if err != nil {
			return err
		}
		i := t.index(dst)
		if i < 0 {
			return Errorf("InvalidRoute.NotFound",
				"no route with destination-cidr-block %s in route table %s", dst, h.id)
		}
		if t.Routes[i].Gateway == LocalGateway {
			return InvalidParameter("cannot remove local route %s in route table %s", dst, h.id)
		}
		t.Routes = slices.Delete(t.Routes, i, i+1)
		ch.RouteTables[h.id] = t
		return nil
	})
}

// table returns a copy of a route table that may be modified.
func (ch *change) table(id vpc.RouteTableID) (*RouteTable, error) {
	t := ch.RouteTables[id]
	if t == nil {
		return nil, KindTable.NotFound(string(id))
	}
	n := *t
	n.Routes = slices.Clone(t.Routes)
	return &n, nil
}

// route resolves a request into a table to modify and a route.
func (ch *change) route(id vpc.RouteTableID, dst netip.Prefix, to RouteTarget) (*RouteTable, Route, error) {
	t, err := ch.table(id)
	if err != nil {
		return nil, Route{}, err
	}
	if err := ch.checkInside(dst, to); err != nil {
		return nil, Route{}, err
	}
	r := Route{Destination: dst, Origin: "CreateRoute"}
	switch {
	case to.Gateway != "":
		if to.Gateway != ch.Gateway {
			return nil, Route{}, noGateway(to.Gateway)
		}
		r.Gateway = to.Gateway
	case to.Interface != "":
		if ch.Interfaces[to.Interface] == nil {
			return nil, Route{}, KindInterface.NotFound(string(to.Interface))
		}
		r.Interface = to.Interface
	default:
		r.Interface, err = ch.OnlyInterface(to.Instance)
	}
	return t, r, err
}

// noGateway is EC2's error for a route to an unknown gateway. Actions on internet
// gateways answer KindGateway.NotFound. Source:
// github.com/devopsacademyau/academy/pull/906, which shows the response to CreateRoute.
func noGateway(id vpc.GatewayID) *Error {
	return Errorf("InvalidGatewayID.NotFound", "The gateway ID '%s' does not exist", id)
}

// checkInside refuses a route for a destination inside the VPC, except a route of a
// whole subnet to an interface. Source: VPC user guide, "Route table concepts" and
// "Middlebox routing".
func (ch *change) checkInside(dst netip.Prefix, to RouteTarget) error {
	for _, local := range append(slices.Clone(ch.VPC.CIDRs), ch.VPC.CIDR6) {
		switch {
		case !local.IsValid() || !local.Contains(dst.Addr()) || local.Bits() > dst.Bits():
		case local == dst:
			return InvalidParameter("The destination CIDR block %s is equal to the VPC's CIDR block %s.", dst, local)
		case to.Gateway != "":
			return InvalidParameter("Route target is not supported. This route only supports interface and instance targets.")
		default:
			for _, n := range ch.Subnets {
				if n.CIDR == dst || n.CIDR6 == dst {
					return nil
				}
			}
			return InvalidParameter("The destination CIDR block %s is within the VPC's CIDR block %s and is not that of a subnet.", dst, local)
		}
	}
	return nil
}

// OnlyInterface returns the interface of an instance that a request means which names no
// interface, such as that for a route to the instance.
func (s *State) OnlyInterface(id vpc.InstanceID) (vpc.ENIID, error) {
	if s.Instances[id] == nil {
		return "", KindInstance.NotFound(string(id))
	}
	all := s.InterfacesOf(id)
	if len(all) != 1 {
		return "", Errorf("InvalidInstanceID",
			"There are multiple interfaces attached to instance '%s'. "+
				"Please specify an interface ID for the operation instead.", id)
	}
	return all[0].ID, nil
}

func (t *RouteTable) index(dst netip.Prefix) int {
	return slices.IndexFunc(t.Routes, func(r Route) bool { return r.Destination == dst })
}

// count returns how many routes of a family count against the quota: all except the
// local ones.
func (t *RouteTable) count(is4 bool) int {
	n := 0
	for _, r := range t.Routes {
		if r.Gateway != LocalGateway && r.Destination.Addr().Is4() == is4 {
			n++
		}
	}
	return n
}
