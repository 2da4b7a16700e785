package iam_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/sim/iam"
)

// The document is that of API_DecodeAuthorizationMessage.html, without the statements.
func TestARefusalIsDecodedByTheAccountThatEncodedIt(t *testing.T) {
	denied := &iam.DeniedError{
		Principal: "arn:aws:sts::111122223333:assumed-role/node/i-1", PrincipalID: "AROA:i-1", Explicit: true,
		Request: iam.Request{Action: "ec2:DeleteNetworkInterface", Resource: eni, Keys: map[string][]string{
			"aws:userid": {"AROA:i-1"}, "aws:tagkeys": {"b", "a", "\xff"},
		}},
	}
	a := iam.New("111122223333", 1, nil)
	encoded, err := a.EncodeMessage(denied)
	if err != nil {
		t.Fatal(err)
	}
	text, err := iam.New("111122223333", 1, nil).DecodeMessage(encoded) // after a restart of the world
	if err != nil {
		t.Fatal(err)
	}
	want := `{
	"allowed": false, "explicitDeny": true, "matchedStatements": {"items": []}, "failures": {"items": []},
	"context": {
		"principal": {"id": "AROA:i-1", "arn": "arn:aws:sts::111122223333:assumed-role/node/i-1"},
		"action": "ec2:DeleteNetworkInterface", "resource": "` + eni + `",
		"conditions": {"items": [
			{"key": "aws:tagkeys", "values": {"items": [{"value": "a"}, {"value": "b"}, {"value": "` + "\ufffd" + `"}]}},
			{"key": "aws:userid", "values": {"items": [{"value": "AROA:i-1"}]}}
		]}
	}
}`
	if diff := cmp.Diff(unmarshalled(t, want), unmarshalled(t, text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1
	for name, c := range map[string]struct {
		of   *iam.Account
		text string
	}{
		"another account":  {iam.New("444455556666", 1, nil), encoded},
		"another seed":     {iam.New("111122223333", 2, nil), encoded},
		"a flipped bit":    {a, base64.RawURLEncoding.EncodeToString(raw)},
		"too short":        {a, "AAAA"},
		"not base64":       {a, "?"},
		"an empty message": {a, ""},
	} {
		if text, err := c.of.DecodeMessage(c.text); !errors.Is(err, iam.ErrMessage) {
			t.Errorf("%s: %q, %v; want ErrMessage", name, text, err)
		}
	}
}

func unmarshalled(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
