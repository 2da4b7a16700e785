package iam_test

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/iam"
)

// A trust policy with anything that is not enforced is refused when it is loaded.
func TestUnsupportedTrustPoliciesAreRefused(t *testing.T) {
	const allow = `"Effect": "Allow", "Action": "sts:AssumeRole"`
	for statement, want := range map[string]string{
		`{` + allow + `}`: "element Principal: missing",
		`{` + allow + `, "Principal": {"AWS": "*"}, "Resource": "*"}`:                     "element Resource: a trust policy has none",
		`{` + allow + `, "Principal": {"Federated": "x"}}`:                                "element Principal: Federated is not supported",
		`{` + allow + `, "Principal": {"AWS": "alice"}}`:                                  `"alice": want an ARN, an account or "*"`,
		`{` + allow + `, "Principal": {"AWS": "arn:aws:iam::111122223333:role/*"}}`:       "a principal has no wildcards",
		`{` + allow + `, "Principal": {"AWS": ["1111", "*"]}}`:                            `"1111": want an ARN, an account or "*"`,
		`{` + allow + `, "NotPrincipal": {"AWS": "*"}, "Principal": "*"}`:                 "element NotPrincipal: not supported",
		`{` + allow + `, "Principal": "*", "Condition": {"StringEquals": {"sts:X": ""}}}`: "condition key sts:X is not supported",
		`{"Effect": "Allow", "Principal": "*"}`:                                           "element Action: missing or empty",
	} {
		err := iam.New("111122223333", 1, nil).AddRole(iam.Role{Name: "r", TrustPolicy: []byte(`{"Version": "2012-10-17", "Statement": [` + statement + `]}`)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "role r: trust policy: statement 1: ") {
			t.Errorf("%s: %v, want %q", statement, err, want)
		}
	}
	for document, want := range map[string]string{
		`{"Statement": [{` + allow + `, "Principal": "*"}]}`: `element Version: "", want "2012-10-17"`,
		`{"Version": "2012-10-17"}`:                          "element Statement: missing or empty",
		`[]`:                                                 "want a JSON object",
	} {
		if err := iam.New("111122223333", 1, nil).AddRole(iam.Role{Name: "r", TrustPolicy: []byte(document)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", document, err, want)
		}
	}
}
