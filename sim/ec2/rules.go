package ec2

import (
	"net/netip"
	"regexp"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

type describeRules struct {
	query.DryRun
	Page
	IDs     []string `q:"SecurityGroupRuleId"`
	Filters []Filter `q:"Filter"`
}

type referencedXML struct {
	Group string `q:"groupId"`
	Owner string `q:"userId"`
	VPC   string `q:"vpcId,omitempty"`
}

// ruleXML is SecurityGroupRule. Source: API_SecurityGroupRule.html.
type ruleXML struct {
	ID       string         `q:"securityGroupRuleId"`
	ARN      string         `q:"securityGroupRuleArn"`
	Group    string         `q:"groupId"`
	Owner    string         `q:"groupOwnerId"`
	Egress   bool           `q:"isEgress"`
	Protocol string         `q:"ipProtocol"`
	From     int            `q:"fromPort"`
	To       int            `q:"toPort"`
	CIDR     string         `q:"cidrIpv4,omitempty"`
	CIDR6    string         `q:"cidrIpv6,omitempty"`
	Peer     *referencedXML `q:"referencedGroupInfo"`
	Note     string         `q:"description,omitempty"`
	Tags     []tagXML       `q:"tagSet"`
}

type ruleList struct {
	Rules     []ruleXML `q:"securityGroupRuleSet"`
	NextToken string    `q:"nextToken,omitempty"`
}

func newRuleXML(c *query.Call, group vpc.SecurityGroupID, d cloud.Direction, r cloud.Rule) ruleXML {
	x := ruleXML{
		ID: r.ID, ARN: arn(c, cloud.KindRule, r.ID), Group: string(group), Owner: c.State.Account,
		Egress: d == cloud.Egress, Protocol: cloud.ProtocolName(r.Protocol), From: r.From, To: r.To, Note: r.Note,
		Tags: tagsXML(r.Tags),
	}
	switch {
	case r.Group != "":
		x.Peer = &referencedXML{Group: string(r.Group), Owner: c.State.Account}
	case r.Peer.Addr().Is4():
		x.CIDR = r.Peer.String()
	default:
		x.CIDR6 = r.Peer.String()
	}
	return x
}

func listRules(c *query.Call, r *describeRules) (*ruleList, error) {
	var all []ruleXML
	byID := map[string]ruleXML{}
	for _, g := range c.State.Groups {
		for _, rule := range g.Ingress {
			byID[rule.ID] = newRuleXML(c, g.ID, cloud.Ingress, rule)
		}
		for _, rule := range g.Egress {
			byID[rule.ID] = newRuleXML(c, g.ID, cloud.Egress, rule)
		}
	}
	for _, id := range sortedKeys(byID) {
		all = append(all, byID[id])
	}
	items, next, err := listing[ruleXML]{
		kind: cloud.KindRule, set: "securityGroupRule", all: all, ids: r.IDs, filters: r.Filters, page: r.Page,
		id: func(x ruleXML) string { return x.ID },
		tags: func(x ruleXML) cloud.Tags {
			out := cloud.Tags{}
			for _, t := range x.Tags {
				out[t.Key] = t.Value
			}
			return out
		},
		attrs: ruleAttributes(),
	}.list(c)
	return &ruleList{Rules: items, NextToken: next}, err
}

// ruleAttributes are the filters of DescribeSecurityGroupRules.
func ruleAttributes() attributes[ruleXML] {
	return attributes[ruleXML]{
		"group-id":               func(x ruleXML) []string { return one(x.Group) },
		"security-group-rule-id": func(x ruleXML) []string { return one(x.ID) },
	}
}

type rangeRequest struct {
	CIDR string `q:"CidrIp"`
	Note string `q:"Description"`
}

type range6Request struct {
	CIDR string `q:"CidrIpv6"`
	Note string `q:"Description"`
}

type pairRequest struct {
	Group string `q:"GroupId"`
	Owner string `q:"UserId"`
	Note  string `q:"Description"`
}

type permissionRequest struct {
	Protocol string          `q:"IpProtocol"`
	From     *int            `q:"FromPort"`
	To       *int            `q:"ToPort"`
	Groups   []pairRequest   `q:"Groups"`
	Ranges   []rangeRequest  `q:"IpRanges"`
	Ranges6  []range6Request `q:"Ipv6Ranges"`
}

type authorizeGroup struct {
	query.DryRun
	Group       string              `q:"GroupId,required"`
	Permissions []permissionRequest `q:"IpPermissions"`
}

func (r authorizeGroup) groupID() string { return r.Group }

type authorizedGroup struct {
	Return bool      `q:"return"`
	Rules  []ruleXML `q:"securityGroupRuleSet"`
}

type revokeGroup struct {
	query.DryRun
	Group       string              `q:"GroupId,required"`
	Permissions []permissionRequest `q:"IpPermissions"`
	Rules       []string            `q:"SecurityGroupRuleId"`
}

func (r revokeGroup) groupID() string { return r.Group }

// permitGroup requires permission for the one group that a request names.
func permitGroup[Req interface{ groupID() string }](c *query.Call, r *Req) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.group((*r).groupID())
	return q.result()
}

func (a *api) authorize(c *query.Call, r *authorizeGroup, d cloud.Direction) (*authorizedGroup, error) {
	rules, err := rulesOf(c.State, r.Permissions)
	if err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, cloud.MissingParameter("ipPermissions")
	}
	made, err := a.cloud.Group(vpc.SecurityGroupID(r.Group)).Authorize(d, rules)
	if err != nil {
		return nil, err
	}
	out := &authorizedGroup{Return: true}
	for _, rule := range made {
		out.Rules = append(out.Rules, newRuleXML(c, vpc.SecurityGroupID(r.Group), d, rule))
	}
	return out, nil
}

func (a *api) revoke(r *revokeGroup, d cloud.Direction) (*returned, error) {
	group := vpc.SecurityGroupID(r.Group)
	switch {
	case len(r.Rules) > 0 && len(r.Permissions) > 0:
		return nil, cloud.Errorf("InvalidParameterCombination", "The parameter securityGroupRuleIds may not be used in combination with ipPermissions")
	case len(r.Rules) > 0:
		return done(a.cloud.Group(group).RevokeIDs(d, r.Rules))
	}
	rules, err := rulesOf(a.cloud.State(), r.Permissions)
	if err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, cloud.MissingParameter("ipPermissions")
	}
	return done(a.cloud.Group(group).Revoke(d, rules))
}

// rulesOf expands permissions into rules.
func rulesOf(s *cloud.State, list []permissionRequest) ([]cloud.Rule, error) {
	var out []cloud.Rule
	p := &parser{}
	for _, one := range list {
		r, err := one.shape()
		if err != nil {
			return nil, err
		}
		for _, peer := range one.Ranges {
			r.Peer, r.Note = p.rulePeer("cidrIp", peer.CIDR, true), p.ruleNote(peer.Note)
			out = append(out, r)
		}
		for _, peer := range one.Ranges6 {
			r.Peer, r.Note = p.rulePeer("cidrIpv6", peer.CIDR, false), p.ruleNote(peer.Note)
			out = append(out, r)
		}
		r.Peer = netip.Prefix{}
		for _, peer := range one.Groups {
			if peer.Owner != "" && peer.Owner != s.Account {
				return nil, cloud.Errorf("InvalidGroup.NotFound", "The security group '%s' does not exist", peer.Group)
			}
			r.Group, r.Note = vpc.SecurityGroupID(peer.Group), p.ruleNote(peer.Note)
			if err := cloud.KindGroup.CheckID(peer.Group); err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, p.err
}

// shape returns a permission's protocol and ports. All protocols with ports except
// ICMPv6 must specify them.
func (q permissionRequest) shape() (cloud.Rule, error) {
	r := cloud.Rule{From: -1, To: -1}
	if q.Protocol == "" {
		return r, cloud.MissingParameter("ipProtocol")
	}
	var err error
	if r.Protocol, err = cloud.ParseProtocol(q.Protocol); err != nil {
		return r, err
	}
	if name := cloud.ProtocolName(r.Protocol); q.From == nil || q.To == nil {
		switch name {
		case "tcp", "udp":
			return r, cloud.InvalidParameter("Invalid value 'Must specify both from and to ports with TCP/UDP.' for portRange.")
		case "icmp":
			return r, cloud.InvalidParameter("Invalid value 'Must specify both from and to ports with ICMP.' for portRange.")
		}
	}
	if q.From != nil {
		r.From = *q.From
	}
	if q.To != nil {
		r.To = *q.To
	}
	return r, nil
}

// ruleNotes matches valid rule descriptions.
var ruleNotes = regexp.MustCompile(`^[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]{0,255}$`)

// ruleNote reads a rule's description.
// Source: github.com/agentic-community/mcp-gateway-registry/pull/1728.
func (p *parser) ruleNote(text string) string {
	if !ruleNotes.MatchString(text) {
		p.fail(cloud.InvalidParameter("Invalid rule description. Valid descriptions are strings less than 256 characters " +
			"from the following set:  a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*"))
	}
	return text
}

// rulePeer reads a rule's CIDR; host bits are cleared, as EC2 does.
func (p *parser) rulePeer(parameter, s string, is4 bool) netip.Prefix {
	c := p.prefix(parameter, s)
	if p.err == nil && c.Addr().Is4() != is4 {
		p.fail(cloud.InvalidParameter("CIDR block %s is malformed", strconv.Quote(s)))
	}
	return c.Masked()
}
