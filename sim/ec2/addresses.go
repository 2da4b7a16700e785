package ec2

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) addressActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[assignIPv4, assignedIPv4]{
			Name: "AssignPrivateIpAddresses", Page: page("AssignPrivateIpAddresses"),
			Permit: permitInterface[assignIPv4], Do: a.assignIPv4,
		}),
		query.Handle(query.Spec[unassignIPv4, returned]{
			Name: "UnassignPrivateIpAddresses", Page: page("UnassignPrivateIpAddresses"),
			Permit: permitInterface[unassignIPv4], Do: a.unassignIPv4,
		}),
		query.Handle(query.Spec[assignIPv6, assignedIPv6]{
			Name: "AssignIpv6Addresses", Page: page("AssignIpv6Addresses"),
			Permit: permitInterface[assignIPv6], Do: a.assignIPv6,
		}),
		query.Handle(query.Spec[unassignIPv6, unassignedIPv6]{
			Name: "UnassignIpv6Addresses", Page: page("UnassignIpv6Addresses"),
			Permit: permitInterface[unassignIPv6], Do: a.unassignIPv6,
		}),
	}
}

type assignIPv4 struct {
	Interface   string   `q:"NetworkInterfaceId,required"`
	Addresses   []string `q:"PrivateIpAddress"`
	Count       int      `q:"SecondaryPrivateIpAddressCount"`
	Prefixes    []string `q:"Ipv4Prefix"`
	PrefixCount int      `q:"Ipv4PrefixCount"`
	Reassign    bool     `q:"AllowReassignment"`
}

func (r assignIPv4) interfaceID() string { return r.Interface }

type assignedAddressXML struct {
	Address string `q:"privateIpAddress"`
}

type assignedIPv4 struct {
	Interface string               `q:"networkInterfaceId"`
	Addresses []assignedAddressXML `q:"assignedPrivateIpAddressesSet"`
	Prefixes  []ipv4PrefixXML      `q:"assignedIpv4PrefixSet"`
	Return    bool                 `q:"return"`
}

func (a *api) assignIPv4(_ *query.Call, r *assignIPv4) (*assignedIPv4, error) {
	p := &parser{}
	w := cloud.Want{
		Count: r.Count, PrefixCount: r.PrefixCount, Reassign: r.Reassign,
		Addresses: p.addrs(r.Addresses), Prefixes: p.prefixes("ipv4Prefix", r.Prefixes),
	}
	p.count(r.Count, r.PrefixCount)
	p.exclusive(r.Count > 0, len(r.Addresses) > 0, r.PrefixCount > 0, len(r.Prefixes) > 0)
	if p.err != nil {
		return nil, p.err
	}
	got, err := a.cloud.Interface(vpc.ENIID(r.Interface)).AssignIPv4(w)
	if err != nil {
		return nil, err
	}
	out := &assignedIPv4{Interface: r.Interface, Prefixes: ipv4Prefixes(got.Prefixes), Return: true}
	for _, address := range got.Addresses {
		out.Addresses = append(out.Addresses, assignedAddressXML{address.String()})
	}
	return out, nil
}

type unassignIPv4 struct {
	Interface string   `q:"NetworkInterfaceId,required"`
	Addresses []string `q:"PrivateIpAddress"`
	Prefixes  []string `q:"Ipv4Prefix"`
}

func (r unassignIPv4) interfaceID() string { return r.Interface }

func (a *api) unassignIPv4(_ *query.Call, r *unassignIPv4) (*returned, error) {
	p := &parser{}
	addresses, prefixes := p.addrs(r.Addresses), p.prefixes("ipv4Prefix", r.Prefixes)
	switch {
	case p.err != nil:
		return nil, p.err
	case len(addresses)+len(prefixes) == 0:
		return nil, cloud.MissingParameter("privateIpAddress or ipv4Prefix")
	}
	return done(a.cloud.Interface(vpc.ENIID(r.Interface)).UnassignIPv4(addresses, prefixes))
}

type assignIPv6 struct {
	Interface   string   `q:"NetworkInterfaceId,required"`
	Addresses   []string `q:"Ipv6Addresses"`
	Count       int      `q:"Ipv6AddressCount"`
	Prefixes    []string `q:"Ipv6Prefix"`
	PrefixCount int      `q:"Ipv6PrefixCount"`
}

func (r assignIPv6) interfaceID() string { return r.Interface }

type assignedIPv6 struct {
	Interface string   `q:"networkInterfaceId"`
	Addresses []string `q:"assignedIpv6Addresses"`
	Prefixes  []string `q:"assignedIpv6PrefixSet"`
}

func (a *api) assignIPv6(_ *query.Call, r *assignIPv6) (*assignedIPv6, error) {
	p := &parser{}
	w := cloud.Want{
		Count: r.Count, PrefixCount: r.PrefixCount,
		Addresses: p.addrs(r.Addresses), Prefixes: p.prefixes("ipv6Prefix", r.Prefixes),
	}
	p.count(r.Count, r.PrefixCount)
	p.exclusive(r.Count > 0, len(r.Addresses) > 0, r.PrefixCount > 0, len(r.Prefixes) > 0)
	if p.err != nil {
		return nil, p.err
	}
	got, err := a.cloud.Interface(vpc.ENIID(r.Interface)).AssignIPv6(w)
	if err != nil {
		return nil, err
	}
	return &assignedIPv6{
		Interface: r.Interface, Addresses: each(got.Addresses, netip.Addr.String),
		Prefixes: each(got.Prefixes, netip.Prefix.String),
	}, nil
}

type unassignIPv6 struct {
	Interface string   `q:"NetworkInterfaceId,required"`
	Addresses []string `q:"Ipv6Addresses"`
	Prefixes  []string `q:"Ipv6Prefix"`
}

func (r unassignIPv6) interfaceID() string { return r.Interface }

type unassignedIPv6 struct {
	Interface string   `q:"networkInterfaceId"`
	Addresses []string `q:"unassignedIpv6Addresses"`
	Prefixes  []string `q:"unassignedIpv6PrefixSet"`
}

func (a *api) unassignIPv6(_ *query.Call, r *unassignIPv6) (*unassignedIPv6, error) {
	p := &parser{}
	addresses, prefixes := p.addrs(r.Addresses), p.prefixes("ipv6Prefix", r.Prefixes)
	switch {
	case p.err != nil:
		return nil, p.err
	case len(addresses)+len(prefixes) == 0:
		return nil, cloud.MissingParameter("ipv6Addresses or ipv6Prefix")
	}
	if err := a.cloud.Interface(vpc.ENIID(r.Interface)).UnassignIPv6(addresses, prefixes); err != nil {
		return nil, err
	}
	return &unassignedIPv6{Interface: r.Interface, Addresses: r.Addresses, Prefixes: r.Prefixes}, nil
}
