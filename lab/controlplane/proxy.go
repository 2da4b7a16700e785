package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/apiproxy"
)

// bindAddress returns the address at which the API server listens: only on the namespace's loopback
// where a proxy has its address of the VPC. Its port is then the same as that of the proxy, so that
// the endpoint of its Service is the proxy.
func (c Config) bindAddress() string {
	if c.APIProxy {
		return loopback().String()
	}
	return "0.0.0.0"
}

// direct returns the address of the API server itself, which is never that of the proxy.
func (c Config) direct() netip.AddrPort {
	if c.APIProxy {
		return netip.AddrPortFrom(loopback(), SecurePort)
	}
	return netip.AddrPortFrom(c.Address, SecurePort)
}

// startProxy starts the proxy, if the lab has one. The control plane's own programs, and clients
// on the machine, connect to the API server itself.
func (cp *ControlPlane) startProxy() error {
	c, p := cp.config, paths{cp.config.StateDir}
	if !c.APIProxy {
		return nil
	}
	server, err := tls.LoadX509KeyPair(p.pki("apiserver.crt"), p.pki("apiserver.key"))
	if err != nil {
		return fmt.Errorf("read the API server's certificate: %w", err)
	}
	front, err := tls.LoadX509KeyPair(p.pki("front-proxy.crt"), p.pki("front-proxy.key"))
	if err != nil {
		return fmt.Errorf("read the front proxy's certificate: %w", err)
	}
	authority := x509.NewCertPool()
	authority.AddCert(cp.credentials.CA.cert)
	var listener net.Listener
	at := netip.AddrPortFrom(c.Address, SecurePort).String()
	if err := netns.DoAt(c.NetNS, func() (err error) {
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		return fmt.Errorf("listen before the API server on %s: %w", at, err)
	}
	cp.proxy = apiproxy.Start(apiproxy.Config{
		Listener: listener, Certificate: server, Clients: authority, FrontProxy: front,
		Server: c.direct().String(), Roots: authority, Log: cp.log,
		Dial: c.dial,
	})
	return nil
}

// dial connects from the control plane's namespace.
func (c Config) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = netns.DoAt(c.NetNS, func() error {
		conn, err = (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Proxy returns the proxy before the API server; nil if the lab has none.
func (cp *ControlPlane) Proxy() *apiproxy.Proxy { return cp.proxy }
