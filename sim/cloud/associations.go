package cloud

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// RouteAssociationID identifies the association of a route table with a subnet, or with the VPC
// for the main table.
type RouteAssociationID string

// mainTable is the table of the subnets that are associated with none.
func mainTable(s *State) *RouteTable {
	for _, t := range s.RouteTables {
		if t.Main {
			return t
		}
	}
	return nil
}

// MainAssociation is the id of the main table's association with the VPC.
func (t *RouteTable) MainAssociation() RouteAssociationID {
	if t.association != "" {
		return t.association
	}
	return RouteAssociationID("rtbassoc-" + t.ID[len("rtb-"):])
}

// TableOf returns the route table of an association and, unless it is that of the main
// table with the VPC, the subnet; nil if no such association exists.
func (s *State) TableOf(id RouteAssociationID) (*RouteTable, *Subnet) {
	for _, n := range s.Subnets {
		if n.Association == id {
			return s.RouteTables[n.Table], n
		}
	}
	if t := mainTable(s); t.MainAssociation() == id {
		return t, nil
	}
	return nil, nil
}

// NoAssociation is EC2's error. Source: EC2 API reference, "Error codes".
func NoAssociation(id string) error {
	return Errorf("InvalidAssociationID.NotFound", "The association ID '%s' does not exist", id)
}

// Associate routes a subnet by the table and returns the association. A subnet that is
// associated with another table is refused; whether EC2 accepts the same table again is
// not known, and here it does.
func (h RouteTableHandle) Associate(subnet vpc.SubnetID) (RouteAssociationID, error) {
	var made RouteAssociationID
	err := h.cloud.apply(func(ch *change) error {
		if ch.RouteTables[h.id] == nil {
			return KindTable.NotFound(string(h.id))
		}
		old := ch.Subnets[subnet]
		switch {
		case old == nil:
			return KindSubnet.NotFound(string(subnet))
		case old.Association != "" && old.Table == h.id:
			made = old.Association
			return nil
		case old.Association != "":
			return Errorf("Resource.AlreadyAssociated", "the specified association for route table %s conflicts with an existing association", h.id)
		}
		made = associate(ch, old, h.id)
		return nil
	})
	return made, err
}

// associate associates a subnet with a table, whatever table it had.
func associate(ch *change, old *Subnet, table vpc.RouteTableID) RouteAssociationID {
	n := *old
	n.Table, n.Association = table, RouteAssociationID(ch.newID("rtbassoc-"))
	ch.Subnets[n.ID] = &n
	return n.Association
}

// ReplaceAssociation moves an association to the table and returns its new id. That of the
// main table makes the table the main one, of all subnets without an association.
func (h RouteTableHandle) ReplaceAssociation(id RouteAssociationID) (RouteAssociationID, error) {
	var made RouteAssociationID
	err := h.cloud.apply(func(ch *change) error {
		t, err := ch.table(h.id)
		if err != nil {
			return err
		}
		old, subnet := ch.TableOf(id)
		switch {
		case old == nil:
			return NoAssociation(string(id))
		case subnet != nil:
			made = associate(ch, subnet, h.id)
			return nil
		}
		made = RouteAssociationID(ch.newID("rtbassoc-"))
		was := *old
		was.Main, was.association = false, ""
		ch.RouteTables[was.ID] = &was
		t.Main, t.association = true, made
		ch.RouteTables[t.ID] = t
		followMain(ch)
		return nil
	})
	return made, err
}

// followMain gives the subnets without an association the main table.
func followMain(ch *change) {
	main := mainTable(ch.State).ID
	for id, old := range ch.Subnets {
		if old.Association == "" && old.Table != main {
			n := *old
			n.Table = main
			ch.Subnets[id] = &n
		}
	}
}

// Disassociate ends an association of the table with a subnet, which has the main table
// from then on. Source of the main table's error: EC2's response, quoted in
// github.com/hashicorp/terraform-provider-aws's issues on aws_main_route_table_association.
func (h RouteTableHandle) Disassociate(id RouteAssociationID) error {
	return h.cloud.apply(func(ch *change) error {
		t, subnet := ch.TableOf(id)
		switch {
		case t == nil || t.ID != h.id:
			return NoAssociation(string(id))
		case subnet == nil:
			return InvalidParameter("cannot disassociate the main route table association %s", id)
		}
		n := *subnet
		n.Association = ""
		ch.Subnets[n.ID] = &n
		followMain(ch)
		return nil
	})
}

// Delete deletes a route table that is neither the main one nor associated with a subnet.
func (h RouteTableHandle) Delete() error {
	return h.cloud.apply(func(ch *change) error {
		t := ch.RouteTables[h.id]
		if t == nil {
			return KindTable.NotFound(string(h.id))
		}
		used := t.Main
		for _, n := range ch.Subnets {
			used = used || n.Table == h.id
		}
		if used {
			return Errorf("DependencyViolation", "The routeTable '%s' has dependencies and cannot be deleted.", h.id)
		}
		delete(ch.RouteTables, h.id)
		return nil
	})
}
