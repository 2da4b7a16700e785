package spec

import (
	"os"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/iam"
)

// In the example with two roles, the node with its own role may only describe, and the other
// one may also create interfaces. sim/world has the same with metadata and EC2.
func TestTheRolesOfTheExampleAreJudgedApart(t *testing.T) {
	s, err := Load("../../examples/two-roles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../deploy/iam/node-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	account := iam.New(r.Cloud.Account, r.Cloud.Seed, nil)
	roles := append(r.Roles, iam.Role{Name: DefaultRole, Instances: true, Policies: map[string][]byte{"node-policy": document}})
	for _, role := range roles {
		if err := account.AddRole(role); err != nil {
			t.Fatal(err)
		}
	}
	const prefix, id = "arn:aws:ec2:us-west-2:111122223333:", "i-0123456789abcdef0"
	for _, n := range r.Cloud.Instances {
		key, _, err := account.Issue(iam.Session{Role: n.Role, Name: id, Lifetime: time.Hour, Instance: iam.Instance{ARN: prefix + "instance/" + id, VPC: "vpc-1"}})
		if err != nil {
			t.Fatal(err)
		}
		_, principal, _ := account.Find(key.AccessKeyID)
		for action, resource := range map[string]string{
			"ec2:DescribeNetworkInterfaces": "*",
			"ec2:CreateNetworkInterface":    prefix + "subnet/subnet-0123456789abcdef0",
		} {
			keys := principal.Keys()
			keys["ec2:vpc"] = []string{prefix + "vpc/vpc-1"}
			err := principal.Authorize([]iam.Request{{Action: action, Resource: resource, Keys: keys}})
			if want := n.Role == DefaultRole || resource == "*"; (err == nil) != want {
				t.Errorf("%s with the role %s: %s: %v, want allowed %v", n.Name, n.Role, action, err, want)
			}
		}
	}
}
