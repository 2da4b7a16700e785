package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// trunkAPI has the actions on associations of branch interfaces with trunk interfaces.
type trunkAPI struct{ *api }

func (a trunkAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[associateTrunk, associatedTrunk]{
			Name: "AssociateTrunkInterface", Page: page("AssociateTrunkInterface"), Permit: permitTrunkCall[associateTrunk], Do: a.associate,
		}),
		query.Handle(query.Spec[disassociateTrunk, disassociatedTrunk]{
			Name: "DisassociateTrunkInterface", Page: page("DisassociateTrunkInterface"), Permit: permitTrunkCall[disassociateTrunk], Do: a.disassociate,
		}),
		query.Handle(query.Spec[describeTrunks, trunkAssociationList]{
			Name: "DescribeTrunkInterfaceAssociations", Page: page("DescribeTrunkInterfaceAssociations"), ReadOnly: true,
			Permit: permitTrunkCall[describeTrunks], Do: listTrunkAssociations,
		}),
	}
}

// permitTrunkCall requires permission for the action, which takes no resource, and refuses
// accounts to which AWS does not allow it, a dry run as well. AWS's own services make these calls on
// every account: EKS's VPC resource controller does. Source of the error: an
// account's answers to all describes, README of github.com/Jase-The-Ace/beatdrift-cli.
func permitTrunkCall[Req any](c *query.Call, r *Req) ([]iam.Request, error) {
	asked, err := onAnyResource(c, r)
	if err == nil && !c.State.Quotas.TrunkCalls && c.Principal.Service == "" {
		err = cloud.Errorf("OperationNotPermitted", "User %s is not permitted to perform this operation", c.State.Account)
	}
	return asked, err
}

type associateTrunk struct {
	query.DryRun
	Branch      string `q:"BranchInterfaceId,required"`
	Trunk       string `q:"TrunkInterfaceId,required"`
	VLAN        *int   `q:"VlanId"`
	ClientToken string `q:"ClientToken"`
}

// trunkAssociationXML is TrunkInterfaceAssociation. Source: API_TrunkInterfaceAssociation.html.
type trunkAssociationXML struct {
	ID       string   `q:"associationId"`
	Branch   string   `q:"branchInterfaceId"`
	Trunk    string   `q:"trunkInterfaceId"`
	Protocol string   `q:"interfaceProtocol"`
	VLAN     int      `q:"vlanId"`
	Tags     []tagXML `q:"tagSet"` // always empty: no action tags an association
}

// protocolVLAN is the only protocol of associations here.
const protocolVLAN = "VLAN"

func newTrunkAssociationXML(branch *cloud.Interface) trunkAssociationXML {
	t := branch.Trunk
	return trunkAssociationXML{ID: string(t.ID), Branch: string(branch.ID), Trunk: string(t.Trunk), Protocol: protocolVLAN, VLAN: t.VLAN}
}

type associatedTrunk struct {
	Association trunkAssociationXML `q:"interfaceAssociation"`
	ClientToken string              `q:"clientToken,omitempty"`
}

func (a trunkAPI) associate(c *query.Call, r *associateTrunk) (*associatedTrunk, error) {
	for _, id := range []string{r.Trunk, r.Branch} {
		if err := cloud.KindInterface.CheckID(id); err != nil {
			return nil, err
		}
	}
	if r.VLAN == nil {
		return nil, cloud.MissingParameter("vlanId")
	}
	return once(a.tokens, c.Action, r.ClientToken, r, func() (*associatedTrunk, error) {
		made, err := a.cloud.Interface(vpc.ENIID(r.Trunk)).AssociateBranch(vpc.ENIID(r.Branch), *r.VLAN)
		if err != nil {
			return nil, err
		}
		return &associatedTrunk{newTrunkAssociationXML(made), r.ClientToken}, nil
	})
}

type disassociateTrunk struct {
	query.DryRun
	Association string `q:"AssociationId,required"`
	ClientToken string `q:"ClientToken"`
}

type disassociatedTrunk struct {
	Return      bool   `q:"return"`
	ClientToken string `q:"clientToken,omitempty"`
}

func (a trunkAPI) disassociate(c *query.Call, r *disassociateTrunk) (*disassociatedTrunk, error) {
	return once(a.tokens, c.Action, r.ClientToken, r, func() (*disassociatedTrunk, error) {
		id := cloud.TrunkAssociationID(r.Association)
		branch := cloud.BranchOf(c.State, id)
		if branch == nil {
			return nil, cloud.NoAssociation(r.Association)
		}
		if err := a.cloud.Interface(branch.ID).Disassociate(id); err != nil {
			return nil, err
		}
		return &disassociatedTrunk{true, r.ClientToken}, nil
	})
}

type describeTrunks struct {
	query.DryRun
	Page
	IDs     []string `q:"AssociationId"`
	Filters []Filter `q:"Filter"`
}

type trunkAssociationList struct {
	Associations []trunkAssociationXML `q:"interfaceAssociationSet"`
	NextToken    string                `q:"nextToken,omitempty"`
}

func listTrunkAssociations(c *query.Call, r *describeTrunks) (*trunkAssociationList, error) {
	out, next, err := listPage(c, listing[*cloud.Interface]{
		kind: cloud.KindTrunkAssociation, set: "associationId", all: cloud.Branches(c.State), ids: r.IDs, filters: r.Filters, page: r.Page,
		most:  255, // EC2 model, DescribeTrunkInterfaceAssociationsMaxResults
		id:    func(i *cloud.Interface) string { return string(i.Trunk.ID) },
		attrs: trunkAttributes(),
	}, newTrunkAssociationXML)
	return &trunkAssociationList{out, next}, err
}

// trunkAttributes are the filters of DescribeTrunkInterfaceAssociations.
func trunkAttributes() attributes[*cloud.Interface] {
	return merged(attributes[*cloud.Interface]{
		"interface-protocol": func(*cloud.Interface) []string { return one(protocolVLAN) },
	}, absent[*cloud.Interface]("gre-key"))
}
