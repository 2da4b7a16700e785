package ec2

import (
	"net/netip"
	"regexp"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
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
			r.Peer, r.Note = p.rulePeer(peer.CIDR, true), p.ruleNote(peer.Note)
			out = append(out, r)
		}
		for _, peer := range one.Ranges6 {
			r.Peer, r.Note = p.rulePeer(peer.CIDR, false), p.ruleNote(peer.Note)
			out = append(out, r)
		}
		if len(one.Lists) > 0 { // there are no prefix lists here
			return nil, cloud.Errorf("InvalidPrefixListID.NotFound", "The prefix list ID '%s' does not exist", one.Lists[0].ID)
		}
		r.Peer = netip.Prefix{}
		for _, peer := range one.Groups {
			if peer.Group == "" && peer.Name != "" {
				return nil, noDefaultVPC()
			}
			if peer.Owner != "" && peer.Owner != s.Account || peer.VPC != "" && peer.VPC != string(s.VPC.ID) {
				return nil, cloud.KindGroup.NotFound(peer.Group)
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

// rulePeer reads a rule's CIDR; host bits are cleared, as EC2 does. Source of the error:
// github.com/aws/aws-cli/issues/2428.
func (p *parser) rulePeer(s string, is4 bool) netip.Prefix {
	c, err := netip.ParsePrefix(s)
	if err != nil || c.Addr().Is4() != is4 {
		p.fail(cloud.InvalidParameter("CIDR block %s is malformed", s))
	}
	return c.Masked()
}
