package sigv4_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/trunkline/trunkline/sim/iam/sigv4"
)

func then() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

const body = "Action=DescribeVpcs&Version=2016-11-15"

// signed returns a request as a server receives it, signed by AWS's own SDK.
func signed(t testing.TB, target string, edit func(*http.Request)) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://ec2.us-west-2.amazonaws.com"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	r.Header.Set("X-Odd", "  two   blanks  ")
	hash := sha256.Sum256([]byte(body))
	credentials := aws.Credentials{AccessKeyID: "ASIAKEY", SecretAccessKey: "secret", SessionToken: "token"}
	if err := signer.NewSigner().SignHTTP(t.Context(), credentials, r, hex.EncodeToString(hash[:]), "ec2", "us-west-2", then()); err != nil {
		t.Fatal(err)
	}
	var wire bytes.Buffer
	if err := r.Write(&wire); err != nil {
		t.Fatal(err)
	}
	arrived := httptest.NewRequest(r.Method, target, strings.NewReader(body))
	arrived.Host, arrived.Header, arrived.ContentLength = r.URL.Host, r.Header.Clone(), r.ContentLength
	if edit != nil {
		edit(arrived)
	}
	return arrived
}

func verify(r *http.Request, key sigv4.Key, now time.Time) error {
	a, err := sigv4.Parse(r.Header.Get("Authorization"))
	if err != nil {
		return err
	}
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return sigv4.Verify(r, payload, a, key, sigv4.Scope{Region: "us-west-2", Service: "ec2", Now: now})
}

func TestSDKSignaturesAreVerified(t *testing.T) {
	for _, target := range []string{"/", "/?b=2&a=1%20x", "/path/a", "/?a=b+c&d=%2fx&e=~"} {
		if err := verify(signed(t, target, nil), sigv4.Key{Secret: "secret", Token: "token"}, then()); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestModifiedRequestsAreRefused(t *testing.T) {
	good := sigv4.Key{Secret: "secret", Token: "token"}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	replace := func(old, new string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), old, new, 1))
		}
	}
	for name, test := range map[string]struct {
		edit func(*http.Request)
		key  sigv4.Key
		now  time.Time
		want error
	}{
		"the wrong secret":              {nil, sigv4.Key{Secret: "other", Token: "token"}, then(), sigv4.ErrSignature},
		"the wrong token":               {nil, sigv4.Key{Secret: "secret", Token: "other"}, then(), sigv4.ErrToken},
		"no token":                      {func(r *http.Request) { r.Header.Del("X-Amz-Security-Token") }, good, then(), sigv4.ErrToken},
		"a token that is not the key's": {nil, sigv4.Key{Secret: "secret"}, then(), sigv4.ErrToken},
		"another body":                  {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("Action=TerminateInstances")) }, good, then(), sigv4.ErrSignature},
		"another host":                  {func(r *http.Request) { r.Host = "evil" }, good, then(), sigv4.ErrSignature},
		"another header":                {header("X-Odd", "three"), good, then(), sigv4.ErrSignature},
		"another path":                  {func(r *http.Request) { r.URL.Path = "/x" }, good, then(), sigv4.ErrSignature},
		"another time":                  {header("X-Amz-Date", "20261121T120100Z"), good, then(), sigv4.ErrSignature},
		"another day":                   {header("X-Amz-Date", "20261122T120000Z"), good, then().Add(24 * time.Hour), sigv4.ErrScope},
		"no time":                       {header("X-Amz-Date", ""), good, then(), sigv4.ErrMalformed},
		"sixteen minutes ago":           {nil, good, then().Add(16 * time.Minute), sigv4.ErrSkew},
		"sixteen minutes in the future": {nil, good, then().Add(-16 * time.Minute), sigv4.ErrSkew},
		"another region":                {replace("us-west-2", "eu-west-1"), good, then(), sigv4.ErrScope},
		"another service":               {replace("/ec2/", "/sts/"), good, then(), sigv4.ErrScope},
		"an unsigned host":              {replace("host;", ""), good, then(), sigv4.ErrSignature},
		"an unsigned header of AWS":     {header("X-Amz-Target", "TerminateInstances"), good, then(), sigv4.ErrSignature},
		"an unsigned time":              {replace("x-amz-date;", ""), good, then(), sigv4.ErrSignature},
		"an unsigned token":             {replace(";x-amz-security-token", ""), good, then(), sigv4.ErrSignature},
		"headers out of order":          {replace("SignedHeaders=", "SignedHeaders=z;"), good, then(), sigv4.ErrMalformed},
		"a truncated signature":         {func(r *http.Request) { a := r.Header.Get("Authorization"); r.Header.Set("Authorization", a[:len(a)-2]) }, good, then(), sigv4.ErrMalformed},
		"another algorithm":             {replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"), good, then(), sigv4.ErrMalformed},
		"a credential twice":            {replace("Credential=", "Credential=x, Credential="), good, then(), sigv4.ErrMalformed},
		"no header":                     {func(r *http.Request) { r.Header.Del("Authorization") }, good, then(), sigv4.ErrMissing},
	} {
		t.Run(name, func(t *testing.T) {
			if err := verify(signed(t, "/", test.edit), test.key, test.now); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// The parser never panics, an accepted header has all parts, and only the signer's
// own header verifies.
func FuzzAuthorizationHeader(f *testing.F) {
	genuine := signed(f, "/", nil).Header.Get("Authorization")
	for _, seed := range []string{
		genuine, "", "AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host, Signature=00",
		"AWS4-HMAC-SHA256 Credential=////, SignedHeaders=;, Signature=",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		a, err := sigv4.Parse(header)
		if err != nil {
			if !errors.Is(err, sigv4.ErrMissing) && !errors.Is(err, sigv4.ErrMalformed) {
				t.Fatalf("%q: %v", header, err)
			}
			return
		}
		if len(a.SignedHeaders) == 0 {
			t.Fatalf("%q: no signed headers", header)
		}
		r := signed(t, "/", nil)
		r.Header.Set("Authorization", header)
		same, err := sigv4.Parse(genuine)
		if err != nil {
			t.Fatal(err)
		}
		if verify(r, sigv4.Key{Secret: "secret", Token: "token"}, then()) == nil && a.Signature != same.Signature {
			t.Fatalf("%q verifies", header)
		}
	})
}
