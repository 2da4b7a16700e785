package world

import (
	"context"
	"crypto/tls"
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
	// APIAddress is the address of EC2 and STS inside the VPC, on TCP ports 443 and 80
	// as AWS's (TEST-NET-2 of RFC 5737).
	APIAddress = "198.51.100.2"
	// resolverAddress is the resolver's address that is the same in every VPC. Source: VPC
	// user guide, "Understanding Amazon DNS".
	resolverAddress = "169.254.169.253"
	// OutsideAddress is the outside host (TEST-NET-3 of RFC 5737).
	OutsideAddress = "203.0.113.10"
)

// services are the platform's own addresses inside the VPC. Instance metadata has no
// HTTPS, as on AWS.
func services(s *cloud.State, c Config) []fabric.Service {
	var out []fabric.Service
	for _, a := range resolvers(s, c) {
		out = append(out, fabric.Service{Address: a, TCP: []uint16{53}, UDP: []uint16{53}})
	}
	if c.NoPlatform {
		return out
	}
	return append(out,
		fabric.Service{Address: vpc.MetadataV4, TCP: []uint16{80}},
		fabric.Service{Address: vpc.MetadataV6, TCP: []uint16{80}},
		fabric.Service{Address: netip.MustParseAddr(APIAddress), TCP: []uint16{80, 443}},
	)
}

// resolvers are the addresses of the resolver.
func resolvers(s *cloud.State, c Config) []netip.Addr {
	out := []netip.Addr{vpc.Resolver(s.VPC.CIDRs[0])}
	if !c.NoPlatform {
		out = append(out, netip.MustParseAddr(resolverAddress))
	}
	return out
}

// platform serves inside the fabric's namespace.
type platform struct {
	namespace string
	*servers
}

// serveAPI serves EC2 and STS until run ends: by HTTPS for clients that trust the
// authority of cert, and by HTTP.
func (p platform) serveAPI(run context.Context, api http.Handler, cert tls.Certificate) error {
	at := netip.MustParseAddr(APIAddress)
	plain, err := p.listen("tcp4", at, 80)
	if err != nil {
		return err
	}
	p.serve(run, plain, api)
	secure, err := p.listen("tcp4", at, 443)
	if err != nil {
		return err
	}
	// Without NextProtos it speaks HTTP/1.1 only.
	p.serve(run, tls.NewListener(secure, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}), api)
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
