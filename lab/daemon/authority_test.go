package daemon

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/ca"
)

func TestTheAuthoritysKeyIsForRootOnly(t *testing.T) {
	dir := t.TempDir()
	a, err := ca.New("test", []string{"amazonaws.com"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces the first, as when the lab starts again
		if err := writeAuthority(dir, a); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := filepath.Join(dir, "aws-ca.crt"), filepath.Join(dir, "aws-ca.key")
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(key); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v (%v), want 0600", st.Mode(), err)
	}
	if text, err := os.ReadFile(cert); err != nil || !bytes.Equal(text, a.Certificate()) {
		t.Errorf("the certificate is %s (%v)", text, err)
	}
}
