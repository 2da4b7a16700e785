//go:build netns

package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// withoutFiles is the environment variable that makes this test binary check an authority
// of AWS as a program in an image without other files.
const withoutFiles = "TRUNKLINE_TEST_WITHOUT_FILES"

// checkAuthority returns an error unless the process trusts the authority (PEM).
func checkAuthority(text []byte) error {
	block, _ := pem.Decode(text)
	if block == nil {
		return errors.New("no certificate given")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err == nil {
		_, err = cert.Verify(x509.VerifyOptions{})
	}
	return err
}

// The endpoints of AWS have certificates below these authorities. Source:
// https://www.amazontrust.com/repository.
func TestAWSsAuthoritiesAreTrustedInAnImageWithoutFiles(t *testing.T) {
	machine, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for rest := machine; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !bytes.Contains([]byte(cert.Subject.CommonName), []byte("Amazon Root CA")) {
			continue
		}
		checked++
		cmd := exec.Command(self)
		none := t.TempDir()
		cmd.Env = []string{withoutFiles + "=" + string(pem.EncodeToMemory(block)), "SSL_CERT_DIR=" + none, "SSL_CERT_FILE=" + none + "/none"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", cert.Subject.CommonName, err, out)
		}
	}
	if checked != 4 {
		t.Errorf("the machine's list has %d of Amazon's authorities, want 4", checked)
	}
}

// asProgramWithoutFiles does what withoutFiles requests, and returns the exit code.
func asProgramWithoutFiles(authority string) int {
	if err := checkAuthority([]byte(authority)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
