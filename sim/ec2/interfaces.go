package ec2

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) interfaceActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeInterfaces, interfaceList]{
			Name: "DescribeNetworkInterfaces", Page: page("DescribeNetworkInterfaces"), ReadOnly: true,
			Permit: onAnyResource[describeInterfaces], Do: listInterfaces,
		}),
		query.Handle(query.Spec[createInterface, createdInterface]{
			Name: "CreateNetworkInterface", Page: page("CreateNetworkInterface"),
			Permit: permitCreate, Do: a.create,
		}),
		query.Handle(query.Spec[deleteInterface, returned]{
			Name: "DeleteNetworkInterface", Page: page("DeleteNetworkInterface"),
			Permit: permitInterface[deleteInterface],
			Do: func(_ *query.Call, r *deleteInterface) (*returned, error) {
				return done(a.cloud.Interface(vpc.ENIID(r.ID)).Delete())
			},
		}),
		query.Handle(query.Spec[modifyInterface, returned]{
			Name: "ModifyNetworkInterfaceAttribute", Page: page("ModifyNetworkInterfaceAttribute"),
			Permit: permitModify, Do: a.modify,
		}),
		query.Handle(query.Spec[describeAttribute, interfaceAttribute]{
			Name: "DescribeNetworkInterfaceAttribute", Page: page("DescribeNetworkInterfaceAttribute"), ReadOnly: true,
			Permit: onAnyResource[describeAttribute], Do: readAttribute,
		}),
	}
}

type describeInterfaces struct {
	query.DryRun
	Page
	IDs     []string `q:"NetworkInterfaceId"`
	Filters []Filter `q:"Filter"`
	// Managed has no effect: no interface is hidden.
	Managed bool `q:"IncludeManagedResources"`
}

type interfaceList struct {
	Interfaces []interfaceXML `q:"networkInterfaceSet"`
	NextToken  string         `q:"nextToken,omitempty"`
}

func listInterfaces(c *query.Call, r *describeInterfaces) (*interfaceList, error) {
	out, next, err := listPage(c, listing[*cloud.Interface]{
		kind: cloud.KindInterface, set: "networkInterfaceId", all: cloud.Sorted(c.State.Interfaces), ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(i *cloud.Interface) string { return string(i.ID) },
		tags:  func(i *cloud.Interface) cloud.Tags { return i.Tags },
		attrs: interfaceAttributes(c.State),
	}, func(i *cloud.Interface) interfaceXML { return newInterfaceXML(c.State, i) })
	return &interfaceList{out, next}, err
}

// interfaceAttributes are the filters of DescribeNetworkInterfaces.
func interfaceAttributes(s *cloud.State) attributes[*cloud.Interface] {
	type eni = *cloud.Interface
	attachment := func(f func(*cloud.Attachment) []string) func(eni) []string {
		return func(i eni) []string {
			if i.Attachment == nil {
				return nil
			}
			return f(i.Attachment)
		}
	}
	return merged(publicAttributes(s), placeAttributes(s), attributes[eni]{
		"network-interface-id": func(i eni) []string { return one(string(i.ID)) },
		"subnet-id":            func(i eni) []string { return one(string(i.Subnet)) },
		"vpc-id":               func(eni) []string { return one(string(s.VPC.ID)) },
		"availability-zone":    func(i eni) []string { return one(s.Subnets[i.Subnet].Zone) },
		"description":          func(i eni) []string { return one(i.Description) },
		"status":               func(i eni) []string { return one(i.Status()) },
		"interface-type":       func(i eni) []string { return one(string(i.Type)) },
		"mac-address":          func(i eni) []string { return one(i.MAC.String()) },
		"owner-id":             func(eni) []string { return one(s.Account) },
		"private-ip-address":   func(i eni) []string { return maybe(addressText(i.PrimaryIPv4())) },
		"requester-id":         func(i eni) []string { return maybe(i.Requester.ID) },
		"requester-managed":    func(i eni) []string { return yesNo(i.Requester.Managed) },
		"source-dest-check":    func(i eni) []string { return yesNo(i.SourceDestCheck) },
		"addresses.primary":    func(i eni) []string { return []string{"true", "false"}[:min(2, len(i.IPv4.Addresses))] },
		"group-id":             func(i eni) []string { return each(i.Groups, groupText) },
		"group-name":           func(i eni) []string { return each(groupsXML(s, i.Groups), groupXML.name) },
		"attachment.status":    attachment(func(a *cloud.Attachment) []string { return one(string(a.Status)) }),
		"attachment.device-index": attachment(func(a *cloud.Attachment) []string {
			return one(strconv.Itoa(a.DeviceIndex))
		}),
		"attachment.attachment-id": attachment(func(a *cloud.Attachment) []string { return one(string(a.ID)) }),
		"attachment.instance-id":   attachment(func(a *cloud.Attachment) []string { return maybe(string(a.Instance)) }),
		"attachment.delete-on-termination": attachment(func(a *cloud.Attachment) []string {
			return yesNo(a.DeleteOnTermination)
		}),
		"addresses.private-ip-address": func(i eni) []string { return each(i.IPv4.Addresses, netip.Addr.String) },
		"ipv6-addresses.ipv6-address":  func(i eni) []string { return each(i.IPv6.Addresses, netip.Addr.String) },
	})
}

func groupText(id vpc.SecurityGroupID) string { return string(id) }

func (g groupXML) name() string { return g.Name }

type trackingRequest struct {
	TCPEstablished *int `q:"TcpEstablishedTimeout"`
	UDPStream      *int `q:"UdpStreamTimeout"`
	UDP            *int `q:"UdpTimeout"`
}

// tracking reads the timeouts, in seconds; an absent one is EC2's default. Source:
// API_ConnectionTrackingSpecificationRequest.html.
func (t *trackingRequest) tracking(p *parser) *cloud.Tracking {
	if t == nil {
		return nil
	}
	return &cloud.Tracking{
		TCPEstablished: p.between("tcpEstablishedTimeout", t.TCPEstablished, 60, 432000),
		UDPStream:      p.between("udpStreamTimeout", t.UDPStream, 60, 180),
		UDP:            p.between("udpTimeout", t.UDP, 30, 60),
	}
}

type addressRequest struct {
	Address string `q:"PrivateIpAddress"`
	Primary bool   `q:"Primary"`
}

type ipv6Request struct {
	Address string `q:"Ipv6Address"`
}

type ipv4PrefixRequest struct {
	Prefix string `q:"Ipv4Prefix"`
}

type ipv6PrefixRequest struct {
	Prefix string `q:"Ipv6Prefix"`
}

type createInterface struct {
	query.DryRun
	Subnet          string              `q:"SubnetId,required"`
	ClientToken     string              `q:"ClientToken"`
	Description     string              `q:"Description"`
	Groups          []string            `q:"SecurityGroupId"`
	Type            string              `q:"InterfaceType"`
	Primary         string              `q:"PrivateIpAddress"`
	Addresses       []addressRequest    `q:"PrivateIpAddresses"`
	SecondaryCount  int                 `q:"SecondaryPrivateIpAddressCount"`
	IPv4PrefixCount int                 `q:"Ipv4PrefixCount"`
	IPv4Prefixes    []ipv4PrefixRequest `q:"Ipv4Prefix"`
	IPv6Count       int                 `q:"Ipv6AddressCount"`
	IPv6            []ipv6Request       `q:"Ipv6Addresses"`
	IPv6PrefixCount int                 `q:"Ipv6PrefixCount"`
	IPv6Prefixes    []ipv6PrefixRequest `q:"Ipv6Prefix"`
	PrimaryIPv6     bool                `q:"EnablePrimaryIpv6"`
	Tracking        *trackingRequest    `q:"ConnectionTrackingSpecification"`
	Tags            []TagSpecification  `q:"TagSpecification"`
}

type createdInterface struct {
	Interface   interfaceXML `q:"networkInterface"`
	ClientToken string       `q:"clientToken,omitempty"`
}

// permitCreate requires permission for the new interface, its subnet, its groups and,
// if it is tagged, for CreateTags. Source: Service Authorization Reference, EC2.
func permitCreate(c *query.Call, r *createInterface) ([]iam.Request, error) {
	tags, err := tagsFor(cloud.KindInterface, r.Tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	where := inSubnet(c, vpc.SubnetID(r.Subnet))
	q.require(cloud.KindInterface, "*", where, tagging(tags))
	q.subnet(r.Subnet)
	for _, id := range r.Groups {
		q.groupOr(id, cloud.NoGroupForInterface(id))
	}
	q.createTags(cloud.KindInterface, tags, where)
	return q.result()
}

func (a *api) create(c *query.Call, r *createInterface) (*createdInterface, error) {
	w, err := r.wanted()
	if err != nil {
		return nil, err
	}
	w.Requester = c.Principal.ID
	return once(a.tokens, c.Action, r.ClientToken, r, func() (*createdInterface, error) {
		made, err := a.cloud.CreateInterface(w)
		if err != nil {
			return nil, err
		}
		x := newInterfaceXML(a.cloud.State(), made)
		x.Status = "pending" // as EC2 reports it in the create response
		return &createdInterface{Interface: x, ClientToken: r.ClientToken}, nil
	})
}

// wanted converts a request into a cloud.NewInterface.
func (r *createInterface) wanted() (w cloud.NewInterface, err error) {
	p := &parser{}
	w = cloud.NewInterface{
		Subnet: vpc.SubnetID(r.Subnet), Description: r.Description, Groups: groupIDs(r.Groups),
		Type: vpc.InterfaceType(r.Type), Tracking: r.Tracking.tracking(p), PrimaryIPv6: r.PrimaryIPv6,
		IPv4: cloud.Want{Count: r.SecondaryCount, PrefixCount: r.IPv4PrefixCount},
		IPv6: cloud.Want{Count: r.IPv6Count, PrefixCount: r.IPv6PrefixCount},
	}
	switch w.Type {
	case "", vpc.TypeInterface, vpc.TypeTrunk, vpc.TypeBranch, vpc.TypeEFA, vpc.TypeEFAOnly:
	default:
		return w, cloud.InvalidParameter("Value (%s) for parameter interfaceType is invalid.", r.Type)
	}
	w.Primary = p.addr(r.Primary)
	for _, one := range r.Addresses {
		address := p.addr(one.Address)
		switch {
		case !one.Primary:
			w.IPv4.Addresses = append(w.IPv4.Addresses, address)
		case w.Primary.IsValid():
			return w, cloud.InvalidParameter("Only one primary private IP address can be specified")
		default:
			w.Primary = address
		}
	}
	for _, one := range r.IPv4Prefixes {
		w.IPv4.Prefixes = append(w.IPv4.Prefixes, p.prefix("ipv4Prefix", one.Prefix))
	}
	for _, one := range r.IPv6 {
		w.IPv6.Addresses = append(w.IPv6.Addresses, p.addr(one.Address))
	}
	for _, one := range r.IPv6Prefixes {
		w.IPv6.Prefixes = append(w.IPv6.Prefixes, p.prefix("ipv6Prefix", one.Prefix))
	}
	p.count(r.SecondaryCount, r.IPv4PrefixCount, r.IPv6Count, r.IPv6PrefixCount)
	p.exclusive(r.SecondaryCount > 0, len(w.IPv4.Addresses) > 0, r.IPv4PrefixCount > 0, len(w.IPv4.Prefixes) > 0)
	p.exclusive(r.IPv6Count > 0, len(w.IPv6.Addresses) > 0, r.IPv6PrefixCount > 0, len(w.IPv6.Prefixes) > 0)
	if p.err != nil {
		return w, p.err
	}
	w.Tags, err = tagsFor(cloud.KindInterface, r.Tags)
	return w, err
}

type deleteInterface struct {
	query.DryRun
	ID string `q:"NetworkInterfaceId,required"`
}

func (r deleteInterface) interfaceID() string { return r.ID }

// permitInterface requires permission for the one interface that a request names.
func permitInterface[Req interface{ interfaceID() string }](c *query.Call, r *Req) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.eni((*r).interfaceID())
	return q.result()
}

type attachmentChange struct {
	ID                  string `q:"AttachmentId,required"`
	DeleteOnTermination *bool  `q:"DeleteOnTermination"`
}

type textValue struct {
	Value string `q:"Value"`
}

type boolValue struct {
	Value bool `q:"Value"`
}

type modifyInterface struct {
	query.DryRun
	ID              string            `q:"NetworkInterfaceId,required"`
	Attachment      *attachmentChange `q:"Attachment"`
	Description     *textValue        `q:"Description"`
	Groups          []string          `q:"SecurityGroupId"`
	SourceDestCheck *boolValue        `q:"SourceDestCheck"`
	Public          *bool             `q:"AssociatePublicIpAddress"`
	PrimaryIPv6     *bool             `q:"EnablePrimaryIpv6"`
	Tracking        *trackingRequest  `q:"ConnectionTrackingSpecification"`
}

// permitModify requires permission for the interface, its new groups, and for the instance
// of the attachment that changes. Source: Service Authorization Reference, EC2; AWS's CNI
// grants the action on instances as well (amazon-vpc-cni-k8s, docs/iam-policy.md).
func permitModify(c *query.Call, r *modifyInterface) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.eni(r.ID)
	if r.Attachment != nil {
		owner := c.State.AttachmentOwner(vpc.AttachmentID(r.Attachment.ID))
		if owner != nil && owner.Attachment.Instance != "" {
			q.instance(string(owner.Attachment.Instance))
		}
	}
	for _, id := range r.Groups {
		q.group(id)
	}
	return q.result()
}

// modify changes one attribute; EC2 accepts only one in a call.
func (a *api) modify(_ *query.Call, r *modifyInterface) (*returned, error) {
	p := &parser{}
	p.exclusive(r.Attachment != nil, r.Description != nil, len(r.Groups) > 0, r.SourceDestCheck != nil,
		r.Public != nil, r.PrimaryIPv6 != nil, r.Tracking != nil)
	tracking := r.Tracking.tracking(p)
	eni := a.cloud.Interface(vpc.ENIID(r.ID))
	switch {
	case p.err != nil:
		return nil, p.err
	case r.Attachment != nil && r.Attachment.DeleteOnTermination == nil:
		return nil, cloud.MissingParameter("attachment.deleteOnTermination")
	case r.Attachment != nil:
		return done(eni.SetDeleteOnTermination(vpc.AttachmentID(r.Attachment.ID), *r.Attachment.DeleteOnTermination))
	case r.Description != nil:
		return done(eni.SetDescription(r.Description.Value))
	case len(r.Groups) > 0:
		return done(eni.SetGroups(groupIDs(r.Groups)))
	case r.SourceDestCheck != nil:
		return done(eni.SetSourceDestCheck(r.SourceDestCheck.Value))
	case r.Public != nil:
		return done(eni.SetAssociatePublic(*r.Public))
	case tracking != nil:
		return done(eni.SetTracking(tracking))
	case r.PrimaryIPv6 != nil:
		return done(eni.SetPrimaryIPv6(*r.PrimaryIPv6))
	}
	return nil, noAttributes()
}

// noAttributes is the error for a call that names no attribute.
func noAttributes() error {
	return cloud.Errorf("InvalidParameterCombination", "No attributes specified.")
}

type describeAttribute struct {
	query.DryRun
	ID        string `q:"NetworkInterfaceId,required"`
	Attribute string `q:"Attribute"`
}

type textXML struct {
	Value string `q:"value"`
}

type boolXML struct {
	Value bool `q:"value"`
}

type interfaceAttribute struct {
	ID              string         `q:"networkInterfaceId"`
	Attachment      *attachmentXML `q:"attachment"`
	Description     *textXML       `q:"description"`
	Groups          []groupXML     `q:"groupSet,omitempty"`
	SourceDestCheck *boolXML       `q:"sourceDestCheck"`
	Public          *bool          `q:"associatePublicIpAddress"`
}

func readAttribute(c *query.Call, r *describeAttribute) (*interfaceAttribute, error) {
	if err := cloud.KindInterface.CheckID(r.ID); err != nil {
		return nil, err
	}
	i := c.State.Interfaces[vpc.ENIID(r.ID)]
	if i == nil {
		return nil, cloud.KindInterface.NotFound(r.ID)
	}
	out := &interfaceAttribute{ID: r.ID}
	switch r.Attribute {
	case "attachment":
		if i.Attachment != nil {
			out.Attachment = newAttachmentXML(c.State, i.Attachment)
		}
	case "description":
		out.Description = &textXML{i.Description}
	case "groupSet":
		out.Groups = groupsXML(c.State, i.Groups)
	case "sourceDestCheck":
		out.SourceDestCheck = &boolXML{i.SourceDestCheck}
	case "associatePublicIpAddress":
		on := slices.ContainsFunc(i.Public, func(p cloud.PublicAddress) bool { return p.Owner == cloud.AmazonPool })
		out.Public = &on
	case "":
		return nil, noAttributes()
	default:
		return nil, cloud.InvalidParameter("Value (%s) for parameter attribute is invalid. "+
			"Expected one of: associatePublicIpAddress, attachment, description, groupSet, sourceDestCheck", r.Attribute)
	}
	return out, nil
}
