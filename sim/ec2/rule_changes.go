package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

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
	Name  string `q:"GroupName"`
	Owner string `q:"UserId"`
	VPC   string `q:"VpcId"`
	Note  string `q:"Description"`
}

type prefixListRequest struct {
	ID   string `q:"PrefixListId"`
	Note string `q:"Description"`
}

type permissionRequest struct {
	Protocol string              `q:"IpProtocol"`
	From     *int                `q:"FromPort"`
	To       *int                `q:"ToPort"`
	Groups   []pairRequest       `q:"Groups"`
	Ranges   []rangeRequest      `q:"IpRanges"`
	Ranges6  []range6Request     `q:"Ipv6Ranges"`
	Lists    []prefixListRequest `q:"PrefixListIds"`
}

// OneRule is the older form of an ingress request: one rule beside the group's id.
// Source: API_AuthorizeSecurityGroupIngress.html.
type OneRule struct {
	Protocol    string `q:"IpProtocol"`
	From        *int   `q:"FromPort"`
	To          *int   `q:"ToPort"`
	CIDR        string `q:"CidrIp"`
	SourceName  string `q:"SourceSecurityGroupName"`
	SourceOwner string `q:"SourceSecurityGroupOwnerId"`
}

// ruleChange is a request to add or remove rules, in any of its forms.
type ruleChange struct {
	group       string
	name        string // of the group, instead of its id
	permissions []permissionRequest
	one         OneRule
	ids         []string // to remove
	tags        []TagSpecification
}

type authorizeIngress struct {
	query.DryRun
	OneRule
	Group       string              `q:"GroupId"`
	Name        string              `q:"GroupName"`
	Permissions []permissionRequest `q:"IpPermissions"`
	Tags        []TagSpecification  `q:"TagSpecification"`
}

func (r authorizeIngress) wanted() ruleChange {
	return ruleChange{group: r.Group, name: r.Name, permissions: r.Permissions, one: r.OneRule, tags: r.Tags}
}

type authorizeEgress struct {
	query.DryRun
	Group       string              `q:"GroupId,required"`
	Permissions []permissionRequest `q:"IpPermissions"`
	Tags        []TagSpecification  `q:"TagSpecification"`
}

func (r authorizeEgress) wanted() ruleChange {
	return ruleChange{group: r.Group, permissions: r.Permissions, tags: r.Tags}
}

type revokeIngress struct {
	query.DryRun
	OneRule
	Group       string              `q:"GroupId"`
	Name        string              `q:"GroupName"`
	Permissions []permissionRequest `q:"IpPermissions"`
	Rules       []string            `q:"SecurityGroupRuleId"`
}

func (r revokeIngress) wanted() ruleChange {
	return ruleChange{group: r.Group, name: r.Name, permissions: r.Permissions, one: r.OneRule, ids: r.Rules}
}

type revokeEgress struct {
	query.DryRun
	Group       string              `q:"GroupId,required"`
	Permissions []permissionRequest `q:"IpPermissions"`
	Rules       []string            `q:"SecurityGroupRuleId"`
}

func (r revokeEgress) wanted() ruleChange {
	return ruleChange{group: r.Group, permissions: r.Permissions, ids: r.Rules}
}

type authorizedGroup struct {
	Return bool      `q:"return"`
	Rules  []ruleXML `q:"securityGroupRuleSet"`
}

// revokedXML is RevokedSecurityGroupRule. Source: API_RevokedSecurityGroupRule.html.
type revokedXML struct {
	ID       string `q:"securityGroupRuleId"`
	Group    string `q:"groupId"`
	Egress   bool   `q:"isEgress"`
	Protocol string `q:"ipProtocol"`
	From     int    `q:"fromPort"`
	To       int    `q:"toPort"`
	CIDR     string `q:"cidrIpv4,omitempty"`
	CIDR6    string `q:"cidrIpv6,omitempty"`
	Peer     string `q:"referencedGroupId,omitempty"`
	Note     string `q:"description,omitempty"`
}

type revokedGroup struct {
	Return bool         `q:"return"`
	Rules  []revokedXML `q:"revokedSecurityGroupRuleSet"`
}

// noDefaultVPC is EC2's error for a group named by its name, which EC2 looks up in the
// account's default VPC: there is none here. Source: EC2 API reference, "Error codes",
// VPCIdNotSpecified.
func noDefaultVPC() error {
	return cloud.Errorf("VPCIdNotSpecified", "No default VPC for this user")
}

// permitRules requires permission for the one group that a request names and, if it
// tags its rules, for CreateTags. Source: Service Authorization Reference, EC2.
func permitRules[Req interface{ wanted() ruleChange }](c *query.Call, r *Req) ([]iam.Request, error) {
	w := (*r).wanted()
	if w.group == "" {
		if w.name != "" {
			return nil, noDefaultVPC()
		}
		return nil, cloud.MissingParameter("groupName or groupId")
	}
	tags, err := tagsFor(cloud.KindRule, w.tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	q.group(w.group)
	if len(tags) > 0 {
		q.require(cloud.KindRule, "*", tagging(tags))
	}
	q.createTags(cloud.KindRule, tags)
	return q.result()
}

// rules returns the rules that a request lists. The two forms exclude each other.
func (w ruleChange) rules(s *cloud.State) ([]cloud.Rule, error) {
	if w.one == (OneRule{}) {
		return rulesOf(s, w.permissions)
	}
	switch {
	case len(w.permissions) > 0:
		return nil, cloud.Errorf("InvalidParameterCombination", "The parameter ipPermissions may not be used in combination with ipProtocol")
	case w.one.SourceName != "" || w.one.SourceOwner != "":
		return nil, noDefaultVPC()
	}
	p := permissionRequest{Protocol: w.one.Protocol, From: w.one.From, To: w.one.To}
	if w.one.CIDR != "" {
		p.Ranges = []rangeRequest{{CIDR: w.one.CIDR}}
	}
	return rulesOf(s, []permissionRequest{p})
}

func (a *api) authorize(c *query.Call, w ruleChange, d cloud.Direction) (*authorizedGroup, error) {
	rules, err := w.rules(c.State)
	if err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, cloud.MissingParameter("ipPermissions")
	}
	tags, err := tagsFor(cloud.KindRule, w.tags)
	if err != nil {
		return nil, err
	}
	for n := range rules {
		rules[n].Tags = tags
	}
	group := vpc.SecurityGroupID(w.group)
	made, err := a.cloud.Group(group).Authorize(d, rules)
	if err != nil {
		return nil, err
	}
	return &authorizedGroup{Return: true, Rules: each(made, func(r cloud.Rule) ruleXML { return newRuleXML(c, group, d, r) })}, nil
}

func (a *api) revoke(c *query.Call, w ruleChange, d cloud.Direction) (*revokedGroup, error) {
	group := vpc.SecurityGroupID(w.group)
	if len(w.ids) > 0 && (len(w.permissions) > 0 || w.one != (OneRule{})) {
		return nil, cloud.Errorf("InvalidParameterCombination", "The parameter securityGroupRuleIds may not be used in combination with ipPermissions")
	}
	var removed []cloud.Rule
	var err error
	if len(w.ids) > 0 {
		removed, err = a.cloud.Group(group).RevokeIDs(d, w.ids)
	} else {
		var rules []cloud.Rule
		if rules, err = w.rules(a.cloud.State()); err != nil {
			return nil, err
		}
		if len(rules) == 0 {
			return nil, cloud.MissingParameter("ipPermissions")
		}
		removed, err = a.cloud.Group(group).Revoke(d, rules)
	}
	if err != nil {
		return nil, err
	}
	return &revokedGroup{Return: true, Rules: each(removed, func(r cloud.Rule) revokedXML {
		return newRevokedXML(newRuleXML(c, group, d, r))
	})}, nil
}

func newRevokedXML(x ruleXML) revokedXML {
	out := revokedXML{
		ID: x.ID, Group: x.Group, Egress: x.Egress, Protocol: x.Protocol, From: x.From, To: x.To,
		CIDR: x.CIDR, CIDR6: x.CIDR6, Note: x.Note,
	}
	if x.Peer != nil {
		out.Peer = x.Peer.Group
	}
	return out
}
