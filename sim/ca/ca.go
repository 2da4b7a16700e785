// Package ca is the certificate authority of the embedded EC2 and STS, in place of the
// public ones that sign AWS's endpoints. Clients inside the VPC that trust it reach the
// API by HTTPS under AWS's own host names.
//
// The authority can sign for names below the given domains only, and for no address, so
// that its key is of no use against a client for any other host. sim/world makes one for
// each VPC; lab/node installs the certificate in the nodes. Nothing trusts it elsewhere.
package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"
)

// lifetime of every certificate, longer than that of a VPC.
const lifetime = 365 * 24 * time.Hour

// Authority is a self-signed CA. Make it with New.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New creates an authority for the names below domains, with an ECDSA P-256 key. now is
// the clock of its clients.
func New(name string, domains []string, now time.Time) (*Authority, error) {
	if len(domains) == 0 { // RFC 5280: no constraint would permit every name
		return nil, fmt.Errorf("create the authority %s: no domains", name)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the key of %s: %w", name, err)
	}
	t := template(name, now)
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.PermittedDNSDomainsCritical, t.PermittedDNSDomains = true, domains
	t.ExcludedIPRanges = []*net.IPNet{
		{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Server returns a server's certificate for names, the first of which is its subject. It
// refuses a name outside the authority's domains, which clients would refuse too.
func (a *Authority) Server(names ...string) (tls.Certificate, error) {
	if len(names) == 0 {
		return tls.Certificate{}, errors.New("sign a server's certificate: no names")
	}
	for _, name := range names {
		if !slices.ContainsFunc(a.cert.PermittedDNSDomains, func(domain string) bool {
			return strings.HasSuffix(name, "."+domain)
		}) {
			return tls.Certificate{}, fmt.Errorf("sign a certificate for %s: not below %s", name, strings.Join(a.cert.PermittedDNSDomains, ", "))
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("create the key of %s: %w", names[0], err)
	}
	t := template(names[0], a.cert.NotBefore.Add(backdated))
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.DNSNames = names
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign a certificate for %s: %w", names[0], err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Certificate returns the authority's certificate, PEM encoded.
func (a *Authority) Certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Key returns the authority's private key, PEM encoded.
func (a *Authority) Key() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of %s: %w", a.cert.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// backdated is how long before their creation certificates are valid, so that they stay
// valid when a client's clock is set back.
const backdated = time.Hour

func template(name string, now time.Time) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // crypto/rand never errs
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(lifetime),
	}
}
