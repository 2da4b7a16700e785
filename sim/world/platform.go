package world

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/dns"
	"github.com/trunkline/trunkline/sim/fabric"
	"github.com/trunkline/trunkline/sim/imds"
)

// Addresses of the platform.
const (
	// APIAddress is the address of EC2 and STS inside the VPC, on TCP port 80
	// (TEST-NET-2 of RFC 5737).
	APIAddress = "198.51.100.2"
	// OutsideAddress is the outside host (TEST-NET-3 of RFC 5737).
	OutsideAddress = "203.0.113.10"
)

// services are the platform's own addresses inside the VPC.
func services(s *cloud.State, c Config) []fabric.Service {
	resolver := fabric.Service{Address: vpc.Resolver(s.VPC.CIDRs[0]), TCP: []uint16{53}, UDP: []uint16{53}}
	if c.NoPlatform {
		return []fabric.Service{resolver}
	}
	return []fabric.Service{
		{Address: vpc.MetadataV4, TCP: []uint16{80}},
		{Address: vpc.MetadataV6, TCP: []uint16{80}},
		{Address: netip.MustParseAddr(APIAddress), TCP: []uint16{80}},
		resolver,
	}
}

// platform serves inside the fabric's namespace.
type platform struct {
	namespace string
	*servers
}

// serveAPI serves EC2 and STS until run ends.
func (p platform) serveAPI(run context.Context, api http.Handler) error {
	l, err := p.listen("tcp4", netip.MustParseAddr(APIAddress), 80)
	if err != nil {
		return err
	}
	p.serve(run, l, api)
	return nil
}

// serveMetadata serves instance metadata at both of its addresses until run ends.
func (p platform) serveMetadata(run context.Context, server *imds.Server) error {
	for network, a := range map[string]netip.Addr{"tcp4": vpc.MetadataV4, "tcp6": vpc.MetadataV6} {
		l, err := p.listen(network, a, 80)
		if err != nil {
			return err
		}
		p.group.Go(func() error { return server.Serve(run, l) })
	}
	return nil
}

// serveNames serves the resolver at an address until run ends.
func (p platform) serveNames(run context.Context, at netip.Addr, resolver *dns.Server) error {
	tcp, err := p.listen("tcp4", at, 53)
	if err != nil {
		return err
	}
	udp, err := fabric.ListenPacketIn(p.namespace, "udp4", netip.AddrPortFrom(at, 53).String())
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	p.group.Go(func() error { return resolver.Serve(run, udp, tcp) })
	return nil
}

func (p platform) listen(network string, a netip.Addr, port uint16) (net.Listener, error) {
	return fabric.ListenIn(p.namespace, network, netip.AddrPortFrom(a, port).String())
}
