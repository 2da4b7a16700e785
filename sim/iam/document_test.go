package iam_test

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/iam"
)

// Each document differs from a valid one in one place.
func TestAnInvalidDocumentIsRefusedWithItsReason(t *testing.T) {
	const valid = `{"Version": "2012-10-17", "Id": "x", "Statement": {"Sid": "y", "Effect": "Allow", "Action": "ec2:X", "Resource": "*",
		"Condition": {"StringEquals": {"ec2:Vpc": "v"}}}}`
	if _, err := iam.ParsePolicy("p", []byte(valid)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{valid, ``, "EOF"},
		{valid, `[]`, "want a JSON object"},
		{valid, `{1: 2}`, "policy p: "},
		{valid, `{"Version"`, "EOF"},
		{valid, `{"Version": }`, "policy p: "},
		{valid, valid + `{}`, "found more after the end"},
		{`"2012-10-17"`, `7`, "element Version: "},
		{`"Statement": {`, `"Statement": [7, {`, "policy p: "},
		{`"Allow"`, `["Allow"]`, "statement 1: element Effect: "},
		{`"Allow"`, `"allow"`, `element Effect: "allow"`},
		{`"Action": "ec2:X"`, `"Action": []`, "element Action: missing or empty"},
		{`"Action": "ec2:X"`, `"Action": 7`, "element Action: want a string or a list of strings"},
		{`"Action": "ec2:X"`, `"Action": ["ec2:X", 7]`, "element Action: want a string or a list of strings"},
		{`"Resource": "*"`, `"Resource": []`, "element Resource: missing or empty"},
		{`"Resource": "*"`, `"Resource": {}`, "element Resource: want a string or a list of strings"},
		{`"Resource": "*"`, `"Resource": "arn:aws:ec2"`, `"arn:aws:ec2", want an ARN`},
		{`"Resource": "*"`, `"Resource": "urn:aws:ec2:r:a:subnet/x"`, "want an ARN"},
		{`"Resource": "*"`, `"Resource": "arn:aws:ec2:r:a:${"`, "element Resource: "},
		{`{"StringEquals": {"ec2:Vpc": "v"}}`, `"v"`, "element Condition: "},
		{`{"ec2:Vpc": "v"}`, `"v"`, "StringEquals: "},
		{`"ec2:Vpc": "v"`, `"ec2:Vpc": []`, "StringEquals: ec2:Vpc: no value"},
		{`"ec2:Vpc": "v"`, `"ec2:Vpc": 7`, "StringEquals: ec2:Vpc: want a string or a list of strings"},
		{`"ec2:Vpc": "v"`, `"ec2:Vpc": "${"`, "StringEquals: ec2:Vpc: "},
		{`"ec2:Vpc": "v"`, `"ec2:Vpc": "${sts:TransitiveTagKeys}"`, "policy variable sts:TransitiveTagKeys is not supported"},
		{`"ec2:Vpc"`, `"aws:ResourceTag/"`, "condition key aws:ResourceTag/ is not supported"},
		{`"ec2:Vpc"`, `"aws:Other"`, "condition key aws:Other is not supported"},
		{`StringEquals`, `StringMatches`, "condition operator StringMatches is not supported"},
		{`StringEquals`, `NullIfExists`, "condition operator NullIfExists is not supported"},
		{`StringEquals`, `ForAllValues:Null`, "condition operator ForAllValues:Null is not supported"},
		{`StringEquals`, `ForAnyValue:Null`, "condition operator ForAnyValue:Null is not supported"},
	} {
		document := strings.Replace(valid, c.old, c.new, 1)
		if document == valid {
			t.Errorf("%s is not in the document", c.old)
		}
		if p, err := iam.ParsePolicy("p", []byte(document)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s instead of %s: %v, %v; want an error that contains %q", c.new, c.old, p, err, c.want)
		}
	}
}

// What stands around the statements is the same in a role's policy and in its trust policy.
func TestTheFrameOfEveryKindOfPolicyIsParsedAlike(t *testing.T) {
	const policy = `{"Effect": "Allow", "Action": "ec2:X", "Resource": "*"}`
	const trust = `{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}`
	load := func(frame string) (errs [2]error) {
		_, errs[0] = iam.ParsePolicy("p", []byte(strings.ReplaceAll(frame, "STATEMENT", policy)))
		role := iam.Role{Name: "r", TrustPolicy: []byte(strings.ReplaceAll(frame, "STATEMENT", trust))}
		errs[1] = iam.New("111122223333", 1, nil).AddRole(role)
		return errs
	}
	for _, frame := range []string{
		`{"Version": "2012-10-17", "Statement": STATEMENT}`,
		`{"Version": "2012-10-17", "Id": "x", "Statement": [STATEMENT, STATEMENT]}`,
	} {
		for _, err := range load(frame) {
			if err != nil {
				t.Errorf("%s: %v", frame, err)
			}
		}
	}
	for frame, want := range map[string]string{
		`7`: "found 7, want a JSON object",
		`{"Version": "2012-10-17", "Statement": STATEMENT, "Other": 1}`:     "element Other is not supported",
		`{"Version": "2012-10-17", "Statement": STATEMENT, "Statement": 1}`: "element Statement: given twice",
		`{"Version": "2008-10-17", "Statement": STATEMENT}`:                 `element Version: "2008-10-17", want "2012-10-17"`,
		`{"Version": 7, "Statement": STATEMENT}`:                            "element Version: json: cannot unmarshal number",
		`{"Statement": STATEMENT}`:                                          `element Version: "", want "2012-10-17"`,
		`{"Version": "2012-10-17"}`:                                         "element Statement: missing or empty",
		`{"Version": "2012-10-17", "Statement": []}`:                        "element Statement: missing or empty",
		`{"Version": "2012-10-17", "Statement": [STATEMENT, 7]}`:            "statement 2: found 7, want a JSON object",
	} {
		for n, err := range load(frame) {
			of := [...]string{"policy p: ", "role r: trust policy: "}[n]
			if err == nil || !strings.HasPrefix(err.Error(), of+want) {
				t.Errorf("%s: %v, want %s", frame, err, of+want)
			}
		}
	}
}

func TestEveryConditionKeyAndOperatorThatPoliciesMayHaveIsJudged(t *testing.T) {
	for _, c := range []struct {
		operator, key, pattern string
		matches, differs       string
	}{
		{"StringEqualsIgnoreCase", "aws:RequestedRegion", "US-West-2", "us-west-2", "us-west-1"},
		{"StringNotLike", "aws:PrincipalArn", "arn:aws:iam::1:role/a*", "arn:aws:iam::1:role/b", "arn:aws:iam::1:role/ab"},
		{"StringEquals", "ec2:AvailabilityZone", "us-west-2a", "us-west-2a", "us-west-2b"},
		{"StringLike", "ec2:InstanceType", "t3.*", "t3.medium", "t4g.medium"},
		{"StringEquals", "ec2:SecurityGroupID", "sg-1", "sg-1", "sg-10"},
		{"StringLike", "aws:userid", "*:i-1", "AROA:i-1", "AROA:i-10"},
		{"StringEquals", "aws:SourceIdentity", "alice", "alice", "bob"},
		{"StringEquals", "sts:ExternalId", "tenant/7", "tenant/7", "tenant/8"},
		{"StringLike", "sts:RoleSessionName", "node-*", "node-1", "pod-1"},
		{"StringEquals", "sts:SourceIdentity", "alice", "alice", "bob"},
		{"ForAllValues:StringEquals", "sts:TransitiveTagKeys", "team", "team", "owner"},
		{"StringEquals", "ec2:Permission", "INSTANCE-ATTACH", "INSTANCE-ATTACH", "EIP-ASSOCIATE"},
		{"StringEquals", "ec2:VpcID", "vpc-1", "vpc-1", "vpc-2"},
	} {
		p := policy(t, `{"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"`+c.operator+`": {"`+c.key+`": "`+c.pattern+`"}}}`)
		for value, want := range map[string]iam.Verdict{c.matches: iam.Allow, c.differs: iam.NoMatch} {
			got := p.Decide(iam.Request{Action: "ec2:X", Resource: "*", Keys: map[string][]string{strings.ToLower(c.key): {value}}})
			if got != want {
				t.Errorf("%s of %s with %s, for %s: %s, want %s", c.operator, c.key, c.pattern, value, got, want)
			}
		}
	}
}
