package iam_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/iam"
)

func policy(t testing.TB, statements string) *iam.Policy {
	t.Helper()
	p, err := iam.ParsePolicy("test", []byte(`{"Version": "2012-10-17", "Statement": [`+statements+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const eni = "arn:aws:ec2:us-west-2:111122223333:network-interface/eni-1"

func TestPolicyDecisions(t *testing.T) {
	keys := func(pairs ...string) map[string][]string {
		m := map[string][]string{}
		for n := 0; n < len(pairs); n += 2 {
			m[pairs[n]] = append(m[pairs[n]], pairs[n+1])
		}
		return m
	}
	allow := func(condition string) string {
		return `{"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {` + condition + `}}`
	}
	for _, test := range []struct {
		name       string
		statements string
		request    iam.Request
		want       iam.Verdict
	}{
		{"an action by name", `{"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}`, iam.Request{Action: "ec2:DescribeVpcs", Resource: "*"}, iam.Allow},
		{"actions are case-insensitive", `{"Effect": "Allow", "Action": "EC2:describevpcs", "Resource": "*"}`, iam.Request{Action: "ec2:DescribeVpcs", Resource: "*"}, iam.Allow},
		{"an action by wildcard", `{"Effect": "Allow", "Action": ["s3:*", "ec2:Describe*"], "Resource": "*"}`, iam.Request{Action: "ec2:DescribeVpcs", Resource: "*"}, iam.Allow},
		{"another action", `{"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}`, iam.Request{Action: "ec2:DeleteRoute", Resource: "*"}, iam.NoMatch},
		{"a resource by wildcard", `{"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:network-interface/*"}`, iam.Request{Action: "ec2:X", Resource: eni}, iam.Allow},
		{"another resource", `{"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:subnet/*"}`, iam.Request{Action: "ec2:X", Resource: eni}, iam.NoMatch},
		{"resources are case-sensitive", `{"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:Network-Interface/*"}`, iam.Request{Action: "ec2:X", Resource: eni}, iam.NoMatch},
		{"an explicit deny wins", `{"Effect": "Allow", "Action": "*", "Resource": "*"}, {"Effect": "Deny", "Action": "ec2:X", "Resource": "*"}`, iam.Request{Action: "ec2:X", Resource: "*"}, iam.Deny},
		{"an explicit deny wins in any order", `{"Effect": "Deny", "Action": "ec2:X", "Resource": "*"}, {"Effect": "Allow", "Action": "*", "Resource": "*"}`, iam.Request{Action: "ec2:X", Resource: "*"}, iam.Deny},
		{"a tag that matches", allow(`"StringEquals": {"aws:ResourceTag/Owner": ["a", "b"]}`), iam.Request{Action: "ec2:X", Keys: keys("aws:resourcetag/Owner", "b")}, iam.Allow},
		{"a tag that does not", allow(`"StringEquals": {"aws:ResourceTag/Owner": "a"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:resourcetag/Owner", "A")}, iam.NoMatch},
		{"no tag at all", allow(`"StringEquals": {"aws:ResourceTag/Owner": "a"}`), iam.Request{Action: "ec2:X"}, iam.NoMatch},
		{"tag keys are case-sensitive", allow(`"StringEquals": {"aws:ResourceTag/owner": "a"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:resourcetag/Owner", "a")}, iam.NoMatch},
		{"condition names are case-insensitive", allow(`"StringEquals": {"AWS:resourceTAG/Owner": "a"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:resourcetag/Owner", "a")}, iam.Allow},
		{"StringLike", allow(`"StringLike": {"ec2:Subnet": "arn:*:subnet/subnet-?"}`), iam.Request{Action: "ec2:X", Keys: keys("ec2:subnet", "arn:aws:ec2:r:a:subnet/subnet-7")}, iam.Allow},
		{"StringNotEquals of an absent key holds", allow(`"StringNotEquals": {"aws:ResourceTag/k": "v"}`), iam.Request{Action: "ec2:X"}, iam.Allow},
		{"StringNotEquals of that value", allow(`"StringNotEquals": {"aws:ResourceTag/k": "v"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:resourcetag/k", "v")}, iam.NoMatch},
		{"Null false requires the key", allow(`"Null": {"aws:RequestTag/k": "false"}`), iam.Request{Action: "ec2:X"}, iam.NoMatch},
		{"Null false has the key", allow(`"Null": {"aws:RequestTag/k": "false"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:requesttag/k", "")}, iam.Allow},
		{"Null true wants the key absent", allow(`"Null": {"aws:RequestTag/k": "true"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:requesttag/k", "")}, iam.NoMatch},
		{"ForAllValues: all", allow(`"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}`), iam.Request{Action: "ec2:X", Keys: keys("aws:tagkeys", "a", "aws:tagkeys", "b")}, iam.Allow},
		{"ForAllValues: one too many", allow(`"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}`), iam.Request{Action: "ec2:X", Keys: keys("aws:tagkeys", "a", "aws:tagkeys", "c")}, iam.NoMatch},
		{"ForAllValues: no values", allow(`"ForAllValues:StringEquals": {"aws:TagKeys": ["a"]}`), iam.Request{Action: "ec2:X"}, iam.Allow},
		{"ForAnyValue: one", allow(`"ForAnyValue:StringLike": {"aws:TagKeys": "k8s/*"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:tagkeys", "z", "aws:tagkeys", "k8s/x")}, iam.Allow},
		{"ForAnyValue: none", allow(`"ForAnyValue:StringLike": {"aws:TagKeys": "k8s/*"}`), iam.Request{Action: "ec2:X"}, iam.NoMatch},
		{"ForAnyValue of another: none", allow(`"ForAnyValue:StringNotEquals": {"aws:TagKeys": "a"}`), iam.Request{Action: "ec2:X"}, iam.NoMatch},
		{"IfExists", allow(`"StringEqualsIfExists": {"ec2:Region": "r"}`), iam.Request{Action: "ec2:X"}, iam.Allow},
		{"all operators must hold: the first does not", allow(`"StringEquals": {"ec2:Region": "r"}, "StringLike": {"aws:RequestTag/k": "v*"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:requesttag/k", "v")}, iam.NoMatch},
		{"all operators must hold: the second does not", allow(`"StringEquals": {"ec2:Region": "r"}, "StringLike": {"aws:RequestTag/k": "v*"}`), iam.Request{Action: "ec2:X", Keys: keys("ec2:region", "r")}, iam.NoMatch},
		{"all operators hold", allow(`"StringEquals": {"ec2:Region": "r"}, "StringLike": {"aws:RequestTag/k": "v*"}`), iam.Request{Action: "ec2:X", Keys: keys("ec2:region", "r", "aws:requesttag/k", "v")}, iam.Allow},
		{"all keys must hold: the first does not", allow(`"StringEquals": {"ec2:Region": "r", "aws:RequestTag/k": "v"}`), iam.Request{Action: "ec2:X", Keys: keys("aws:requesttag/k", "v")}, iam.NoMatch},
		{"all conditions must hold", allow(`"StringEquals": {"ec2:Region": "r", "aws:RequestTag/k": "v"}`), iam.Request{Action: "ec2:X", Keys: keys("ec2:region", "r")}, iam.NoMatch},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := policy(t, test.statements).Decide(test.request); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestUnsupportedDocumentIsRefused(t *testing.T) {
	statement := func(s string) string { return `{"Version": "2012-10-17", "Statement": [{` + s + `}]}` }
	for document, want := range map[string]string{
		``:                          "policy test: EOF",
		`[]`:                        "policy test: found [, want a JSON object",
		`{"Version": "2012-10-17"}`: "policy test: element Statement: missing or empty",
		`{"Version": "2008-10-17", "Statement": [{"Effect": "Allow", "Action": "a:b", "Resource": "*"}]}`:                              `policy test: element Version: "2008-10-17", want "2012-10-17"`,
		`{"Version": "2012-10-17", "Statement": [], "Extra": 1}`:                                                                       "policy test: element Extra is not supported",
		statement(`"Effect": "Allow", "NotAction": "ec2:*", "Resource": "*"`):                                                          "policy test: statement 1: element NotAction: not supported",
		statement(`"Effect": "Allow", "Action": "ec2:*", "NotResource": "*"`):                                                          "policy test: statement 1: element NotResource: not supported",
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Principal": "*"`):                                           "policy test: statement 1: element Principal: not supported",
		statement(`"Effect": "Maybe", "Action": "ec2:*", "Resource": "*"`):                                                             `policy test: statement 1: element Effect: "Maybe", want "Allow" or "Deny"`,
		statement(`"Effect": "Allow", "Action": "everything", "Resource": "*"`):                                                        `policy test: statement 1: element Action: "everything", want service:action`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "eni-1"`):                                                         `policy test: statement 1: element Resource: "eni-1", want an ARN or "*"`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:e*:*:*:instance/i"`):                                     `policy test: statement 1: element Resource: "arn:aws:e*:*:*:instance/i": the service must be without wildcards`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:${aws:PrincipalAccount}:instance/i"`):              `policy test: statement 1: element Resource: "arn:aws:ec2:*:${aws:PrincipalAccount}:instance/i": a policy variable before the resource`,
		statement(`"Effect": "Allow", "Action": "ec2:${aws:PrincipalTag/action}", "Resource": "*"`):                                    `policy test: statement 1: element Action: "ec2:${aws:PrincipalTag/action}": a policy variable is not replaced here`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:instance/${aws:userid"`):                         `policy test: statement 1: element Resource: "arn:aws:ec2:*:*:instance/${aws:userid": a policy variable does not end`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:instance/${aws:TagKeys}"`):                       `policy test: statement 1: element Resource: "arn:aws:ec2:*:*:instance/${aws:TagKeys}": policy variable aws:TagKeys is not supported`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:instance/${aws:userid, x}"`):                     `policy test: statement 1: element Resource: "arn:aws:ec2:*:*:instance/${aws:userid, x}": default value x of a policy variable, want it in single quotes`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {"Null": {"aws:TagKeys": "${aws:userid}"}}`):    `policy test: statement 1: element Condition: Null: aws:TagKeys: value "${aws:userid}", want "true" or "false"`,
		statement(`"Effect": "Allow", "Effect": "Deny", "Action": "ec2:*", "Resource": "*"`):                                           "policy test: statement 1: element Effect: given twice",
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:instance/${aws:username}"`):                      `policy test: statement 1: element Resource: "arn:aws:ec2:*:*:instance/${aws:username}": policy variable aws:username is not supported`,
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}`): "policy test: statement 1: element Condition: condition operator IpAddress is not supported",
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {"StringEquals": {"aws:SourceVpc": "vpc-1"}}`):  "policy test: statement 1: element Condition: StringEquals: condition key aws:SourceVpc is not supported",
		statement(`"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {"Null": {"aws:TagKeys": "maybe"}}`):            `policy test: statement 1: element Condition: Null: aws:TagKeys: value "maybe", want "true" or "false"`,
	} {
		if _, err := iam.ParsePolicy("test", []byte(document)); err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", document, err, want)
		}
	}
}

// The policies of deploy/ must load, because the lab enforces them.
func TestTheShippedPoliciesLoad(t *testing.T) {
	paths, err := filepath.Glob("../../deploy/iam/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no policy in deploy/iam (%v)", err)
	}
	for _, path := range paths {
		document, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(filepath.Base(path), "trust") {
			continue
		}
		if _, err := iam.ParsePolicy(filepath.Base(path), document); err != nil {
			t.Error(err)
		}
	}
}

// A request is denied if any policy of the role denies it, and otherwise allowed if
// any allows it.
func TestPoliciesOfARoleAreCombined(t *testing.T) {
	policy := func(effect, action string) []byte {
		return []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "` + effect + `", "Action": "` + action + `", "Resource": "*"}}`)
	}
	allow, deny, other := policy("Allow", "ec2:*"), policy("Deny", "ec2:X"), policy("Allow", "s3:*")
	for name, test := range map[string]struct {
		first, second []byte
		allowed       bool
	}{
		"denied, then allowed":     {deny, allow, false},
		"allowed, then denied":     {allow, deny, false},
		"allowed, then not named":  {allow, other, true},
		"not named, then allowed":  {other, allow, true},
		"named by neither of them": {other, other, false},
	} {
		a := iam.New("111122223333", 1, nil)
		if err := a.AddRole(iam.Role{Name: "r", Policies: map[string][]byte{"1": test.first, "2": test.second}}); err != nil {
			t.Fatal(err)
		}
		c, _, err := a.Issue(iam.Session{Role: "r", Name: "s", Lifetime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := a.Find(c.AccessKeyID)
		if err := p.Authorize([]iam.Request{{Action: "ec2:X", Resource: "*"}}); (err == nil) != test.allowed {
			t.Errorf("%s: %v, want allowed: %t", name, err, test.allowed)
		}
	}
}

func TestCredentialsHaveTheirRolesPoliciesAndExpire(t *testing.T) {
	now := time.Unix(1000000, 0)
	a := iam.New("111122223333", 1, func() time.Time { return now })
	all := []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:X", "Resource": "*"}}`)
	if err := a.AddRole(iam.Role{Name: "r", Policies: map[string][]byte{"p": all}}); err != nil {
		t.Fatal(err)
	}
	c, _, err := a.Issue(iam.Session{Role: "r", Name: "s", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	found, p, ok := a.Find(c.AccessKeyID)
	if !ok || found != c || p.ARN != "arn:aws:sts::111122223333:assumed-role/r/s" || !strings.HasPrefix(c.AccessKeyID, "ASIA") {
		t.Fatalf("%v %+v %+v", ok, found, p)
	}
	ask := []iam.Request{{Action: "ec2:X", Resource: "*"}, {Action: "ec2:Y", Resource: eni}}
	if err := p.Authorize(ask[:1]); err != nil {
		t.Error(err)
	}
	var denied *iam.DeniedError
	err = p.Authorize(ask)
	if !errors.As(err, &denied) || err.Error() != "User: arn:aws:sts::111122223333:assumed-role/r/s is not authorized to perform: ec2:Y on resource: "+eni+" because no identity-based policy allows the ec2:Y action" {
		t.Error(err)
	}
	// A changed role applies to credentials issued before.
	if err := a.AddRole(iam.Role{Name: "r"}); err != nil {
		t.Fatal(err)
	}
	if _, p, _ = a.Find(c.AccessKeyID); p.Authorize(ask[:1]) == nil {
		t.Error("the role lost its policy, and its credentials are still allowed")
	}
	now = now.Add(3 * time.Hour)
	if _, _, err := a.Issue(iam.Session{Role: "r", Name: "s", Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := a.Find(c.AccessKeyID); ok {
		t.Error("credentials that expired hours ago are still stored")
	}
}

// The loader never panics, every loaded document yields a decision, and a document
// without "Allow" never allows.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{
		`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`,
		`{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": ["ec2:*"], "Resource": ["arn:aws:ec2:*"], "Condition": {"ForAllValues:StringLike": {"aws:TagKeys": ["a*"]}}}]}`,
		`{"Version": "2012-10-17", "Statement": [{}]}`, `{"Statement": null}`, `{"a": 1`, `{} {}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		p, err := iam.ParsePolicy("fuzz", document)
		if err != nil {
			return
		}
		request := iam.Request{Action: "ec2:X", Resource: eni, Keys: map[string][]string{"aws:tagkeys": {"a", "b"}}}
		if p.Decide(request) == iam.Allow && !strings.Contains(string(document), "A") && !strings.Contains(string(document), `\u`) {
			t.Fatalf("%s allows", document)
		}
	})
}

func TestLikeMatchesAsIAMDoes(t *testing.T) {
	for _, test := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true},
		{"*", "", true},
		{"*", "abc", true},
		{"a*c", "abbbc", true},
		{"a*c", "abbb", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"*b*b", "abab", true},
		{"a**", "a", true},
		{"", "a", false},
	} {
		if got := iam.Like(test.pattern, test.s); got != test.want {
			t.Errorf("Like(%q, %q) = %v", test.pattern, test.s, got)
		}
	}
}
