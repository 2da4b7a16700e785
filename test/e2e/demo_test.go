//go:build lab

package e2e

import (
	"regexp"
	"testing"
	"time"
)

// demoAnswers is what the demo prints of security groups: the connections' outcomes in their order,
// with the explanations.
var demoAnswers = regexp.MustCompile(`(?s)` +
	`\n  group database \(` + groupDatabase + `\) accepts tcp 8080 from group clients \(` + groupClients + `\)` +
	`.*a request from shop to \S+:8080: answered` +
	`.*a request from blog to \S+:8080: no answer in 2 s` +
	`.*explain pod trunkline-demo/blog\n.*✓  blog +\S+ +podSelector app=blog matches\n.*✓ the pod has exactly the groups sg-` +
	`.*patch securitygrouppolicy blog .*` + groupClients +
	`.*a request from blog to \S+:8080: answered` +
	`.*✓ the pod has exactly the groups ` + groupClients + `\n`)

// demoShowsSecurityGroups runs the demo twice, as a user does who kept the lab up.
func demoShowsSecurityGroups(t *testing.T, l lab) {
	defer func() {
		l.remove(t, "namespace/trunkline-demo")
		l.branchesAreDeleted(t)
	}()
	for range 2 {
		if out := l.run(t, 5*time.Minute, "demo", "--name", l.name, "--skip-test"); !demoAnswers.MatchString(out) {
			t.Errorf("the demo does not show that the VPC admits shop, denies blog, and admits blog after the edit:\n%s", out)
		}
	}
}
