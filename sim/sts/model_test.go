package sts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssts "github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// Every parameter that AWS's SDK sends for an action is taken or stands in the list of
// refusals, and the list has no other.
func TestEveryParameterOfTheModelIsTakenOrRefusedWithAReason(t *testing.T) {
	s := start(t)
	table := s.sts.Service()
	used := map[query.Refusal]bool{}
	for action, call := range map[string]func(*awssts.Client) error{
		"AssumeRoleWithWebIdentity": func(c *awssts.Client) error {
			text := aws.String("text")
			_, err := c.AssumeRoleWithWebIdentity(t.Context(), &awssts.AssumeRoleWithWebIdentityInput{
				RoleArn: text, RoleSessionName: text, WebIdentityToken: text, DurationSeconds: aws.Int32(900), Policy: text,
				PolicyArns: []types.PolicyDescriptorType{{Arn: text}}, ProviderId: text,
			})
			return err
		},
		"AssumeRole": func(c *awssts.Client) error {
			text := aws.String("text")
			_, err := c.AssumeRole(t.Context(), &awssts.AssumeRoleInput{
				RoleArn: text, RoleSessionName: text, DurationSeconds: aws.Int32(900), ExternalId: text, SourceIdentity: text, Policy: text,
				MinimumSessionTokenSize: aws.Int32(1), PolicyArns: []types.PolicyDescriptorType{{Arn: text}},
				ProvidedContexts: []types.ProvidedContext{{ContextAssertion: text, ProviderArn: text}}, SerialNumber: text,
				Tags: []types.Tag{{Key: text, Value: text}}, TokenCode: text, TransitiveTagKeys: []string{"text"},
			})
			return err
		},
		"GetCallerIdentity": func(c *awssts.Client) error {
			_, err := c.GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
			return err
		},
		"DecodeAuthorizationMessage": func(c *awssts.Client) error {
			_, err := c.DecodeAuthorizationMessage(t.Context(), &awssts.DecodeAuthorizationMessageInput{EncodedMessage: aws.String("text")})
			return err
		},
	} {
		var request any
		for _, a := range table.Actions {
			if a.Name == action {
				request = a.Request
			}
		}
		for name, values := range captured(t, call) {
			if name == "Action" || name == "Version" {
				continue
			}
			err := query.Decode(url.Values{name: values}, reflect.New(reflect.TypeOf(request)).Interface())
			var refusal *cloud.Error
			taken := !errors.As(err, &refusal) || refusal.Code != "UnknownParameter"
			refused := false
			for _, r := range table.Refusals {
				if r.Action == action && (r.Parameter == name || strings.HasPrefix(name, r.Parameter+".")) {
					refused, used[r] = true, true
				}
			}
			if taken == refused {
				t.Errorf("%s: parameter %s: taken %v, in the list of refusals %v; want one of them", action, name, taken, refused)
			}
		}
	}
	if len(used) != len(table.Refusals) {
		t.Errorf("%d of %d refusals are of parameters that the SDK sends", len(used), len(table.Refusals))
	}
}

// captured returns the form that the SDK sends.
func captured(t *testing.T, call func(*awssts.Client) error) url.Values {
	t.Helper()
	sent := make(chan url.Values, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, _ := url.ParseQuery(string(body))
		sent <- form
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	c := awssts.New(awssts.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL), Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("AKIA", "secret", ""),
	})
	if err := call(c); err == nil {
		t.Fatal("the aborted call succeeded")
	}
	return <-sent
}

// caller returns the key of a user with permission for one action.
func (s *service) caller(t *testing.T, action string) iam.Credentials {
	t.Helper()
	key, err := s.iam.AddUser("user", []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "`+action+`", "Resource": "*"}}`))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// The token of an EKS client is a presigned address of GetCallerIdentity, which the
// cluster's API server fetches.
func TestPresignedGetCallerIdentityIsAnswered(t *testing.T) {
	s := start(t)
	issued, _, err := s.iam.Issue(iam.Session{Role: "controller", Name: "eks", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	address := s.presign(t, issued)
	answer, status := s.fetch(t, address)
	if status != http.StatusOK || !strings.Contains(answer, "<Arn>arn:aws:sts::111122223333:assumed-role/controller/eks</Arn>") {
		t.Errorf("%d %s", status, answer)
	}
	for what, edit := range map[string]func(string) string{
		"another action": func(a string) string { return strings.Replace(a, "GetCallerIdentity", "AssumeRole", 1) },
		"another key":    func(a string) string { return strings.Replace(a, issued.AccessKeyID, "ASIAUNKNOWN", 1) },
		"a parameter":    func(a string) string { return a + "&x=y" },
		"no signature":   func(a string) string { return a[:strings.Index(a, "&X-Amz-")] },
	} {
		if answer, status := s.fetch(t, edit(address)); status < 400 || status >= 500 {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
}

func (s *service) presign(t testing.TB, key iam.Credentials) string {
	t.Helper()
	c := s.as(credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, key.Token))
	out, err := awssts.NewPresignClient(c).PresignGetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
	if err != nil {
		t.Fatal(err)
	}
	return out.URL
}

func (s *service) fetch(t testing.TB, address string) (string, int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		return "", http.StatusBadRequest // no address
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer), resp.StatusCode
}

func TestOnlyAnEncodedMessageOfTheAccountIsDecoded(t *testing.T) {
	s := start(t)
	key := s.caller(t, "sts:DecodeAuthorizationMessage")
	allowed := s.as(credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""))
	decode := func(c *awssts.Client, text string) (string, error) {
		out, err := c.DecodeAuthorizationMessage(t.Context(), &awssts.DecodeAuthorizationMessageInput{EncodedMessage: &text})
		if err != nil {
			return "", err
		}
		return *out.DecodedMessage, nil
	}
	denied := &iam.DeniedError{Principal: "arn:aws:iam::111122223333:user/x", Request: iam.Request{
		Action: "ec2:DeleteNetworkInterface", Resource: "arn:aws:ec2:us-west-2:111122223333:network-interface/eni-1",
		Keys: map[string][]string{"ec2:region": {"us-west-2"}},
	}}
	encoded, err := s.iam.EncodeMessage(denied)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(encoded, "DeleteNetworkInterface") {
		t.Errorf("%s is not opaque", encoded)
	}
	text, err := decode(allowed, encoded)
	if err != nil {
		t.Fatal(err)
	}
	var plain bytes.Buffer
	if err := json.Compact(&plain, []byte(`{"allowed": false, "explicitDeny": false, "matchedStatements": {"items": []}, "failures": {"items": []},
		"context": {"principal": {"id": "", "arn": "arn:aws:iam::111122223333:user/x"}, "action": "ec2:DeleteNetworkInterface",
			"resource": "arn:aws:ec2:us-west-2:111122223333:network-interface/eni-1",
			"conditions": {"items": [{"key": "ec2:region", "values": {"items": [{"value": "us-west-2"}]}}]}}}`)); err != nil {
		t.Fatal(err)
	}
	if text != plain.String() {
		t.Errorf("decoded  %s\nwant     %s", text, plain.String())
	}
	foreign, err := iam.New("444455556666", 1, nil).EncodeMessage(denied)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"rubbish", "!", encoded[:len(encoded)-4], foreign} {
		_, err := decode(allowed, wrong)
		wantCode(t, err, "InvalidAuthorizationMessageException")
	}
	key = s.caller(t, "sts:GetCallerIdentity")
	_, err = decode(s.as(credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, "")), encoded)
	wantCode(t, err, "AccessDenied")
}

// Temporary credentials are refused without their session token.
func TestTemporaryKeysNeedTheirToken(t *testing.T) {
	s := start(t)
	c, _, err := s.iam.Issue(iam.Session{Role: "controller", Name: "s", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "other"} {
		_, err := s.as(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, token)).GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
		wantCode(t, err, "InvalidClientTokenId")
	}
}

// Whatever the address of a GET, the answer is no internal error, and only the signed
// address is answered.
func FuzzGetAddress(f *testing.F) {
	var genuine *url.URL
	for _, seed := range []string{"", "Action=GetCallerIdentity&Version=2011-06-15", "Action=X&Version=2011-06-15&X-Amz-Signature=00", "%zz", "X-Amz-Date=1&X-Amz-Date=2"} {
		f.Add(seed)
	}
	s := startFor(f)
	issued, _, err := s.iam.Issue(iam.Session{Role: "controller", Name: "eks", Lifetime: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	if genuine, err = url.Parse(s.presign(f, issued)); err != nil {
		f.Fatal(err)
	}
	f.Add(genuine.RawQuery)
	handler := s.handler
	f.Fuzz(func(t *testing.T, raw string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host, r.URL.RawQuery = genuine.Host, raw
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		got, err := url.ParseQuery(raw)
		switch same := err == nil && got.Encode() == genuine.Query().Encode(); {
		case w.Code >= 500:
			t.Fatalf("%q: %d %s", raw, w.Code, w.Body)
		case w.Code == http.StatusOK && !same:
			t.Fatalf("%q is answered: %s", raw, w.Body)
		}
	})
}
