package iam_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/sim/iam"
)

const allowX = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:X", "Resource": "*"}}`

func TestARoleIsFoundAndKeepsItsIDWhenItIsReplaced(t *testing.T) {
	a := iam.New("111122223333", 1, nil)
	if r, ok := a.Role("r"); ok {
		t.Errorf("a role that was not added: %+v", r)
	}
	if _, _, err := a.Issue(iam.Session{Role: "r", Name: "s"}); err == nil || !strings.Contains(err.Error(), `role "r" does not exist`) {
		t.Errorf("credentials of a role that was not added: %v", err)
	}
	id := func(tag string) string {
		if err := a.AddRole(iam.Role{Name: "r", Tags: map[string]string{"k": tag}}); err != nil {
			t.Fatal(err)
		}
		if r, ok := a.Role("r"); !ok || r.Name != "r" || r.Tags["k"] != tag {
			t.Errorf("%+v, %v", r, ok)
		}
		_, p, err := a.Issue(iam.Session{Role: "r", Name: "s"})
		if err != nil {
			t.Fatal(err)
		}
		role, session, _ := strings.Cut(p.ID, ":")
		if len(role) != 20 || !strings.HasPrefix(role, "AROA") || session != "s" {
			t.Errorf("unique id %s", p.ID)
		}
		return p.ID
	}
	if first, second := id("1"), id("2"); first != second {
		t.Errorf("the role had the unique id %s, and has %s", first, second)
	}
}

func TestARoleOrUserThatIsNotValidIsRefused(t *testing.T) {
	a := iam.New("111122223333", 1, nil)
	if err := a.AddRole(iam.Role{}); err == nil || err.Error() != "role: no name" {
		t.Errorf("a role without a name: %v", err)
	}
	policies := map[string][]byte{}
	for i := range 20 {
		policies[fmt.Sprintf("p%02d", i)] = []byte("{}")
	}
	if err := a.AddRole(iam.Role{Name: "r", Policies: policies}); err == nil || !strings.HasPrefix(err.Error(), "role r: policy p00: ") {
		t.Errorf("a role with invalid policies: %v, want the first by name", err)
	}
	if c, err := a.AddUser("u", []byte("{}")); err == nil || !strings.HasPrefix(err.Error(), "user u: ") {
		t.Errorf("a user with an invalid policy: %+v, %v", c, err)
	}
}

func TestCredentialsNameTheirAccountAndWhenTheyWereIssued(t *testing.T) {
	now := time.Unix(1_000_000, 999)
	a := iam.NewIn("aws-cn", "111122223333", 1, func() time.Time { return now })
	if err := a.AddRole(iam.Role{Name: "r"}); err != nil {
		t.Fatal(err)
	}
	c, p, err := a.Issue(iam.Session{Role: "r", Name: "s", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Issued.Equal(time.Unix(1_000_000, 0)) || !c.Expires.Equal(time.Unix(1_003_600, 0)) || c.Token == "" || p.Account != "111122223333" {
		t.Errorf("%+v of account %s", c, p.Account)
	}
	user, err := a.AddUser("u", []byte(allowX))
	if err != nil {
		t.Fatal(err)
	}
	found, p, ok := a.Find(user.AccessKeyID)
	if !ok || found != user || user.Token != "" || p.ARN != "arn:aws-cn:iam::111122223333:user/u" || p.Account != "111122223333" || !strings.HasPrefix(p.ID, "AIDA") {
		t.Errorf("%v %+v %+v", ok, found, p)
	}
	service, err := a.AddService("eks.amazonaws.com", "AWSServiceRoleForAmazonEKS", "AmazonEKS")
	if err != nil {
		t.Fatal(err)
	}
	found, p, ok = a.Find(service.AccessKeyID)
	if !ok || found != service || service.Token != "" || p.Service != "eks.amazonaws.com" || p.Account != "111122223333" ||
		p.ARN != "arn:aws-cn:sts::111122223333:assumed-role/AWSServiceRoleForAmazonEKS/AmazonEKS" || !strings.HasPrefix(p.ID, "AROA") || !strings.HasSuffix(p.ID, ":AmazonEKS") {
		t.Errorf("%v %+v %+v", ok, found, p)
	}
	if _, _, ok := a.Find("AKIANONE"); ok {
		t.Error("an unknown key is found")
	}
}

func TestOnlyCredentialsOfAnInstanceHaveItsConditionKeys(t *testing.T) {
	a := iam.New("1", 1, nil)
	if err := a.AddRole(iam.Role{Name: "r"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		instance iam.Instance
		more     map[string][]string
	}{
		"a pod": {},
		"an instance": {iam.Instance{ARN: "arn:aws:ec2:r:1:instance/i-1", VPC: "vpc-1"}, map[string][]string{
			"ec2:sourceinstancearn": {"arn:aws:ec2:r:1:instance/i-1"}, "aws:ec2instancesourcevpc": {"vpc-1"},
		}},
	} {
		_, p, err := a.Issue(iam.Session{Role: "r", Name: "s", Instance: c.instance})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]string{"aws:principalarn": {"arn:aws:iam::1:role/r"}, "aws:principalaccount": {"1"}, "aws:userid": {p.ID}}
		for key, v := range c.more {
			want[key] = v
		}
		if diff := cmp.Diff(want, p.Keys()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestARefusalNamesThePrincipalTheActionAndAnExplicitDeny(t *testing.T) {
	a := iam.New("1", 1, nil)
	deny := `{"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Action": "ec2:Y", "Resource": "*"}}`
	if err := a.AddRole(iam.Role{Name: "r", Policies: map[string][]byte{"p": []byte(allowX), "q": []byte(deny)}}); err != nil {
		t.Fatal(err)
	}
	c, _, err := a.Issue(iam.Session{Role: "r", Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	_, p, _ := a.Find(c.AccessKeyID)
	for action, want := range map[string]iam.DeniedError{
		"ec2:Y": {Explicit: true}, "ec2:Z": {Explicit: false},
	} {
		request := iam.Request{Action: action, Resource: "*"}
		want.Principal, want.PrincipalID, want.Request = "arn:aws:sts::1:assumed-role/r/s", p.ID, request
		err := p.Authorize([]iam.Request{{Action: "ec2:X", Resource: "*"}, request})
		var denied *iam.DeniedError
		if !errors.As(err, &denied) || cmp.Diff(want, *denied) != "" {
			t.Errorf("%s: %#v, want %#v", action, denied, want)
		}
		text := "because no identity-based policy allows the " + action + " action"
		if want.Explicit {
			text = "with an explicit deny in an identity-based policy"
		}
		if text = "User: " + want.Principal + " is not authorized to perform: " + action + " " + text; err == nil || err.Error() != text {
			t.Errorf("%v, want %s", err, text)
		}
	}
}

func TestAPolicyIsLoadedWithItsName(t *testing.T) {
	if p, err := iam.ParsePolicy("node", []byte(allowX)); err != nil || p.Name != "node" {
		t.Errorf("%+v, %v", p, err)
	}
}

// The value "" is what an expanded pattern without a value must not be taken for.
func TestAVariableWithoutAValueMatchesNoValueOfAnyOperator(t *testing.T) {
	for operator, values := range map[string][]string{
		"StringEquals": {""}, "StringEqualsIgnoreCase": {""}, "StringLike": {""}, "ArnLike": {"", "arn:aws:iam::1:role/r"},
	} {
		p := policy(t, `{"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"`+operator+`": {"aws:ResourceTag/k": "${aws:ResourceTag/none}"}}}`)
		for _, value := range values {
			if got := p.Decide(iam.Request{Action: "ec2:X", Resource: "*", Keys: map[string][]string{"aws:resourcetag/k": {value}}}); got != iam.NoMatch {
				t.Errorf("%s with %q: %s", operator, value, got)
			}
		}
	}
}

// The ARNs of IAM have no region.
func TestAnARNOperatorComparesEmptyParts(t *testing.T) {
	p := policy(t, `{"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::1:role/*"}}}`)
	for arn, want := range map[string]iam.Verdict{
		"arn:aws:iam::1:role/r": iam.Allow, "arn:aws:iam:r:1:role/r": iam.NoMatch, "arn:aws:iam::2:role/r": iam.NoMatch,
	} {
		if got := p.Decide(iam.Request{Action: "ec2:X", Resource: "*", Keys: map[string][]string{"aws:principalarn": {arn}}}); got != want {
			t.Errorf("%s: %s, want %s", arn, got, want)
		}
	}
}

func TestTheDefaultValueOfAVariableIsInSingleQuotes(t *testing.T) {
	for value, valid := range map[string]bool{`'x'`: true, `''`: true, `'`: false, ``: false, `'x`: false, `x'`: false, `x`: false} {
		_, err := iam.ParsePolicy("p", []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*",
			"Condition": {"StringLike": {"aws:userid": "${aws:ResourceTag/k, `+value+`}"}}}}`))
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), "want it in single quotes") {
			t.Errorf("default value %s: %v, want it accepted: %v", value, err, valid)
		}
	}
}

func TestTheListsOfAnEmptyMessageAreEmpty(t *testing.T) {
	a := iam.New("1", 1, nil)
	text, err := a.EncodeMessage(&iam.DeniedError{Principal: "arn", PrincipalID: "id", Request: iam.Request{Action: "ec2:X", Resource: "*"}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"allowed":false,"explicitDeny":false,"matchedStatements":{"items":[]},"failures":{"items":[]},` +
		`"context":{"principal":{"id":"id","arn":"arn"},"action":"ec2:X","resource":"*","conditions":{"items":[]}}}`
	if got, err := a.DecodeMessage(text); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
}
