package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// tableAPI has the actions on route tables.
type tableAPI struct{ *api }

func (a tableAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[createTable, createdTable]{
			Name: "CreateRouteTable", Page: page("CreateRouteTable"), Permit: permitCreateTable, Do: a.createTable,
		}),
		query.Handle(query.Spec[deleteTable, returned]{
			Name: "DeleteRouteTable", Page: page("DeleteRouteTable"), Permit: permitTable[deleteTable],
			Do: func(_ *query.Call, r *deleteTable) (*returned, error) {
				return done(a.cloud.RouteTable(vpc.RouteTableID(r.Table)).Delete())
			},
		}),
		query.Handle(query.Spec[associateTable, associatedTable]{
			Name: "AssociateRouteTable", Page: page("AssociateRouteTable"), Permit: permitAssociateTable, Do: a.associateTable,
		}),
		query.Handle(query.Spec[disassociateTable, returned]{
			Name: "DisassociateRouteTable", Page: page("DisassociateRouteTable"), Permit: permitDisassociateTable, Do: a.disassociateTable,
		}),
		query.Handle(query.Spec[replaceAssociation, replacedAssociation]{
			Name: "ReplaceRouteTableAssociation", Page: page("ReplaceRouteTableAssociation"), Permit: permitTable[replaceAssociation], Do: a.replaceAssociation,
		}),
	}
}

type createTable struct {
	query.DryRun
	VPC         string             `q:"VpcId,required"`
	ClientToken string             `q:"ClientToken"`
	Tags        []TagSpecification `q:"TagSpecification"`
}

type createdTable struct {
	Table       tableXML `q:"routeTable"`
	ClientToken string   `q:"clientToken,omitempty"`
}

// permitCreateTable requires permission for the new table, its VPC and, if it is tagged,
// for CreateTags. Source: Service Authorization Reference, EC2.
func permitCreateTable(c *query.Call, r *createTable) ([]iam.Request, error) {
	tags, err := tagsFor(cloud.KindTable, r.Tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	q.require(cloud.KindTable, "*", ofVPC(c), tagging(tags))
	q.vpc(r.VPC)
	q.createTags(cloud.KindTable, tags, ofVPC(c))
	return q.result()
}

func (a tableAPI) createTable(c *query.Call, r *createTable) (*createdTable, error) {
	tags, err := tagsFor(cloud.KindTable, r.Tags)
	if err != nil {
		return nil, err
	}
	return once(a.tokens, c.Action, r.ClientToken, r, func() (*createdTable, error) {
		made, err := a.cloud.VPC(vpc.ID(r.VPC)).CreateRouteTable(tags)
		if err != nil {
			return nil, err
		}
		return &createdTable{newTableXML(a.cloud.State(), made), r.ClientToken}, nil
	})
}

type deleteTable struct {
	query.DryRun
	Table string `q:"RouteTableId,required"`
}

func (r deleteTable) tableID() string { return r.Table }

type associateTable struct {
	query.DryRun
	Table  string `q:"RouteTableId,required"`
	Subnet string `q:"SubnetId"`
}

type associatedTable struct {
	Association string              `q:"associationId"`
	State       associationStateXML `q:"associationState"`
}

func permitAssociateTable(c *query.Call, r *associateTable) ([]iam.Request, error) {
	if r.Subnet == "" {
		return nil, cloud.MissingParameter("subnetId or gatewayId")
	}
	q := &authorization{call: c}
	q.table(r.Table)
	q.subnet(r.Subnet)
	return q.result()
}

func (a tableAPI) associateTable(_ *query.Call, r *associateTable) (*associatedTable, error) {
	made, err := a.cloud.RouteTable(vpc.RouteTableID(r.Table)).Associate(vpc.SubnetID(r.Subnet))
	if err != nil {
		return nil, err
	}
	return &associatedTable{string(made), associationStateXML{"associated"}}, nil
}

type disassociateTable struct {
	query.DryRun
	Association string `q:"AssociationId,required"`
}

// permitDisassociateTable requires permission for the table and the subnet of the
// association.
func permitDisassociateTable(c *query.Call, r *disassociateTable) ([]iam.Request, error) {
	q := &authorization{call: c}
	t, n := c.State.TableOf(cloud.RouteAssociationID(r.Association))
	if t == nil {
		q.require(cloud.KindTable, "*")
		q.err = cloud.NoAssociation(r.Association)
		return q.result()
	}
	q.table(string(t.ID))
	if n != nil {
		q.subnet(string(n.ID))
	}
	return q.result()
}

func (a tableAPI) disassociateTable(c *query.Call, r *disassociateTable) (*returned, error) {
	id := cloud.RouteAssociationID(r.Association)
	t, _ := c.State.TableOf(id)
	if t == nil {
		return nil, cloud.NoAssociation(r.Association)
	}
	return done(a.cloud.RouteTable(t.ID).Disassociate(id))
}

type replaceAssociation struct {
	query.DryRun
	Association string `q:"AssociationId,required"`
	Table       string `q:"RouteTableId,required"`
}

func (r replaceAssociation) tableID() string { return r.Table }

type replacedAssociation struct {
	Association string              `q:"newAssociationId"`
	State       associationStateXML `q:"associationState"`
}

func (a tableAPI) replaceAssociation(_ *query.Call, r *replaceAssociation) (*replacedAssociation, error) {
	made, err := a.cloud.RouteTable(vpc.RouteTableID(r.Table)).ReplaceAssociation(cloud.RouteAssociationID(r.Association))
	if err != nil {
		return nil, err
	}
	return &replacedAssociation{string(made), associationStateXML{"associated"}}, nil
}
