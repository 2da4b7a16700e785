package sigv4_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/trunkline/trunkline/sim/iam/sigv4"
)

const host = "sts.us-west-2.amazonaws.com"

// presigned returns an address that AWS's own SDK signed as the clients of EKS do: with
// the cluster's name in a signed header.
func presigned(t testing.TB) *url.URL {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "https://"+host+"/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Expires=60", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("x-k8s-aws-id", "cluster one")
	hash := sha256.Sum256(nil)
	credentials := aws.Credentials{AccessKeyID: "ASIAKEY", SecretAccessKey: "secret", SessionToken: "to/ken+=="}
	signed, _, err := signer.NewSigner().PresignHTTP(t.Context(), credentials, r, hex.EncodeToString(hash[:]), "sts", "us-west-2", then())
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(signed)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// verifyAddress verifies a request for a presigned address.
func verifyAddress(raw string, edit func(*http.Request), now time.Time) error {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return err
	}
	for name := range q {
		if !strings.HasPrefix(name, "X-Amz-") {
			delete(q, name)
		}
	}
	a, err := sigv4.ParseQuery(q)
	if err != nil {
		return err
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Host, r.URL.RawQuery = host, raw
	r.Header.Set("x-k8s-aws-id", "cluster one")
	if edit != nil {
		edit(r)
	}
	return sigv4.Verify(r, nil, a, sigv4.Key{Secret: "secret", Token: "to/ken+=="}, sigv4.Scope{Region: "us-west-2", Service: "sts", Now: now})
}

func TestPresignedAddressesAreVerified(t *testing.T) {
	good := presigned(t).RawQuery
	for name, test := range map[string]struct {
		raw  string
		edit func(*http.Request)
		now  time.Time
		want error
	}{
		"as it was signed":             {good, nil, then(), nil},
		"after its X-Amz-Expires":      {good, nil, then().Add(14 * time.Minute), nil},
		"sixteen minutes later":        {good, nil, then().Add(16 * time.Minute), sigv4.ErrSkew},
		"for another action":           {strings.Replace(good, "GetCallerIdentity", "GetSessionToken", 1), nil, then(), sigv4.ErrSignature},
		"with a parameter more":        {good + "&x=y", nil, then(), sigv4.ErrSignature},
		"for another cluster":          {good, func(r *http.Request) { r.Header.Set("x-k8s-aws-id", "two") }, then(), sigv4.ErrSignature},
		"at another host":              {good, func(r *http.Request) { r.Host = "evil" }, then(), sigv4.ErrSignature},
		"with an unsigned AWS header":  {good, func(r *http.Request) { r.Header.Set("X-Amz-Target", "x") }, then(), sigv4.ErrSignature},
		"with another token":           {strings.Replace(good, "X-Amz-Security-Token=to", "X-Amz-Security-Token=so", 1), nil, then(), sigv4.ErrToken},
		"with another time":            {strings.Replace(good, "T120000Z", "T120001Z", 1), nil, then(), sigv4.ErrSignature},
		"of another region":            {strings.Replace(good, "us-west-2", "eu-west-1", 1), nil, then(), sigv4.ErrScope},
		"with a parameter twice":       {good + "&X-Amz-Date=20261121T120000Z", nil, then(), sigv4.ErrMalformed},
		"with an impossible lifetime":  {strings.Replace(good, "X-Amz-Expires=60", "X-Amz-Expires=soon", 1), nil, then(), sigv4.ErrMalformed},
		"with another algorithm":       {strings.Replace(good, "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", 1), nil, then(), sigv4.ErrMalformed},
		"without a signature":          {good[:strings.Index(good, "&X-Amz-Signature")], nil, then(), sigv4.ErrMalformed},
		"without anything of SigV4":    {"Action=GetCallerIdentity", nil, then(), sigv4.ErrMissing},
		"with a signature that is cut": {good[:len(good)-2], nil, then(), sigv4.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			if err := verifyAddress(test.raw, test.edit, test.now); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// A header's signature does not exempt a parameter named like that of an address.
func TestHeaderSignaturesCoverEveryParameter(t *testing.T) {
	r := signed(t, "/?a=1", nil)
	r.URL.RawQuery += "&X-Amz-Signature=00"
	if err := verify(r, sigv4.Key{Secret: "secret", Token: "token"}, then()); !errors.Is(err, sigv4.ErrSignature) {
		t.Errorf("got %v, want %v", err, sigv4.ErrSignature)
	}
}

// Of all addresses only the signed one verifies, in any order and spelling of its
// parameters.
func FuzzPresignedAddress(f *testing.F) {
	genuine := presigned(f)
	for _, seed := range []string{
		genuine.RawQuery, "", "X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Signature=%zz", "X-Amz-Credential=a/b/c/d/aws4_request&X-Amz-Algorithm=AWS4-HMAC-SHA256",
		genuine.RawQuery + "&Action=X", strings.ReplaceAll(genuine.RawQuery, "-", "%2D"),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if verifyAddress(raw, nil, then()) != nil {
			return
		}
		got, err := url.ParseQuery(raw)
		if err != nil || got.Encode() != genuine.Query().Encode() {
			t.Fatalf("%q verifies (%v)", raw, err)
		}
	})
}
