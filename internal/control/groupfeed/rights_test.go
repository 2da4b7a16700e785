package groupfeed_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// statement is one of a policy of IAM.
type statement map[string]any

// shipped are the statements of the controller's policies in deploy/iam.
func shipped(t *testing.T) (all []statement) {
	t.Helper()
	for _, name := range []string{"controller-policy", "controller-groups-policy"} {
		text, err := os.ReadFile("../../../deploy/iam/" + name + ".json")
		must(t, err)
		var d struct{ Statement []statement }
		must(t, json.Unmarshal(text, &d))
		all = append(all, d.Statement...)
	}
	return all
}

// without removes an action from statements.
func without(action string, all []statement) (left []statement) {
	for _, s := range all {
		actions, several := s["Action"].([]any)
		switch {
		case several:
			s["Action"] = slices.DeleteFunc(actions, func(a any) bool { return a == action })
		case s["Action"] == action:
			continue
		}
		left = append(left, s)
	}
	return left
}

// Prefix lists are not among them: a list that may not be read concerns the rules that name it, and the
// embedded EC2 has none.
func TestGroupsAreReadWithTheRightsOfTheControllersPolicies(t *testing.T) {
	for _, action := range []string{"", "ec2:DescribeSecurityGroups", "ec2:DescribeSecurityGroupRules", "ec2:DescribeNetworkInterfaces"} {
		ofTest := statement{"Effect": "Allow", "Action": "ec2:AuthorizeSecurityGroupIngress", "Resource": "*"}
		text, err := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": append(without(action, shipped(t)), ofTest)})
		must(t, err)
		w := startWith(t, string(text))
		w.policies.name(w.web, w.db)
		w.allow(5432)
		err = w.Pass(t.Context())
		call := strings.TrimPrefix(action, "ec2:")
		if (err != nil) != (action != "") || err != nil && (!strings.Contains(err.Error(), "UnauthorizedOperation") || !strings.Contains(err.Error(), call)) {
			t.Errorf("without %q: %v", action, err)
		}
		if written := len(w.objects()); written > 0 != (action == "") {
			t.Errorf("without %q: %d objects are written", action, written)
		}
	}
}
