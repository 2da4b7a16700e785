package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// subnetAPI has the actions on subnets.
type subnetAPI struct{ *api }

func (a subnetAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[createSubnet, createdSubnet]{
			Name: "CreateSubnet", Page: page("CreateSubnet"), Permit: permitCreateSubnet, Do: a.createSubnet,
		}),
		query.Handle(query.Spec[deleteSubnet, returned]{
			Name: "DeleteSubnet", Page: page("DeleteSubnet"), Permit: permitSubnet[deleteSubnet],
			Do: func(_ *query.Call, r *deleteSubnet) (*returned, error) {
				return done(a.cloud.Subnet(vpc.SubnetID(r.ID)).Delete())
			},
		}),
		query.Handle(query.Spec[modifySubnet, returned]{
			Name: "ModifySubnetAttribute", Page: page("ModifySubnetAttribute"), Permit: permitSubnet[modifySubnet], Do: a.modifySubnet,
		}),
	}
}

type createSubnet struct {
	query.DryRun
	VPC      string             `q:"VpcId,required"`
	CIDR     string             `q:"CidrBlock"`
	CIDR6    string             `q:"Ipv6CidrBlock"`
	OnlyIPv6 bool               `q:"Ipv6Native"`
	Zone     string             `q:"AvailabilityZone"`
	ZoneID   string             `q:"AvailabilityZoneId"`
	Tags     []TagSpecification `q:"TagSpecification"`
}

type createdSubnet struct {
	Subnet subnetXML `q:"subnet"`
}

// permitCreateSubnet requires permission for the new subnet, its VPC and, if it is tagged,
// for CreateTags. Source: Service Authorization Reference, EC2.
func permitCreateSubnet(c *query.Call, r *createSubnet) ([]iam.Request, error) {
	tags, err := tagsFor(cloud.KindSubnet, r.Tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	q.require(cloud.KindSubnet, "*", ofVPC(c), tagging(tags))
	q.vpc(r.VPC)
	q.createTags(cloud.KindSubnet, tags, ofVPC(c))
	return q.result()
}

func (a subnetAPI) createSubnet(c *query.Call, r *createSubnet) (*createdSubnet, error) {
	w, err := r.wanted(c.State)
	if err != nil {
		return nil, err
	}
	made, err := a.cloud.VPC(vpc.ID(r.VPC)).CreateSubnet(w)
	if err != nil {
		return nil, err
	}
	return &createdSubnet{newSubnetXML(&query.Call{State: a.cloud.State()}, made)}, nil
}

// wanted converts a request into a cloud.NewSubnet.
func (r *createSubnet) wanted(s *cloud.State) (w cloud.NewSubnet, err error) {
	p := &parser{}
	p.exclusive(r.Zone != "", r.ZoneID != "")
	switch {
	case r.OnlyIPv6 && r.CIDR != "":
		p.fail(cloud.Errorf("InvalidParameterCombination", "The parameters ipv6Native and cidrBlock cannot be used together."))
	case r.OnlyIPv6 && r.CIDR6 == "":
		p.fail(cloud.MissingParameter("ipv6CidrBlock"))
	case !r.OnlyIPv6 && r.CIDR == "":
		p.fail(cloud.MissingParameter("cidrBlock"))
	}
	w.Zone = r.Zone
	if r.ZoneID != "" {
		w.Zone = r.ZoneID // an unknown one is refused by its id
		for _, zone := range s.Zones() {
			if ZoneID(zone) == r.ZoneID {
				w.Zone = zone
			}
		}
	}
	if r.CIDR != "" {
		w.CIDR = p.block("cidrBlock", r.CIDR, true)
	}
	if r.CIDR6 != "" {
		w.CIDR6 = p.block("ipv6CidrBlock", r.CIDR6, false)
	}
	if p.err != nil {
		return w, p.err
	}
	w.Tags, err = tagsFor(cloud.KindSubnet, r.Tags)
	return w, err
}

type deleteSubnet struct {
	query.DryRun
	ID string `q:"SubnetId,required"`
}

func (r deleteSubnet) subnetID() string { return r.ID }

// modifySubnet has no DryRun, as on EC2.
type modifySubnet struct {
	ID         string     `q:"SubnetId,required"`
	Public     *boolValue `q:"MapPublicIpOnLaunch"`
	AssignIPv6 *boolValue `q:"AssignIpv6AddressOnCreation"`
}

func (r modifySubnet) subnetID() string { return r.ID }

// permitSubnet requires permission for the one subnet that a request names.
func permitSubnet[Req interface{ subnetID() string }](c *query.Call, r *Req) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.subnet((*r).subnetID())
	return q.result()
}

// modifySubnet changes one attribute; EC2 accepts only one in a call.
func (a subnetAPI) modifySubnet(_ *query.Call, r *modifySubnet) (*returned, error) {
	subnet := a.cloud.Subnet(vpc.SubnetID(r.ID))
	switch {
	case r.Public != nil && r.AssignIPv6 != nil:
		return nil, cloud.Errorf("InvalidParameterCombination", "Fields for multiple attribute types specified: mapPublicIpOnLaunch, assignIpv6AddressOnCreation")
	case r.Public != nil:
		return done(subnet.SetPublic(r.Public.Value))
	case r.AssignIPv6 != nil:
		return done(subnet.SetAssignIPv6(r.AssignIPv6.Value))
	}
	return nil, noAttributes()
}
