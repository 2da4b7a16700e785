//go:build lab

package e2e

import (
	"context"
	"encoding/xml"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// report is the JUnit file of a connectivity test.
type report struct {
	Suites []struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func (r report) counts() (passed, failed int, skipped []string) {
	for _, s := range r.Suites {
		for _, c := range s.Cases {
			switch {
			case c.Failure != nil, c.Error != nil:
				failed++
			case c.Skipped != nil:
				skipped = append(skipped, c.Name+": "+c.Skipped.Message)
			default:
				passed++
			}
		}
	}
	return passed, failed, skipped
}

// readReport reads the JUnit file of a connectivity test with the result r.
func readReport(t testing.TB, junit string, r result) (rep report) {
	t.Helper()
	text, err := os.ReadFile(junit)
	if err != nil {
		t.Fatalf("connectivity test: %v, %v\n%s", r.err, err, r)
	}
	if err := xml.Unmarshal(text, &rep); err != nil {
		t.Fatalf("%s: %v", junit, err)
	}
	return rep
}

// connectivityPasses runs all cases, those with security groups of pods too.
func connectivityPasses(t *testing.T, l lab) {
	allPass(t, l, nil, "--client-group", groupClients, "--server-group", groupDatabase)
}

// connectivityPassesWithoutGroups runs all cases but those with security groups of pods.
func connectivityPassesWithoutGroups(t *testing.T, l lab) {
	allPass(t, l, func(name string) bool { return strings.HasPrefix(name, "security-group/") })
}

// allPass runs all cases; those are skipped of which mayNotRun, if any, is true.
func allPass(t *testing.T, l lab, mayNotRun func(name string) bool, flags ...string) {
	t.Helper()
	rep, r := product{l}.connectivity(t, flags...)
	t.Log(r.stdout)
	passed, failed, skipped := rep.counts()
	if r.err != nil || failed > 0 {
		t.Errorf("%d failed, %v\n%s", failed, r.err, r.stderr)
	}
	if mayNotRun != nil {
		skipped = slices.DeleteFunc(skipped, mayNotRun)
	}
	if passed < 20 || len(skipped) > 0 {
		t.Errorf("%d cases passed, want at least 20 and no others skipped: %s", passed, strings.Join(skipped, "; "))
	}
}

// revokedRuleFailsConnectivity revokes the rule that allows traffic between the
// nodes' interfaces: the deliberate break of connectivityPasses.
func revokedRuleFailsConnectivity(t *testing.T, l lab) {
	a, p := l.account(t), product{l}
	group, rule := a.nodesRule(t)
	restore := func() {
		_, err := a.api.AuthorizeSecurityGroupIngress(context.Background(), &ec2.AuthorizeSecurityGroupIngressInput{GroupId: group, IpPermissions: []types.IpPermission{rule}})
		if err != nil {
			t.Fatalf("restore the rule of %s: %v", *group, err)
		}
	}
	if _, err := a.api.RevokeSecurityGroupIngress(t.Context(), &ec2.RevokeSecurityGroupIngressInput{GroupId: group, IpPermissions: []types.IpPermission{rule}}); err != nil {
		t.Fatalf("revoke the rule of %s: %v", *group, err)
	}
	rep, r := p.connectivity(t, "--test", "^pod-to-pod/other-node/1B$")
	restore()
	if _, failed, _ := rep.counts(); r.err == nil || failed == 0 {
		t.Errorf("no case failed while the nodes' group allowed no ingress\n%s", r.stdout)
	}
	if rep, r := p.connectivity(t, "--test", "^pod-to-pod/other-node/1B$"); r.err != nil {
		_, failed, _ := rep.counts()
		t.Errorf("%d cases failed after the rule was restored\n%s", failed, r)
	}
}
