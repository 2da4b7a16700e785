package imds

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"
)

// signer signs instance identity documents. Its key is made at the first use, because
// making it takes long and few programs read a signature.
//
// AWS signs "signature" and "rsa2048" with RSA keys and "pkcs7" with a DSA key, which
// its user guide advises against; here one RSA key of 2048 bits signs all three.
// Source: EC2 user guide, "Instance identity documents".
type signer struct {
	once        sync.Once
	key         *rsa.PrivateKey
	certificate *x509.Certificate
	err         error
}

// Certificate returns the certificate, in DER, that verifies the signatures of the
// server's identity documents. AWS publishes one for each region.
func (s *Server) Certificate() ([]byte, error) {
	if err := s.signer.init(s.now()); err != nil {
		return nil, err
	}
	return s.signer.certificate.Raw, nil
}

func (s *signer) init(now time.Time) error {
	s.once.Do(func() {
		if s.key, s.err = rsa.GenerateKey(rand.Reader, 2048); s.err != nil {
			return
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{Country: []string{"US"}, Organization: []string{"Amazon Web Services LLC"}},
			NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(100, 0, 0),
		}
		var der []byte
		if der, s.err = x509.CreateCertificate(rand.Reader, template, template, s.key.Public(), s.key); s.err != nil {
			return
		}
		s.certificate, s.err = x509.ParseCertificate(der)
	})
	if s.err != nil {
		return fmt.Errorf("make the key of identity documents: %w", s.err)
	}
	return nil
}

// identityTree returns dynamic/instance-identity.
func identityTree(i Instance, s *Server) dir {
	signed := func(sign func(document string) ([]byte, error)) document {
		return func() (string, bool) {
			text, ok := identity(i)
			if !ok {
				return "", false
			}
			err := s.signer.init(s.now())
			var raw []byte
			if err == nil {
				raw, err = sign(text)
			}
			if err != nil {
				s.log.Error("sign the identity document", "instance", i.ID, "err", err)
				return "", false
			}
			return wrapped(raw), true
		}
	}
	return dir{
		"document":  document(func() (string, bool) { return identity(i) }),
		"pkcs7":     signed(s.signer.pkcs7),
		"rsa2048":   signed(s.signer.pkcs7),
		"signature": signed(s.signer.sign),
	}
}

// wrapped returns base64 in lines of 64 characters.
func wrapped(raw []byte) string {
	text := base64.StdEncoding.EncodeToString(raw)
	var lines []string
	for len(text) > 64 {
		lines, text = append(lines, text[:64]), text[64:]
	}
	return strings.Join(append(lines, text), "\n")
}

// sign returns the RSA signature of a document's SHA-256 digest.
func (s *signer) sign(document string) ([]byte, error) {
	digest := sha256.Sum256([]byte(document))
	return rsa.SignPKCS1v15(rand.Reader, s.key, crypto.SHA256, digest[:])
}

// Structures of a PKCS #7 signature. Source: RFC 5652, sections 3 and 5.
type (
	contentInfo struct {
		Type    asn1.ObjectIdentifier
		Content signedData `asn1:"explicit,tag:0"`
	}
	signedData struct {
		Version int
		Digests []pkix.AlgorithmIdentifier `asn1:"set"`
		Content encapsulated
		Signers []signerInfo `asn1:"set"`
	}
	encapsulated struct {
		Type    asn1.ObjectIdentifier
		Content []byte `asn1:"explicit,tag:0"`
	}
	signerInfo struct {
		Version   int
		Issuer    issuerAndSerial
		Digest    pkix.AlgorithmIdentifier
		Signing   pkix.AlgorithmIdentifier
		Signature []byte
	}
	issuerAndSerial struct {
		Issuer asn1.RawValue
		Serial *big.Int
	}
)

// pkcs7 returns a signature that contains the document, and no certificate.
func (s *signer) pkcs7(document string) ([]byte, error) {
	signature, err := s.sign(document)
	if err != nil {
		return nil, err
	}
	digest := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}, Parameters: asn1.NullRawValue}
	return asn1.Marshal(contentInfo{
		Type: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}, // signedData
		Content: signedData{
			Version: 1, Digests: []pkix.AlgorithmIdentifier{digest},
			Content: encapsulated{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}, []byte(document)}, // data
			Signers: []signerInfo{{
				Version: 1, Issuer: issuerAndSerial{asn1.RawValue{FullBytes: s.certificate.RawIssuer}, s.certificate.SerialNumber}, Digest: digest,
				Signing:   pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, Parameters: asn1.NullRawValue}, // rsaEncryption
				Signature: signature,
			}},
		},
	})
}
