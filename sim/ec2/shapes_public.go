package ec2

import (
	"net/netip"

	"github.com/trunkline/trunkline/sim/cloud"
)

// publicXML is InstanceNetworkInterfaceAssociation.
// Source: API_InstanceNetworkInterfaceAssociation.html.
type publicXML struct {
	Owner   string `q:"ipOwnerId"`
	DNSName string `q:"publicDnsName"`
	Address string `q:"publicIp"`
}

// elasticXML is NetworkInterfaceAssociation, which has the ids of an elastic address.
// Source: API_NetworkInterfaceAssociation.html.
type elasticXML struct {
	Owner       string `q:"ipOwnerId"`
	DNSName     string `q:"publicDnsName"`
	Address     string `q:"publicIp"`
	Allocation  string `q:"allocationId,omitempty"`
	Association string `q:"associationId,omitempty"`
}

// newPublicXML shows the public address of a private one; nil if it has none.
func newPublicXML(s *cloud.State, i *cloud.Interface, private netip.Addr) *publicXML {
	p, ok := i.PublicOf(private)
	if !ok {
		return nil
	}
	return &publicXML{Owner: p.Owner, DNSName: cloud.PublicDNSName(p.Public, s.Region), Address: p.Public.String()}
}

// newElasticXML shows the same with the ids.
func newElasticXML(s *cloud.State, i *cloud.Interface, private netip.Addr) *elasticXML {
	public := newPublicXML(s, i, private)
	if public == nil {
		return nil
	}
	p, _ := i.PublicOf(private)
	return &elasticXML{public.Owner, public.DNSName, public.Address, string(p.Allocation), string(p.Association)}
}
