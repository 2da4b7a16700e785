package ca_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/ca"
)

func authority(t *testing.T) *ca.Authority {
	t.Helper()
	a, err := ca.New("test", []string{"amazonaws.com", "api.aws"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// trusting returns the roots of a client that trusts a alone.
func trusting(t *testing.T, a *ca.Authority) *x509.CertPool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.Certificate()) {
		t.Fatalf("no certificate in %s", a.Certificate())
	}
	return roots
}

func TestAClientThatTrustsTheAuthorityReachesItsServersByName(t *testing.T) {
	a := authority(t)
	cert, err := a.Server("ec2.us-west-2.amazonaws.com", "sts.us-west-2.api.aws")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	defer server.Close()
	for name, trusted := range map[string]bool{
		"ec2.us-west-2.amazonaws.com": true, "sts.us-west-2.api.aws": true,
		"ec2.eu-west-1.amazonaws.com": false, "127.0.0.1": false,
	} {
		c, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{ServerName: name, RootCAs: trusting(t, a)})
		if err == nil {
			err = c.Close()
		}
		if (err == nil) != trusted {
			t.Errorf("as %s: %v, want trusted %v", name, err, trusted)
		}
	}
}

// The key signs certificates for any name, and clients refuse those outside the domains.
func TestTheAuthorityIsOfNoUseForOtherHosts(t *testing.T) {
	a := authority(t)
	roots := trusting(t, a)
	for name, valid := range map[string]bool{
		"ec2.us-west-2.amazonaws.com": true, "example.com": false, "amazonaws.com.example.com": false, "notamazonaws.com": false,
	} {
		if _, err := forged(t, a, name).Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != valid {
			t.Errorf("a certificate for %s: %v, want valid %v", name, err, valid)
		}
		if _, err := a.Server(name); (err == nil) != valid {
			t.Errorf("Server(%s): %v, want signed %v", name, err, valid)
		}
	}
	if _, err := forged(t, a, "198.51.100.2").Verify(x509.VerifyOptions{Roots: roots}); err == nil {
		t.Error("a certificate for an address is valid")
	}
	if _, err := ca.New("test", nil, time.Now()); err == nil {
		t.Error("an authority without domains was created: it could sign for every name")
	}
}

// forged signs a server's certificate with the authority's key, as a program that has
// read the key could.
func forged(t *testing.T, a *ca.Authority, host string) *x509.Certificate {
	t.Helper()
	text, err := a.Key()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(a.Certificate(), text)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "forged"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	parent, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, parent.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTheCertificateAndTheKeyArePEM(t *testing.T) {
	a := authority(t)
	if block, rest := pem.Decode(a.Certificate()); block == nil || block.Type != "CERTIFICATE" || len(rest) > 0 {
		t.Errorf("certificate: %s", a.Certificate())
	}
	key, err := a.Key()
	if err != nil || !strings.HasPrefix(string(key), "-----BEGIN PRIVATE KEY-----\n") {
		t.Errorf("key: %v", err)
	}
}
