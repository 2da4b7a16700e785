package ec2

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// vpcAPI has the actions on the VPC.
type vpcAPI struct{ *api }

func (a vpcAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeVPCAttribute, vpcAttribute]{
			Name: "DescribeVpcAttribute", Page: page("DescribeVpcAttribute"), ReadOnly: true,
			Permit: permitVPC[describeVPCAttribute], Do: readVPCAttribute,
		}),
		query.Handle(query.Spec[associateCIDR, associatedCIDR]{
			Name: "AssociateVpcCidrBlock", Page: page("AssociateVpcCidrBlock"), Permit: permitVPC[associateCIDR], Do: a.associateCIDR,
		}),
	}
}

// permitVPC requires permission for the one VPC that a request names.
func permitVPC[Req interface{ vpcID() string }](c *query.Call, r *Req) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.vpc((*r).vpcID())
	return q.result()
}

type describeVPCAttribute struct {
	query.DryRun
	VPC       string `q:"VpcId,required"`
	Attribute string `q:"Attribute,required"`
}

func (r describeVPCAttribute) vpcID() string { return r.VPC }

type vpcAttribute struct {
	VPC          string   `q:"vpcId"`
	DNSHostnames *boolXML `q:"enableDnsHostnames"`
	DNSSupport   *boolXML `q:"enableDnsSupport"`
	UsageMetrics *boolXML `q:"enableNetworkAddressUsageMetrics"`
}

// readVPCAttribute shows what every VPC here has: the resolver, and DNS names of private
// and public addresses.
func readVPCAttribute(_ *query.Call, r *describeVPCAttribute) (*vpcAttribute, error) {
	out := &vpcAttribute{VPC: r.VPC}
	switch r.Attribute {
	case "enableDnsHostnames":
		out.DNSHostnames = &boolXML{true}
	case "enableDnsSupport":
		out.DNSSupport = &boolXML{true}
	case "enableNetworkAddressUsageMetrics":
		out.UsageMetrics = &boolXML{false}
	default:
		return nil, cloud.InvalidParameter("Value (%s) for parameter attribute is invalid. Unknown attribute.", r.Attribute)
	}
	return out, nil
}

// associateCIDR has no DryRun, as on EC2.
type associateCIDR struct {
	VPC    string `q:"VpcId,required"`
	CIDR   string `q:"CidrBlock"`
	Amazon bool   `q:"AmazonProvidedIpv6CidrBlock"`
}

func (r associateCIDR) vpcID() string { return r.VPC }

type associatedCIDR struct {
	VPC  string      `q:"vpcId"`
	IPv4 *vpcCIDRXML `q:"cidrBlockAssociation"`
	IPv6 *vpcIPv6XML `q:"ipv6CidrBlockAssociation"`
}

// associateCIDR adds a range, which is "associating" in the response and associated in
// every describe.
func (a vpcAPI) associateCIDR(_ *query.Call, r *associateCIDR) (*associatedCIDR, error) {
	p := &parser{}
	p.exclusive(r.CIDR != "", r.Amazon)
	v := a.cloud.VPC(vpc.ID(r.VPC))
	var added netip.Prefix
	var err error
	switch {
	case p.err != nil:
		return nil, p.err
	case r.CIDR != "":
		if added = p.block("cidrBlock", r.CIDR, true); p.err != nil {
			return nil, p.err
		}
		err = v.AddCIDR(added)
	case r.Amazon:
		added, err = v.AddCIDR6()
	default:
		err = cloud.MissingParameter("cidrBlock or amazonProvidedIpv6CidrBlock")
	}
	if err != nil {
		return nil, err
	}
	s := a.cloud.State()
	x, out := newVPCXML(s, &s.VPC), &associatedCIDR{VPC: r.VPC}
	if k := slices.IndexFunc(x.CIDRs, func(c vpcCIDRXML) bool { return c.CIDR == added.String() }); k >= 0 {
		out.IPv4 = &x.CIDRs[k]
		out.IPv4.State.State = "associating"
	} else {
		out.IPv6 = &x.IPv6[0]
		out.IPv6.State.State = "associating"
	}
	return out, nil
}
