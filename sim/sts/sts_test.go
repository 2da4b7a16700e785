package sts_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	awssts "github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
	"github.com/trunkline/trunkline/sim/sts"
)

const (
	issuer  = "https://oidc.lab"
	subject = "system:serviceaccount:kube-system:trunkline-controller"
)

// service is STS over an account with one role that trusts one service account.
type service struct {
	*awssts.Client
	sts     *sts.STS
	iam     *iam.Account
	handler http.Handler
	url     string
}

func start(t *testing.T) *service {
	t.Helper()
	return startFor(t)
}

func startFor(t testing.TB) *service {
	t.Helper()
	return startAt(t, time.Now)
}

// startAt starts a service with a clock.
func startAt(t testing.TB, now func() time.Time) *service {
	t.Helper()
	account := iam.New("111122223333", 1, now)
	if err := account.AddRole(iam.Role{Name: "controller", Trust: []iam.Trust{{Issuer: issuer, Subject: subject}}}); err != nil {
		t.Fatal(err)
	}
	s := &service{sts: sts.New(account, now), iam: account}
	s.handler = query.New(query.Options{
		IAM: account, Cloud: emptyCloud(t), Faults: faults.New(1, nil), Calls: &faults.Log{}, Region: "us-west-2", Now: now,
	}, s.sts.Service())
	server := httptest.NewServer(s.handler)
	t.Cleanup(server.Close)
	s.url = server.URL
	s.Client = s.as(aws.AnonymousCredentials{})
	return s
}

func (s *service) as(p aws.CredentialsProvider) *awssts.Client {
	return awssts.New(awssts.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(s.url), Credentials: p,
	})
}

// token signs claims as an API server does.
func token(t *testing.T, key crypto.Signer, claims map[string]any) string {
	t.Helper()
	algorithm := "RS256"
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		algorithm = "ES256"
	}
	part := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	signed := part(map[string]string{"alg": algorithm, "kid": "k1"}) + "." + part(claims)
	digest := sha256.Sum256([]byte(signed))
	var signature []byte
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, k, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		signature = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	case *rsa.PrivateKey:
		var err error
		if signature, err = rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, digest[:]); err != nil {
			t.Fatal(err)
		}
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func claims(edit func(map[string]any)) map[string]any {
	c := map[string]any{
		"iss": issuer, "sub": subject, "aud": []string{"sts.amazonaws.com"}, "exp": time.Now().Add(time.Hour).Unix(),
		"nbf": time.Now().Add(-time.Minute).Unix(),
	}
	if edit != nil {
		edit(c)
	}
	return c
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func asPEM(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func asJWKS(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	b64 := base64.RawURLEncoding.EncodeToString
	switch k := key.Public().(type) {
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Appendf(nil, `{"keys": [{"kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "x": %q, "y": %q}]}`, b64(point[1:33]), b64(point[33:]))
	case *rsa.PublicKey:
		return fmt.Appendf(nil, `{"keys": [{"kty": "RSA", "kid": "k1", "n": %q, "e": "AQAB"}]}`, b64(k.N.Bytes()))
	}
	return nil
}

type given string

// GetIdentityToken implements the SDK's IdentityTokenRetriever.
func (g given) GetIdentityToken() ([]byte, error) { return []byte(g), nil }

// A pod obtains credentials through the SDK's own provider, for both key types and
// both key formats.
func TestServiceAccountAssumesItsRole(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ec := ecKey(t)
	for name, test := range map[string]struct {
		key  crypto.Signer
		keys []byte
	}{
		"ES256, PEM": {ec, asPEM(t, ec)}, "ES256, JWKS": {ec, asJWKS(t, ec)},
		"RS256, PEM": {rsaKey, asPEM(t, rsaKey)}, "RS256, JWKS": {rsaKey, asJWKS(t, rsaKey)},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			if err := s.sts.Trust(sts.Issuer{URL: issuer, Keys: test.keys}); err != nil {
				t.Fatal(err)
			}
			provider := stscreds.NewWebIdentityRoleProvider(s.Client, s.iam.RoleARN("controller"), given(token(t, test.key, claims(nil))),
				func(o *stscreds.WebIdentityRoleOptions) { o.RoleSessionName = "pod-1" })
			got, err := provider.Retrieve(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(got.Expires); left < 50*time.Minute || left > time.Hour {
				t.Errorf("credentials expire in %s, want an hour", left)
			}
			who, err := s.as(credentials.StaticCredentialsProvider{Value: got}).GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
			if err != nil || *who.Arn != "arn:aws:sts::111122223333:assumed-role/controller/pod-1" || *who.Account != "111122223333" {
				t.Errorf("%+v, %v", who, err)
			}
		})
	}
}

func TestInvalidTokensAreRefused(t *testing.T) {
	key, other := ecKey(t), ecKey(t)
	set := func(name string, value any) func(map[string]any) {
		return func(c map[string]any) { c[name] = value }
	}
	good := token(t, key, claims(nil))
	parts := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."
	for name, test := range map[string]struct {
		token, role, code string
	}{
		"a key of another issuer":       {token(t, other, claims(nil)), "controller", "InvalidIdentityToken"},
		"no signature":                  {forged, "controller", "InvalidIdentityToken"},
		"claims of another token":       {parts[0] + "." + strings.Split(token(t, key, claims(set("sub", "x"))), ".")[1] + "." + parts[2], "controller", "InvalidIdentityToken"},
		"no token":                      {"rubbish", "controller", "InvalidIdentityToken"},
		"an untrusted issuer":           {token(t, key, claims(set("iss", "https://evil"))), "controller", "InvalidIdentityToken"},
		"an expired token":              {token(t, key, claims(set("exp", time.Now().Add(-time.Second).Unix()))), "controller", "ExpiredTokenException"},
		"a token without an end":        {token(t, key, claims(func(c map[string]any) { delete(c, "exp") })), "controller", "ExpiredTokenException"},
		"a token that is not valid yet": {token(t, key, claims(set("nbf", time.Now().Add(time.Hour).Unix()))), "controller", "InvalidIdentityToken"},
		"another service account":       {token(t, key, claims(set("sub", "system:serviceaccount:default:default"))), "controller", "AccessDenied"},
		"another audience":              {token(t, key, claims(set("aud", "kubernetes"))), "controller", "AccessDenied"},
		"a missing role":                {good, "missing", "AccessDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			if err := s.sts.Trust(sts.Issuer{URL: issuer, Keys: asPEM(t, key)}); err != nil {
				t.Fatal(err)
			}
			_, err := s.AssumeRoleWithWebIdentity(t.Context(), &awssts.AssumeRoleWithWebIdentityInput{
				RoleArn: aws.String(s.iam.RoleARN(test.role)), RoleSessionName: aws.String("s1"), WebIdentityToken: &test.token,
			})
			wantCode(t, err, test.code)
		})
	}
}

func TestSessionNamesAreValidInAnARN(t *testing.T) {
	key := ecKey(t)
	given := token(t, key, claims(nil))
	s := start(t)
	if err := s.sts.Trust(sts.Issuer{URL: issuer, Keys: asPEM(t, key)}); err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{
		"i-0abc@x.y,z=1+2_3": true, strings.Repeat("n", 64): true,
		"n": false, strings.Repeat("n", 65): false, "a b": false, "a/b": false, "a;b": false, "a\"b": false, "ä1": false,
	} {
		_, err := s.AssumeRoleWithWebIdentity(t.Context(), &awssts.AssumeRoleWithWebIdentityInput{
			RoleArn: aws.String(s.iam.RoleARN("controller")), RoleSessionName: aws.String(name), WebIdentityToken: &given,
		})
		if good && err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if !good {
			wantCode(t, err, "ValidationError")
		}
	}
}

func TestRefusalsHaveSTSsErrorCodes(t *testing.T) {
	s := start(t)
	who := func(id, secret, token string) error {
		_, err := s.as(credentials.NewStaticCredentialsProvider(id, secret, token)).GetCallerIdentity(context.Background(), &awssts.GetCallerIdentityInput{})
		return err
	}
	c, _, err := s.iam.Issue(iam.Session{Role: "controller", Name: "s", Lifetime: -time.Second})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, who("AKIANOBODY", "secret", ""), "InvalidClientTokenId")
	wantCode(t, who(c.AccessKeyID, "wrong", c.Token), "SignatureDoesNotMatch")
	wantCode(t, who(c.AccessKeyID, c.SecretAccessKey, c.Token), "ExpiredToken")
}

func TestUnusableKeysAreRefused(t *testing.T) {
	s := start(t)
	for _, keys := range []string{
		"", "rubbish", `{"keys": []}`, `{"keys": [{"kty": "oct", "k": "AA"}]}`, `{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}`,
		"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
	} {
		if err := s.sts.Trust(sts.Issuer{URL: issuer, Keys: []byte(keys)}); err == nil {
			t.Errorf("%q is accepted", keys)
		}
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

func emptyCloud(t testing.TB) *cloud.Cloud {
	t.Helper()
	c, err := cloud.New(cloud.Spec{Region: "us-west-2", Account: "111122223333", VPC: cloud.VPCSpec{CIDRs: vpcCIDRs()}}, cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func vpcCIDRs() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")} }
