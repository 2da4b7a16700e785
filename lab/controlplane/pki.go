package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// lifetime of every certificate, longer than that of a lab.
const lifetime = 365 * 24 * time.Hour

// Authority is a CA of the lab: that of the API's clients and servers, or that of the
// front proxy.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// KeyPair is a certificate and its key, PEM encoded.
type KeyPair struct {
	Cert, Key []byte
}

// NewAuthority creates a self-signed CA with an ECDSA P-256 key.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the key of %s: %w", name, err)
	}
	tmpl := template(pkix.Name{CommonName: name})
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, pem: encodeCert(der)}, nil
}

// CertPEM returns the CA's own certificate.
func (a *Authority) CertPEM() []byte { return a.pem }

// Client signs a certificate for a Kubernetes user: user is the common name,
// groups the organisations.
func (a *Authority) Client(user string, groups ...string) (KeyPair, error) {
	tmpl := template(pkix.Name{CommonName: user, Organization: groups})
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(tmpl)
}

// Server signs a certificate for a server's names and addresses.
func (a *Authority) Server(name string, dns []string, addresses []netip.Addr) (KeyPair, error) {
	tmpl := template(pkix.Name{CommonName: name})
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	tmpl.DNSNames = dns
	for _, addr := range addresses {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.IP(addr.AsSlice()))
	}
	return a.sign(tmpl)
}

func (a *Authority) sign(tmpl *x509.Certificate) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("create the key of %s: %w", tmpl.Subject.CommonName, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign %s: %w", tmpl.Subject.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	return KeyPair{Cert: encodeCert(der), Key: keyPEM}, err
}

func template(name pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // crypto/rand never errs
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: name,
		// An hour in the past, so that certificates stay valid when the clock is set back
		// after the start.
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
	}
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// signer is the key of service-account tokens.
type signer struct {
	key *ecdsa.PrivateKey
}

func newSigner() (signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return signer{key}, err
}

func (s signer) publicPEM() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(&s.key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("encode service-account public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// writeSecret writes a file that only root may read.
func writeSecret(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}
