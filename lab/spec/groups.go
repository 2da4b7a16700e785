package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/sim/cloud"
)

// EC2's default quotas. Source: Amazon VPC quotas.
const (
	defaultRulesPerGroup      = 60 // of one direction and address family
	defaultGroupsPerInterface = 5
)

// description is EC2's format of descriptions of security groups and rules. Source: EC2
// API reference, CreateSecurityGroup.
var description = regexp.MustCompile(`^[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}$`)

// groups resolves the security groups, and checks references to them against their names
// and the quotas.
type groups struct {
	*problems
	resolved []cloud.GroupSpec

	byName       map[string]int // indexes of the groups
	maxRules     int            // of a group, in one direction and address family
	maxInterface int            // groups of an interface
}

func resolveGroups(p *problems, list []SecurityGroup, q Quotas) *groups {
	setDefault(&q.GroupsPerInterface, defaultGroupsPerInterface)
	setDefault(&q.RulesPerGroup, defaultRulesPerGroup)
	g := &groups{problems: p, maxRules: q.RulesPerGroup, maxInterface: q.GroupsPerInterface}
	g.byName = names(p, "securityGroups", list, func(g SecurityGroup) string { return g.Name })
	for i, group := range list {
		g.resolved = append(g.resolved, g.group(fmt.Sprintf("securityGroups[%d].", i), group))
	}
	return g
}

func (g *groups) group(field string, group SecurityGroup) cloud.GroupSpec {
	g.label(field+"name", group.Name, true)
	if group.Name == "default" {
		g.add(field+"name", group.Name, "reserved by EC2 for the default group of a VPC")
	}
	describe(g.problems, field+"description", group.Description)
	out := cloud.GroupSpec{Name: group.Name, Description: group.Description, Ingress: g.rules(field+"ingress", group.Ingress)}
	if group.Egress != nil {
		out.Egress = append([]cloud.RuleSpec{}, g.rules(field+"egress", *group.Egress)...)
	}
	return out
}

func (g *groups) rules(field string, in []Rule) []cloud.RuleSpec {
	if n := ruleCount(in); n > g.maxRules {
		g.add(field, "", "%d rules of one address family, counting each CIDR and group; the quota is %d (quotas.rulesPerGroup)", n, g.maxRules)
	}
	var out []cloud.RuleSpec
	for i, rule := range in {
		out = append(out, g.rule(fmt.Sprintf("%s[%d]", field, i), rule))
	}
	return out
}

func (g *groups) rule(field string, rule Rule) cloud.RuleSpec {
	out := cloud.RuleSpec{Protocol: protocol(g.problems, field+".protocol", rule.Protocol), Groups: rule.Groups, Note: rule.Note}
	out.From, out.To = ports(g.problems, field+".ports", rule)
	describe(g.problems, field+".note", rule.Note)
	for i, text := range rule.CIDRs {
		if cidr, ok := g.prefix(fmt.Sprintf("%s.cidrs[%d]", field, i), text); ok {
			out.CIDRs = append(out.CIDRs, cidr)
		}
	}
	for i, name := range rule.Groups {
		known(g.problems, fmt.Sprintf("%s.groups[%d]", field, i), name, "securityGroups", g.byName)
	}
	if len(rule.CIDRs)+len(rule.Groups) == 0 {
		g.add(field, "", "has no peers: set cidrs or groups")
	}
	return out
}

// ofInterface checks the groups of an interface.
func (g *groups) ofInterface(field string, list []string) {
	if len(list) == 0 {
		g.add(field, "", "must not be empty: an interface has at least one security group")
	}
	if len(list) > g.maxInterface {
		g.add(field, strings.Join(list, ", "), "%d groups; the quota per interface is %d (quotas.groupsPerInterface)", len(list), g.maxInterface)
	}
	for i, name := range list {
		if slices.Contains(list[:i], name) {
			g.add(fmt.Sprintf("%s[%d]", field, i), name, "duplicate")
		}
		known(g.problems, fmt.Sprintf("%s[%d]", field, i), name, "securityGroups", g.byName)
	}
}

// ruleCount returns how many rules EC2 counts for a list, in the address family with
// more: one per CIDR of the family, and one per group.
func ruleCount(rules []Rule) int {
	v4, v6 := 0, 0
	for _, r := range rules {
		for _, text := range r.CIDRs {
			if strings.Contains(text, ":") {
				v6++
			} else {
				v4++
			}
		}
		v4, v6 = v4+len(r.Groups), v6+len(r.Groups)
	}
	return max(v4, v6)
}

func describe(p *problems, field, text string) {
	if !description.MatchString(text) {
		p.add(field, text, "must have at most 255 letters, digits, spaces and ._-:/()#,@[]+=&;{}!$*, as EC2 requires")
	}
}

// protocol returns the protocol of a rule in EC2's form.
func protocol(p *problems, field, text string) string {
	switch text {
	case "tcp", "udp", "icmp", "icmpv6":
		return text
	case "all", "-1":
		return "-1"
	}
	if n, err := strconv.Atoi(text); err != nil || n < 0 || n > 255 {
		p.add(field, text, "must be tcp, udp, icmp, icmpv6, all or a protocol number from 0 to 255")
	}
	return text
}

// ports returns the port range of a rule in EC2's form.
func ports(p *problems, field string, rule Rule) (from, to int) {
	given := rule.Ports != intstr.IntOrString{}
	switch {
	case given && rule.Protocol != "tcp" && rule.Protocol != "udp":
		p.add(field, rule.Ports.String(), "only tcp and udp have ports")
		return -1, -1
	case !given && (rule.Protocol == "tcp" || rule.Protocol == "udp"):
		return 0, 65535
	case !given:
		return -1, -1
	}
	first, last, isRange := strings.Cut(rule.Ports.String(), "-")
	if !isRange {
		last = first
	}
	from, errFrom := strconv.Atoi(first)
	to, errTo := strconv.Atoi(last)
	if errFrom != nil || errTo != nil || from < 0 || to > 65535 || from > to {
		p.add(field, rule.Ports.String(), `must be a port such as 443 or a range such as "30000-32767"`)
	}
	return from, to
}
