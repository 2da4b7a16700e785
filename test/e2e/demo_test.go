//go:build lab

package e2e

import (
	"regexp"
	"testing"
	"time"
)

// demoPolicy is what it prints of a network policy: by the trace, by the kernel, by a connection, and by
// the log of denied packets.
var demoPolicy = regexp.MustCompile(`(?s)` +
	`\n✗ trunkline-demo/stranger → trunkline-demo/web-\S+ 8080/TCP: denied\n` +
	`.*✗ ingress  kernel of the node of trunkline-demo/web-\S+: denied: isolated by NetworkPolicy trunkline-demo/web-from-friend, and no rule allows it\n` +
	`  a request from stranger to \S+:8080: no answer in 2 s` +
	`.*\n✓ trunkline-demo/friend → trunkline-demo/web-\S+ 8080/TCP: allowed\n` +
	`.*✓ ingress  kernel of the node of trunkline-demo/web-\S+: allowed by NetworkPolicy trunkline-demo/web-from-friend, rule 1\n` +
	`  a request from friend to \S+:8080: answered` +
	`.*✗ trunkline-demo/stranger → trunkline-demo/web-\S+:8080 TCP: \d+ packets?, the last \S+ ago\n` +
	`    ingress of trunkline-demo/web-\S+: denied: isolated by NetworkPolicy trunkline-demo/web-from-friend, and no rule allows it\n`)

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

// demoShowsPoliciesAndGroups runs the demo twice, as a user does who kept the lab up.
func demoShowsPoliciesAndGroups(t *testing.T, l lab) {
	defer func() {
		l.remove(t, "namespace/trunkline-demo")
		l.branchesAreDeleted(t)
	}()
	for range 2 {
		out := l.run(t, 5*time.Minute, "demo", "--name", l.name, "--skip-test")
		if !demoPolicy.MatchString(out) {
			t.Errorf("the demo does not show that a policy denies stranger and allows friend, and why:\n%s", out)
		}
		if !demoAnswers.MatchString(out) {
			t.Errorf("the demo does not show that the VPC admits shop, denies blog, and admits blog after the edit:\n%s", out)
		}
	}
}
