package iam_test

import (
	"errors"
	"strings"
	"testing"
	"time"

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
		`7`:                                                                               "found 7, want a JSON object",
		`{` + allow + `, "Principal": 7}`:                                                 "element Principal: ",
		`{` + allow + `, "Principal": {"AWS": 7}}`:                                        "element Principal: AWS: want a string",
		`{` + allow + `, "Principal": {"AWS": "111122223333:user:a:b:c:d"}}`:              "want an ARN",
		`{` + allow + `, "Principal": {"AWS": "arn:aws:iam::1:role/r"}}`:                  "want an ARN",
		`{` + allow + `, "Principal": {"AWS": "arn:aws:iam"}}`:                            "want an ARN",
		`{` + allow + `, "Principal": {"AWS": "urn:aws:iam::111122223333:root"}}`:         "want an ARN",
		`{` + allow + `, "Principal": {"AWS": "11112222333x"}}`:                           "want an ARN",
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
		`{"Version": "2012-10-17", "Statement": []}`:         "element Statement: missing or empty",
		`{"Version": "2012-10-17", "Owner": "me"}`:           "element Owner is not supported",
		`{"Version": 7, "Statement": [{` + allow + `, "Principal": "*"}]}`: "element Version: json",
	} {
		if err := iam.New("111122223333", 1, nil).AddRole(iam.Role{Name: "r", TrustPolicy: []byte(document)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", document, err, want)
		}
	}
}

// Its own policies must allow a caller that the trust policy does not name.
func TestATrustPolicyNamesItsPrincipalsInEachForm(t *testing.T) {
	const allowAll = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`
	const allowNone = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:X", "Resource": "*"}}`
	const user = "arn:aws:iam::111122223333:user/alice"
	for statements, want := range map[string]struct{ withOwn, without bool }{
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}`:                                                                                        {true, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}`:                                                                               {true, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "111122223333"}}`:                                                                    {true, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "444455556666"}}`:                                                                    {false, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": ["444455556666", "111122223333"]}}`:                                                  {true, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": ["444455556666", "` + user + `"]}}`:                                                  {true, true},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "arn:aws:iam::111122223333:root"}}`:                                                  {true, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "` + user + `"}}`:                                                                    {true, true},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "` + user + `2"}}`:                                                                   {false, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}`:                                                           {false, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "` + user + `", "Service": "ec2.amazonaws.com"}}`:                                    {true, true},
		`{"Effect": "Allow", "Action": "sts:TagSession", "Principal": "*"}`:                                                                                        {false, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}, {"Effect": "Deny", "Action": "sts:*", "Principal": {"AWS": "` + user + `"}}`:           {false, false},
		`{"Effect": "Deny", "Action": "sts:*", "Principal": {"AWS": "444455556666"}}, {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}`:           {true, false},
		`{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "` + user + `"}}, {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}`: {true, true},
	} {
		for document, may := range map[string]bool{allowAll: want.withOwn, allowNone: want.without} {
			a := iam.New("111122223333", 1, nil)
			trust := []byte(`{"Version": "2012-10-17", "Id": "x", "Statement": [` + statements + `]}`)
			if err := a.AddRole(iam.Role{Name: "target", TrustPolicy: trust, Tags: map[string]string{"team": "net"}}); err != nil {
				t.Fatalf("%s: %v", statements, err)
			}
			key, err := a.AddUser("alice", []byte(document))
			if err != nil {
				t.Fatal(err)
			}
			_, caller, _ := a.Find(key.AccessKeyID)
			err = a.MayAssume(caller, a.RoleARN("target"), []string{"sts:AssumeRole"}, map[string][]string{})
			if (err == nil) != may {
				t.Errorf("%s, own policy %s: %v, want that it may %v", statements, document, err, may)
			}
			if err := a.MayAssume(caller, a.RoleARN("none"), []string{"sts:AssumeRole"}, map[string][]string{}); err == nil {
				t.Errorf("%s: a role that does not exist is assumed", statements)
			}
			err = a.MayAssume(caller, "arn:aws:iam::444455556666:role/target", []string{"sts:AssumeRole"}, map[string][]string{})
			var denied *iam.DeniedError
			if !errors.As(err, &denied) || denied.Principal != user || denied.PrincipalID != caller.ID || caller.ID == "" {
				t.Errorf("%s: the role of another account: %+v, %v", statements, denied, err)
			}
		}
	}
}

func TestTheTagsOfASessionReplaceThoseOfItsRole(t *testing.T) {
	a := iam.New("1", 1, nil)
	if err := a.AddRole(iam.Role{Name: "r", Tags: map[string]string{"Team": "net", "stage": "test"}, MaxSession: 7}); err != nil {
		t.Fatal(err)
	}
	c, _, err := a.Issue(iam.Session{Role: "r", Name: "s", Tags: iam.SessionTags{Tags: map[string]string{"team": "storage"}, SourceIdentity: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
	_, p, _ := a.Find(c.AccessKeyID)
	keys := p.Keys()
	if len(keys) != 6 || keys["aws:principaltag/team"][0] != "storage" || keys["aws:principaltag/stage"][0] != "test" || keys["aws:sourceidentity"][0] != "alice" {
		t.Errorf("%v", keys)
	}
	if !p.Assumed() || p.Session().SourceIdentity != "alice" || (iam.Principal{}).Assumed() {
		t.Errorf("assumed %v, %+v", p.Assumed(), p.Session())
	}
	r, _ := a.Role("r")
	if r.LongestSession() != 7 || (iam.Role{}).LongestSession() != time.Hour {
		t.Errorf("longest sessions %s and %s", r.LongestSession(), (iam.Role{}).LongestSession())
	}
}
