package sigv4_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/iam/sigv4"
)

// Each header differs from a valid one in one place.
func TestAMalformedHeaderIsRefusedWithItsReason(t *testing.T) {
	valid := "AWS4-HMAC-SHA256 Credential=AK/20261121/us-west-2/ec2/aws4_request, SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0a", 32)
	a, err := sigv4.Parse(valid)
	if err != nil || a.AccessKeyID != "AK" || a.Day != "20261121" || a.Region != "us-west-2" || a.Service != "ec2" || len(a.SignedHeaders) != 2 || a.Signature[31] != 10 {
		t.Fatalf("%+v, %v", a, err)
	}
	for _, c := range []struct{ old, new, why string }{
		{"AWS4-HMAC-SHA256 ", "", "algorithm is not AWS4-HMAC-SHA256"},
		{"Credential=", "Credentials=", "Credential is missing"},
		{"SignedHeaders=host;x-amz-date", "SignedHeaders=", "SignedHeaders is missing"},
		{"Signature=", "Signed=", "Signature is missing"},
		{", Signature", ", x, Signature", `" x"`},
		{", Signature", ", SignedHeaders=a, Signature", `" SignedHeaders=a"`},
		{"/aws4_request", "", `credential "AK/20261121/us-west-2/ec2"`},
		{"aws4_request", "aws5_request", `credential "AK/20261121/us-west-2/ec2/aws5_request"`},
		{"host;x-amz-date", "x-amz-date;host", "not sorted"},
		{"0a0a", "0a", "64 hexadecimal digits"},
		{"0a0a", "0a0a0a", "64 hexadecimal digits"},
		{"0a0a", "0a0x", "64 hexadecimal digits"},
		{"Signature=", "Signature=0", "64 hexadecimal digits"},
	} {
		a, err := sigv4.Parse(strings.Replace(valid, c.old, c.new, 1))
		if !errors.Is(err, sigv4.ErrMalformed) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q instead of %q: %+v, %v; want %q", c.new, c.old, a, err, c.why)
		}
	}
}

func TestAMalformedAddressIsRefusedWithItsReason(t *testing.T) {
	valid := func() url.Values {
		return url.Values{
			"X-Amz-Algorithm": {"AWS4-HMAC-SHA256"}, "X-Amz-Credential": {"AK/20261121/us-west-2/sts/aws4_request"}, "X-Amz-Expires": {"60"},
			"X-Amz-SignedHeaders": {"host"}, "X-Amz-Signature": {strings.Repeat("0a", 32)},
		}
	}
	for name, values := range map[string][]string{"X-Amz-Expires": {"60"}, "": nil} {
		q := valid()
		delete(q, "X-Amz-Expires")
		if values != nil {
			q[name] = values
		}
		if a, err := sigv4.ParseQuery(q); err != nil || a.Service != "sts" {
			t.Errorf("a valid address with %q: %+v, %v", name, a, err)
		}
	}
	for name, c := range map[string]struct {
		values []string
		why    string
	}{
		"X-Amz-Algorithm":     {[]string{"AWS4-HMAC-SHA1"}, "algorithm is not AWS4-HMAC-SHA256"},
		"X-Amz-Expires":       {[]string{"soon"}, `X-Amz-Expires "soon"`},
		"X-Amz-Date":          {[]string{"a", "b"}, "X-Amz-Date is given twice"},
		"X-Amz-Credential":    {nil, "Credential is missing"},
		"X-Amz-SignedHeaders": {nil, "SignedHeaders is missing"},
		"X-Amz-Signature":     {nil, "Signature is missing"},
	} {
		q := valid()
		q[name] = c.values
		if a, err := sigv4.ParseQuery(q); !errors.Is(err, sigv4.ErrMalformed) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s %q: %+v, %v; want %q", name, c.values, a, err, c.why)
		}
	}
}

func TestARequestAtTheEdgeOfTheWindowIsAccepted(t *testing.T) {
	for _, d := range []time.Duration{sigv4.Window, -sigv4.Window} {
		if err := verify(signed(t, "/", nil), sigv4.Key{Secret: "secret", Token: "token"}, then().Add(d)); err != nil {
			t.Errorf("%s after it was signed: %v", d, err)
		}
		later := then().Add(d + d/(sigv4.Window/time.Second))
		if err := verify(signed(t, "/", nil), sigv4.Key{Secret: "secret", Token: "token"}, later); !errors.Is(err, sigv4.ErrSkew) {
			t.Errorf("a second more than %s after it was signed: %v", d, err)
		}
	}
}

// SignHTTP of the SDK signs "/" for an address without a path, as clients may send it.
func TestAnAddressWithoutAPathIsSignedAsTheRoot(t *testing.T) {
	r := signed(t, "/", func(r *http.Request) { r.URL.Path = "" })
	if err := verify(r, sigv4.Key{Secret: "secret", Token: "token"}, then()); err != nil {
		t.Error(err)
	}
}
