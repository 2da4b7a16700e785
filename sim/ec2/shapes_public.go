package ec2

import (
	"net/netip"

	"github.com/trunkline/trunkline/sim/cloud"
)

// publicXML is NetworkInterfaceAssociation, without the ids of elastic addresses.
// Source: API_NetworkInterfaceAssociation.html.
type publicXML struct {
	Owner   string `q:"ipOwnerId"`
	DNSName string `q:"publicDnsName"`
	Address string `q:"publicIp"`
}

// newPublicXML shows the public address of a private one; nil if it has none.
func newPublicXML(s *cloud.State, i *cloud.Interface, private netip.Addr) *publicXML {
	p, ok := i.PublicOf(private)
	if !ok {
		return nil
	}
	return &publicXML{Owner: p.Owner, DNSName: cloud.PublicDNSName(p.Public, s.Region), Address: p.Public.String()}
}
