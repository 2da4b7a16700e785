package webhook

import (
	"bytes"
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
	"time"
)

// Validity of the certificates, and when they are renewed.
const (
	authorityValid = 365 * 24 * time.Hour
	servingValid   = 90 * 24 * time.Hour
	// overlap is how long the API server accepts a new authority before it signs: every webhook
	// configuration has it by then, also after an outage of the controller.
	overlap = time.Hour
	// skew is how much a clock may be behind that of the controller.
	skew = 10 * time.Minute
)

// Certificates are an authority and the certificate that it signed, as the data of a Secret. The
// key of the authority is in the Secret as well: every replica may become the leader that renews.
//
// It never prints keys.
type Certificates struct {
	authority, next, serving pair
	previous                 *x509.Certificate // signs no more, and is accepted until it ends
}

// pair is a certificate with its key.
type pair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Keys of the Secret's data.
const (
	keyAuthority, keyAuthorityKey = "ca.crt", "ca.key"
	keyNext, keyNextKey           = "next-ca.crt", "next-ca.key"
	keyServing, keyServingKey     = "tls.crt", "tls.key"
	keyPrevious                   = "previous-ca.crt"
)

// ErrIncomplete means that a Secret lacks a certificate or key, or has one that cannot be read.
var ErrIncomplete = errors.New("incomplete certificates")

// Parse reads the data of a Secret.
func Parse(data map[string][]byte) (Certificates, error) {
	var c Certificates
	var errs []error
	read := func(to *pair, certificate, key string, optional bool) {
		if optional && len(data[certificate]) == 0 {
			return
		}
		p, err := parse(data[certificate], data[key])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: %w", certificate, ErrIncomplete, err))
			return
		}
		*to = p
	}
	read(&c.authority, keyAuthority, keyAuthorityKey, false)
	read(&c.next, keyNext, keyNextKey, true)
	read(&c.serving, keyServing, keyServingKey, false)
	if text := data[keyPrevious]; len(text) > 0 {
		previous, err := parseCertificate(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: %w", keyPrevious, ErrIncomplete, err))
		}
		c.previous = previous
	}
	return c, errors.Join(errs...)
}

// Data is what Parse reads.
func (c Certificates) Data() (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, f := range []struct {
		pair            pair
		public, private string
	}{{c.authority, keyAuthority, keyAuthorityKey}, {c.next, keyNext, keyNextKey}, {c.serving, keyServing, keyServingKey}} {
		if f.pair.certificate == nil {
			continue
		}
		key, err := x509.MarshalECPrivateKey(f.pair.key)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", f.private, err)
		}
		out[f.public], out[f.private] = encode(f.pair.certificate), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key})
	}
	if c.previous != nil {
		out[keyPrevious] = encode(c.previous)
	}
	return out, nil
}

// Bundle is what the API server is to accept, in PEM: the authority, the next one before it signs,
// and the one before until it ends.
func (c Certificates) Bundle() []byte {
	var out bytes.Buffer
	for _, a := range []*x509.Certificate{c.authority.certificate, c.next.certificate, c.previous} {
		if a != nil {
			out.Write(encode(a))
		}
	}
	return out.Bytes()
}

// Serving is the certificate of the server.
func (c Certificates) Serving() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{c.serving.certificate.Raw}, PrivateKey: c.serving.key, Leaf: c.serving.certificate}
}

// Ends is when the serving certificate ends.
func (c Certificates) Ends() time.Time { return c.serving.certificate.NotAfter }

// Valid reports whether clients accept the serving certificate for a name at a time.
func (c Certificates) Valid(name string, now time.Time) bool {
	if c.serving.certificate == nil {
		return false
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Bundle())
	_, err := c.serving.certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now})
	return err == nil
}

// Renew returns the certificates that are to be in force for a name at a time, and what it renewed,
// "" if nothing. An authority that ends in a third of its time gets a successor, which the bundle has
// for the overlap before it signs. Certificates that are valid no more are made at once.
func (c Certificates) Renew(name string, now time.Time) (Certificates, string, error) {
	var why string
	if c.next.certificate != nil && !now.Before(c.next.certificate.NotBefore.Add(skew+overlap)) {
		c.previous, c.authority, c.next, why = c.authority.certificate, c.next, pair{}, "the next authority signs"
	}
	switch ended := c.authority.certificate == nil || !now.Before(c.authority.certificate.NotAfter); {
	case ended:
		a, err := newAuthority(now)
		if err != nil {
			return c, "", err
		}
		c, why = Certificates{authority: a}, "made an authority"
	case c.next.certificate == nil && due(c.authority.certificate, now):
		a, err := newAuthority(now)
		if err != nil {
			return c, "", err
		}
		c.next, why = a, "made the next authority"
	}
	if c.previous != nil && !now.Before(c.previous.NotAfter) {
		c.previous, why = nil, "removed an authority that has ended"
	}
	if c.signed(name, now) {
		return c, why, nil
	}
	serving, err := c.authority.sign(name, now)
	if err != nil {
		return c, "", err
	}
	c.serving = serving
	if why == "" {
		why = "made a serving certificate"
	}
	return c, why, nil
}

// signed reports whether the serving certificate is the authority's, for the name, and not due.
func (c Certificates) signed(name string, now time.Time) bool {
	s := c.serving.certificate
	return s != nil && s.CheckSignatureFrom(c.authority.certificate) == nil && s.VerifyHostname(name) == nil && !now.Before(s.NotBefore) && !due(s, now)
}

// due reports whether less than a third of a certificate's time is left.
func due(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

func newAuthority(now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make the key of an authority: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "trunkline-admission " + now.UTC().Format(time.RFC3339)},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityValid), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	return issue(template, template, key, key)
}

// sign makes a serving certificate, which never outlives the authority.
func (p pair) sign(name string, now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make the key of %s: %w", name, err)
	}
	ends := now.Add(servingValid)
	if ends.After(p.certificate.NotAfter) {
		ends = p.certificate.NotAfter
	}
	return issue(&x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-skew), NotAfter: ends, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, p.certificate, key, p.key)
}

func issue(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (pair, error) {
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return pair{}, fmt.Errorf("sign certificate %s: %w", template.Subject.CommonName, err)
	}
	c, err := x509.ParseCertificate(raw)
	return pair{c, key}, err
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parse(certificate, key []byte) (pair, error) {
	c, err := parseCertificate(certificate)
	if err != nil {
		return pair{}, err
	}
	block, _ := pem.Decode(key)
	if block == nil {
		return pair{}, errors.New("its key is no PEM")
	}
	k, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return pair{}, errors.New("its key cannot be read") // the error must not quote it
	}
	if !k.PublicKey.Equal(c.PublicKey) {
		return pair{}, errors.New("its key is another one's")
	}
	return pair{c, k}, nil
}
