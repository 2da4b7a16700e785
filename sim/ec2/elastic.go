package ec2

import (
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// elasticAPI has the actions on elastic addresses.
type elasticAPI struct{ *api }

func (a elasticAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeAddresses, addressList]{
			Name: "DescribeAddresses", Page: page("DescribeAddresses"), ReadOnly: true,
			Permit: onAnyResource[describeAddresses], Do: listAddresses,
		}),
		query.Handle(query.Spec[allocateAddress, allocatedAddress]{
			Name: "AllocateAddress", Page: page("AllocateAddress"), Permit: permitAllocate, Do: a.allocate,
		}),
		query.Handle(query.Spec[releaseAddress, returned]{
			Name: "ReleaseAddress", Page: page("ReleaseAddress"), Permit: permitRelease,
			Do: func(_ *query.Call, r *releaseAddress) (*returned, error) {
				return done(a.cloud.Elastic().Release(cloud.AllocationID(r.Allocation)))
			},
		}),
		query.Handle(query.Spec[associateAddress, associatedAddress]{
			Name: "AssociateAddress", Page: page("AssociateAddress"), Permit: permitAssociate, Do: a.associate,
		}),
		query.Handle(query.Spec[disassociateAddress, returned]{
			Name: "DisassociateAddress", Page: page("DisassociateAddress"), Permit: permitDisassociate,
			Do: func(_ *query.Call, r *disassociateAddress) (*returned, error) {
				return done(a.cloud.Elastic().Disassociate(cloud.AssociationID(r.Association)))
			},
		}),
	}
}

// elasticPool is the only pool of elastic addresses, and the domain of all of them.
const (
	elasticPool   = "amazon"
	elasticDomain = "vpc"
)

type describeAddresses struct {
	query.DryRun
	Allocations []string `q:"AllocationId"`
	Addresses   []string `q:"PublicIp"`
	Filters     []Filter `q:"Filter"`
}

// addressXML is Address. Source: API_Address.html.
type addressXML struct {
	Allocation  string   `q:"allocationId"`
	Address     string   `q:"publicIp"`
	Domain      string   `q:"domain"`
	Pool        string   `q:"publicIpv4Pool"`
	Border      string   `q:"networkBorderGroup"`
	Association string   `q:"associationId,omitempty"`
	Interface   string   `q:"networkInterfaceId,omitempty"`
	Owner       string   `q:"networkInterfaceOwnerId,omitempty"`
	Instance    string   `q:"instanceId,omitempty"`
	Private     string   `q:"privateIpAddress,omitempty"`
	Tags        []tagXML `q:"tagSet,omitempty"`
}

func newAddressXML(s *cloud.State, a *cloud.Address) addressXML {
	x := addressXML{
		Allocation: string(a.ID), Address: a.Public.String(), Domain: elasticDomain, Pool: elasticPool, Border: s.Region, Tags: tagsXML(a.Tags),
	}
	i, public, ok := s.AssociatedWith(a.ID)
	if !ok {
		return x
	}
	x.Association, x.Interface, x.Owner, x.Private = string(public.Association), string(i.ID), s.Account, public.Private.String()
	if i.Attachment != nil {
		x.Instance = string(i.Attachment.Instance)
	}
	return x
}

type addressList struct {
	Addresses []addressXML `q:"addressesSet"`
}

// listAddresses lists elastic addresses. The action has no pages.
func listAddresses(c *query.Call, r *describeAddresses) (*addressList, error) {
	s := c.State
	for _, text := range r.Addresses {
		if !slices.ContainsFunc(cloud.Sorted(s.Addresses), func(a *cloud.Address) bool { return a.Public.String() == text }) {
			return nil, noAddress(text)
		}
	}
	out, _, err := listPage(c, listing[*cloud.Address]{
		kind: cloud.KindAddress, set: "allocationId", all: cloud.Sorted(s.Addresses), ids: r.Allocations, filters: r.Filters,
		id:   func(a *cloud.Address) string { return string(a.ID) },
		tags: func(a *cloud.Address) cloud.Tags { return a.Tags },
		only: func(a *cloud.Address) bool {
			return len(r.Addresses) == 0 || slices.Contains(r.Addresses, a.Public.String())
		},
		attrs: addressAttributes(s),
	}, func(a *cloud.Address) addressXML { return newAddressXML(s, a) })
	return &addressList{out}, err
}

// noAddress is EC2's error for an unknown elastic address. Source: EC2 API reference,
// "Error codes", InvalidAddress.NotFound.
func noAddress(text string) error {
	return cloud.Errorf("InvalidAddress.NotFound", "Address '%s' not found.", text)
}

// addressAttributes are the filters of DescribeAddresses.
func addressAttributes(s *cloud.State) attributes[*cloud.Address] {
	shown := func(f func(addressXML) string) func(*cloud.Address) []string {
		return func(a *cloud.Address) []string { return maybe(f(newAddressXML(s, a))) }
	}
	return attributes[*cloud.Address]{
		"allocation-id":              shown(func(x addressXML) string { return x.Allocation }),
		"association-id":             shown(func(x addressXML) string { return x.Association }),
		"instance-id":                shown(func(x addressXML) string { return x.Instance }),
		"network-border-group":       shown(func(x addressXML) string { return x.Border }),
		"network-interface-id":       shown(func(x addressXML) string { return x.Interface }),
		"network-interface-owner-id": shown(func(x addressXML) string { return x.Owner }),
		"private-ip-address":         shown(func(x addressXML) string { return x.Private }),
		"public-ip":                  shown(func(x addressXML) string { return x.Address }),
	}
}

type allocateAddress struct {
	query.DryRun
	Domain string             `q:"Domain"`
	Border string             `q:"NetworkBorderGroup"`
	Tags   []TagSpecification `q:"TagSpecification"`
}

type allocatedAddress struct {
	Allocation string `q:"allocationId"`
	Address    string `q:"publicIp"`
	Domain     string `q:"domain"`
	Pool       string `q:"publicIpv4Pool"`
	Border     string `q:"networkBorderGroup"`
}

func permitAllocate(c *query.Call, r *allocateAddress) ([]iam.Request, error) {
	tags, err := tagsFor(cloud.KindAddress, r.Tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	q.require(cloud.KindAddress, "*", tagging(tags))
	q.createTags(cloud.KindAddress, tags)
	return q.result()
}

func (a elasticAPI) allocate(c *query.Call, r *allocateAddress) (*allocatedAddress, error) {
	switch {
	case r.Domain != "" && r.Domain != elasticDomain:
		return nil, cloud.InvalidParameter("Value (%s) for parameter domain is invalid.", r.Domain)
	case r.Border != "" && r.Border != c.State.Region:
		return nil, cloud.InvalidParameter("Value (%s) for parameter networkBorderGroup is invalid.", r.Border)
	}
	tags, err := tagsFor(cloud.KindAddress, r.Tags)
	if err != nil {
		return nil, err
	}
	made, err := a.cloud.Elastic().Allocate(tags)
	if err != nil {
		return nil, err
	}
	return &allocatedAddress{string(made.ID), made.Public.String(), elasticDomain, elasticPool, c.State.Region}, nil
}

type releaseAddress struct {
	query.DryRun
	Allocation string `q:"AllocationId"`
	Address    string `q:"PublicIp"`
	Border     string `q:"NetworkBorderGroup"`
}

// permitRelease requires permission for the address. Source of the error for an address
// named by itself: EC2's response, quoted in courses on Elastic IP addresses.
func permitRelease(c *query.Call, r *releaseAddress) ([]iam.Request, error) {
	switch {
	case r.Allocation == "" && r.Address != "":
		return nil, cloud.InvalidParameter("You must specify an allocation id when releasing a VPC elastic IP address")
	case r.Allocation == "":
		return nil, cloud.MissingParameter("allocationId")
	case r.Border != "" && r.Border != c.State.Region:
		return nil, noAddress(r.Allocation)
	}
	q := &authorization{call: c}
	q.address(r.Allocation)
	return q.result()
}

type associateAddress struct {
	query.DryRun
	Allocation string `q:"AllocationId"`
	Address    string `q:"PublicIp"`
	Interface  string `q:"NetworkInterfaceId"`
	Instance   string `q:"InstanceId"`
	Private    string `q:"PrivateIpAddress"`
	Reassign   *bool  `q:"AllowReassociation"` // absent: true
}

type associatedAddress struct {
	Return      bool   `q:"return"`
	Association string `q:"associationId"`
}

func permitAssociate(c *query.Call, r *associateAddress) ([]iam.Request, error) {
	switch {
	case r.Allocation == "" && r.Address != "":
		return nil, cloud.Errorf("InvalidParameterCombination", "You must specify an allocation id when mapping an address to a VPC instance")
	case r.Allocation == "":
		return nil, cloud.MissingParameter("allocationId")
	}
	q := &authorization{call: c}
	q.address(r.Allocation)
	if r.Interface != "" {
		q.eni(r.Interface)
	}
	if r.Instance != "" {
		q.instance(r.Instance)
	}
	return q.result()
}

func (a elasticAPI) associate(c *query.Call, r *associateAddress) (*associatedAddress, error) {
	p := &parser{}
	w := cloud.Association{
		Address: cloud.AllocationID(r.Allocation), Interface: vpc.ENIID(r.Interface), Private: p.addr(r.Private),
		Keep: r.Reassign != nil && !*r.Reassign,
	}
	switch {
	case r.Interface == "" && r.Instance == "":
		p.fail(cloud.MissingParameter("instanceId or networkInterfaceId"))
	case r.Interface != "" && r.Instance != "":
		p.fail(cloud.Errorf("InvalidParameterCombination", "You may specify either instanceId or networkInterfaceId, but not both."))
	}
	if p.err != nil {
		return nil, p.err
	}
	if r.Instance != "" {
		var err error
		if w.Interface, err = onlyInterface(c.State, vpc.InstanceID(r.Instance)); err != nil {
			return nil, err
		}
	}
	made, err := a.cloud.Elastic().Associate(w)
	if err != nil {
		return nil, err
	}
	return &associatedAddress{Return: true, Association: string(made)}, nil
}

// onlyInterface returns the interface that a request means which names a running or
// stopped instance.
func onlyInterface(s *cloud.State, id vpc.InstanceID) (vpc.ENIID, error) {
	n := s.Instances[id]
	if n != nil && n.State != cloud.Running && n.State != cloud.Stopped {
		return "", cloud.Errorf("InvalidInstanceID", "The %s instance '%s' is not in a valid state for this operation.", n.State, id)
	}
	return s.OnlyInterface(id)
}

type disassociateAddress struct {
	query.DryRun
	Association string `q:"AssociationId"`
	Address     string `q:"PublicIp"`
}

// permitDisassociate requires permission for the address and its interface.
func permitDisassociate(c *query.Call, r *disassociateAddress) ([]iam.Request, error) {
	switch {
	case r.Association == "" && r.Address != "":
		return nil, cloud.InvalidParameter("You must specify an association id when unmapping an address from a VPC instance")
	case r.Association == "":
		return nil, cloud.MissingParameter("associationId")
	}
	q := &authorization{call: c}
	i, public, ok := c.State.AssociationOf(cloud.AssociationID(r.Association))
	if !ok {
		q.require(cloud.KindAddress, "*")
		q.err = cloud.NoAssociation(r.Association)
		return q.result()
	}
	q.address(string(public.Allocation))
	q.eni(string(i.ID))
	return q.result()
}
