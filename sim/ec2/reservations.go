package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// reservationAPI has the actions on subnet CIDR reservations.
type reservationAPI struct{ *api }

func (a reservationAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[createReservation, createdReservation]{
			Name: "CreateSubnetCidrReservation", Page: page("CreateSubnetCidrReservation"), Permit: permitReserve, Do: a.reserve,
		}),
		query.Handle(query.Spec[deleteReservation, deletedReservation]{
			Name: "DeleteSubnetCidrReservation", Page: page("DeleteSubnetCidrReservation"), Permit: permitUnreserve, Do: a.unreserve,
		}),
		query.Handle(query.Spec[getReservations, cidrReservationList]{
			Name: "GetSubnetCidrReservations", Page: page("GetSubnetCidrReservations"), ReadOnly: true,
			Permit: onAnyResource[getReservations], Do: listReservations,
		}),
	}
}

type createReservation struct {
	query.DryRun
	Subnet      string             `q:"SubnetId,required"`
	CIDR        string             `q:"Cidr,required"`
	Type        string             `q:"ReservationType,required"`
	Description string             `q:"Description"`
	Tags        []TagSpecification `q:"TagSpecification"`
}

// cidrReservationXML is SubnetCidrReservation. Source: API_SubnetCidrReservation.html.
type cidrReservationXML struct {
	ID          string   `q:"subnetCidrReservationId"`
	Subnet      string   `q:"subnetId"`
	CIDR        string   `q:"cidr"`
	Type        string   `q:"reservationType"`
	Owner       string   `q:"ownerId"`
	Description string   `q:"description,omitempty"`
	Tags        []tagXML `q:"tagSet,omitempty"`
}

func newCIDRReservationXML(s *cloud.State, subnet string, r cloud.Reservation) cidrReservationXML {
	return cidrReservationXML{r.ID, subnet, r.CIDR.String(), string(r.Type), s.Account, r.Description, tagsXML(r.Tags)}
}

type createdReservation struct {
	Reservation cidrReservationXML `q:"subnetCidrReservation"`
}

// permitReserve requires permission for the subnet and, if the reservation is tagged, for
// CreateTags.
func permitReserve(c *query.Call, r *createReservation) ([]iam.Request, error) {
	tags, err := tagsFor(cloud.KindReservation, r.Tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	q.subnet(r.Subnet)
	q.createTags(cloud.KindReservation, tags)
	return q.result()
}

func (a reservationAPI) reserve(c *query.Call, r *createReservation) (*createdReservation, error) {
	p := &parser{}
	w := cloud.Reservation{CIDR: p.prefix("cidr", r.CIDR).Masked(), Type: cloud.ReservationType(r.Type), Description: r.Description}
	if w.Type != cloud.ReservePrefix && w.Type != cloud.ReserveExplicit {
		p.fail(cloud.InvalidParameter("Value (%s) for parameter reservationType is invalid.", r.Type))
	}
	if p.err != nil {
		return nil, p.err
	}
	var err error
	if w.Tags, err = tagsFor(cloud.KindReservation, r.Tags); err != nil {
		return nil, err
	}
	made, err := a.cloud.Subnet(vpc.SubnetID(r.Subnet)).Reserve(w)
	if err != nil {
		return nil, err
	}
	return &createdReservation{newCIDRReservationXML(c.State, r.Subnet, made)}, nil
}

type deleteReservation struct {
	query.DryRun
	ID string `q:"SubnetCidrReservationId,required"`
}

type deletedReservation struct {
	Reservation cidrReservationXML `q:"deletedSubnetCidrReservation"`
}

// permitUnreserve requires permission for the subnet of the reservation.
func permitUnreserve(c *query.Call, r *deleteReservation) ([]iam.Request, error) {
	q := &authorization{call: c}
	if !q.wellFormed(cloud.KindReservation, r.ID) {
		return q.result()
	}
	n := c.State.ReservedIn(r.ID)
	if n == nil {
		q.require(cloud.KindSubnet, "*")
		q.err = cloud.KindReservation.NotFound(r.ID)
		return q.result()
	}
	q.subnet(string(n.ID))
	return q.result()
}

func (a reservationAPI) unreserve(c *query.Call, r *deleteReservation) (*deletedReservation, error) {
	n := c.State.ReservedIn(r.ID)
	if n == nil {
		return nil, cloud.KindReservation.NotFound(r.ID)
	}
	gone, err := a.cloud.Subnet(n.ID).Unreserve(r.ID)
	if err != nil {
		return nil, err
	}
	return &deletedReservation{newCIDRReservationXML(c.State, string(n.ID), gone)}, nil
}

type getReservations struct {
	query.DryRun
	Page
	Subnet  string   `q:"SubnetId,required"`
	Filters []Filter `q:"Filter"`
}

type cidrReservationList struct {
	IPv4      []cidrReservationXML `q:"subnetIpv4CidrReservationSet"`
	IPv6      []cidrReservationXML `q:"subnetIpv6CidrReservationSet"`
	NextToken string               `q:"nextToken,omitempty"`
}

func listReservations(c *query.Call, r *getReservations) (*cidrReservationList, error) {
	if err := cloud.KindSubnet.CheckID(r.Subnet); err != nil {
		return nil, err
	}
	n := c.State.Subnets[vpc.SubnetID(r.Subnet)]
	if n == nil {
		return nil, cloud.KindSubnet.NotFound(r.Subnet)
	}
	all := map[string]cloud.Reservation{}
	for _, one := range n.Reservations {
		all[one.ID] = one
	}
	items, next, err := listing[cloud.Reservation]{
		kind: cloud.KindReservation, all: cloud.Sorted(all), filters: r.Filters, page: r.Page,
		id:    func(x cloud.Reservation) string { return x.ID },
		tags:  func(x cloud.Reservation) cloud.Tags { return x.Tags },
		attrs: reservationAttributes(r.Subnet),
	}.list(c)
	out := &cidrReservationList{NextToken: next}
	for _, item := range items {
		x := newCIDRReservationXML(c.State, r.Subnet, item)
		if item.CIDR.Addr().Is4() {
			out.IPv4 = append(out.IPv4, x)
		} else {
			out.IPv6 = append(out.IPv6, x)
		}
	}
	return out, err
}

// reservationAttributes are the filters of GetSubnetCidrReservations.
func reservationAttributes(subnet string) attributes[cloud.Reservation] {
	return attributes[cloud.Reservation]{
		"reservationType": func(r cloud.Reservation) []string { return one(string(r.Type)) },
		"subnet-id":       func(cloud.Reservation) []string { return one(subnet) },
	}
}
