package imds

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The signatures of the identity document verify with the server's certificate: one
// by Go's RSA, the others by openssl, as AWS's user guide shows it.
func TestIdentityDocumentIsSigned(t *testing.T) {
	s := newService(t)
	token := s.token()
	get := func(name string) string {
		t.Helper()
		return body(t, s.do("GET", "/latest/dynamic/instance-identity/"+name, headerToken, token))
	}
	text := get("document")
	der, err := s.server.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	key := certificate.PublicKey.(*rsa.PublicKey)
	signature, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(get("signature"), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	for document, genuine := range map[string]bool{text: true, text + " ": false} {
		digest := sha256.Sum256([]byte(document))
		if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature); (err == nil) != genuine {
			t.Errorf("verify: %v, want a valid signature: %v", err, genuine)
		}
	}
	for _, name := range []string{"pkcs7", "rsa2048"} {
		if got, err := opensslVerify(t, get(name), der); err != nil || strings.ReplaceAll(got, "\r\n", "\n") != text {
			t.Errorf("%s: %v: %q, want %q", name, err, got, text)
		}
	}
	other := newService(t)
	foreign, err := other.server.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := opensslVerify(t, get("rsa2048"), foreign); err == nil {
		t.Errorf("the certificate of another server verifies %q", got)
	}
}

// opensslVerify returns the document of a PKCS #7 signature that a certificate
// verifies.
func opensslVerify(t *testing.T, signature string, certificate []byte) (string, error) {
	t.Helper()
	folder := t.TempDir()
	in, certificates := filepath.Join(folder, "in"), filepath.Join(folder, "certificate")
	wrapped := "-----BEGIN PKCS7-----\n" + signature + "\n-----END PKCS7-----\n"
	if err := os.WriteFile(in, []byte(wrapped), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(certificates, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("openssl", "smime", "-verify", "-binary", "-in", in, "-inform", "PEM", "-certfile", certificates, "-noverify").Output()
	return string(out), err
}
