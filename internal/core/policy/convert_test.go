package policy

import (
	"fmt"
	"strings"
	"testing"
)

// inWords lists what a policy isolates and its rules.
func inWords(p Policy) string {
	text := fmt.Sprintf("%s isolates %v", p.Subject, p.Isolates)
	for d, rules := range p.Rules {
		for _, r := range rules {
			text += "; " + r.Describe(Direction(d))
		}
	}
	return text
}

func TestANetworkPolicyIsConvertedRuleByRule(t *testing.T) {
	for name, c := range map[string]struct{ spec, want, problems string }{
		"ingress without types": {"podSelector: {}\ningress: [{}]", "pods of namespace shop isolates [true false]; accept from any peer: any port", ""},
		"both without types":    {"podSelector: {}\negress: [{}]", "pods of namespace shop isolates [true true]; accept to any peer: any port", ""},
		"egress only":           {"podSelector: {}\npolicyTypes: [Egress]\ningress: [{}]\negress: [{}]", "pods of namespace shop isolates [false true]; accept to any peer: any port", ""},
		"ingress only":          {"podSelector: {}\npolicyTypes: [Ingress]\ningress: [{}]\negress: [{}]", "pods of namespace shop isolates [true false]; accept from any peer: any port", ""},
		"both":                  {"podSelector: {}\npolicyTypes: [Egress, Ingress]\ningress: [{}]\negress: [{}]", "pods of namespace shop isolates [true true]; accept from any peer: any port; accept to any peer: any port", ""},
		"an unknown type": {
			"podSelector: {}\npolicyTypes: [Egress, Both]\ningress: [{}]\negress: [{}]", "pods of namespace shop isolates [true true]; accept to any peer: any port",
			`spec.policyTypes[1]: "Both" is not supported; the policy isolates in both directions, and its rules for directions without a type are left out`,
		},
		"peers": {
			"podSelector: {}\negress: [{to: [{podSelector: {matchLabels: {a: b}}}, {namespaceSelector: {}}, {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.0.0/16]}}]}]",
			"pods of namespace shop isolates [true true]; accept to pods a=b of namespace shop; pods of all namespaces; pods c=d of namespaces a=b; 10.0.0.0/8 without 10.1.0.0/16, 10.2.0.0/16: any port", "",
		},
		"ports": {
			"podSelector: {}\negress: [{ports: [{port: 80}, {port: 80, protocol: TCP}, {port: 53, protocol: UDP}, {protocol: SCTP}, {port: dns, protocol: UDP}, {port: 1, endPort: 65535}, {port: 65535}, {port: 7, endPort: 7}]}]",
			"pods of namespace shop isolates [true true]; accept to any peer: TCP 80; TCP 80; UDP 53; SCTP; UDP dns; TCP 1-65535; TCP 65535; TCP 7", "",
		},
		"ports that are none": {
			"podSelector: {}\ningress: [{ports: [{port: 80, protocol: ICMP}, {endPort: 1}, {port: x, endPort: 1}, {port: ''}, {port: 0}, {port: 65536}, {port: 1, endPort: 65536}, {port: 9, endPort: 8}]}]",
			"pods of namespace shop isolates [true false]; accept from any peer: nothing",
			`spec.ingress[0].ports[0].protocol: "ICMP" is not supported; it matches nothing
spec.ingress[0].ports[1].endPort: it is set without port; it matches nothing
spec.ingress[0].ports[2].endPort: it is set beside the named port "x"; it matches nothing
spec.ingress[0].ports[3].port: the name is empty; it matches nothing
spec.ingress[0].ports[4]: ports 0 to 0 are no range; it matches nothing
spec.ingress[0].ports[5]: ports 65536 to 65536 are no range; it matches nothing
spec.ingress[0].ports[6]: ports 1 to 65536 are no range; it matches nothing
spec.ingress[0].ports[7]: ports 9 to 8 are no range; it matches nothing`,
		},
		"peers that are none": {
			"podSelector: {}\negress: [{to: [{}, {podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}, {namespaceSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}, {podSelector: {matchLabels: {'-': x}}, namespaceSelector: {}}, {namespaceSelector: {matchLabels: {'-': x}}}]}]",
			"pods of namespace shop isolates [true true]; accept to nothing: any port",
			`spec.egress[0].to[0]: it has neither ipBlock nor a selector; it matches nothing
spec.egress[0].to[1]: it has ipBlock beside a selector; it matches nothing
spec.egress[0].to[2]: it has ipBlock beside a selector; it matches nothing
spec.egress[0].to[3].podSelector: `,
		},
		"blocks": {
			"podSelector: {}\ningress: [{from: [{ipBlock: {cidr: 10.1.2.3/8}}, {ipBlock: {cidr: '::ffff:0:0/96'}}, {ipBlock: {cidr: '::ffff:10.0.0.0/104'}}, {ipBlock: {cidr: 10.0.0.0/8, except: [192.0.2.0/24]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/9]}}]}]",
			"pods of namespace shop isolates [true false]; accept from 10.0.0.0/8; 0.0.0.0/0; 10.0.0.0/8; 10.0.0.0/8; 10.0.0.0/8 without 10.0.0.0/9: any port",
			`spec.ingress[0].from[0].ipBlock.cidr: "10.1.2.3/8" is read as 10.0.0.0/8
spec.ingress[0].from[1].ipBlock.cidr: "::ffff:0:0/96" is read as 0.0.0.0/0
spec.ingress[0].from[2].ipBlock.cidr: "::ffff:10.0.0.0/104" is read as 10.0.0.0/8
spec.ingress[0].from[3].ipBlock.except[0]: 192.0.2.0/24 is outside of 10.0.0.0/8, and has no effect`,
		},
		"blocks that are none": {
			"podSelector: {}\ningress: [{from: [{ipBlock: {cidr: none}}, {ipBlock: {cidr: '::ffff:0:0/95'}}, {ipBlock: {cidr: 10.0.0.0/8, except: [none]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [0.0.0.0/0]}}]}]",
			"pods of namespace shop isolates [true false]; accept from nothing: any port",
			`spec.ingress[0].from[0].ipBlock.cidr: "none" is no address range; it matches nothing
spec.ingress[0].from[1].ipBlock.cidr: "::ffff:0:0/95" mixes IPv4 and IPv6; it matches nothing
spec.ingress[0].from[2].ipBlock.except[0]: "none" is no address range; the block matches nothing
spec.ingress[0].from[3].ipBlock.except[0]: 10.0.0.0/8 covers 10.0.0.0/8; the block matches nothing
spec.ingress[0].from[4].ipBlock.except[0]: 0.0.0.0/0 covers 10.0.0.0/8; the block matches nothing`,
		},
		"a subject that cannot be read": {
			"podSelector: {matchLabels: {'-': x}}\ningress: [{}]", "pods of namespace shop isolates [true false]", "spec.podSelector: ",
		},
	} {
		p, problems := fromSpec(t, c.spec)
		if got := inWords(p); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
		if got := strings.Join(problems, "\n"); !strings.HasPrefix(got, c.problems) || c.problems == "" && got != "" {
			t.Errorf("%s: problems\n%s\nwant\n%s", name, got, c.problems)
		}
		if p.Ref != (Ref{"NetworkPolicy", "shop", "odd"}) || p.Tier != Namespaced {
			t.Errorf("%s: %s, %s", name, p.Ref, p.Tier)
		}
	}
}
