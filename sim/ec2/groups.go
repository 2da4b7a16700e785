package ec2

import (
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) groupActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeGroups, groupList]{
			Name: "DescribeSecurityGroups", Page: page("DescribeSecurityGroups"), ReadOnly: true,
			Permit: onAnyResource[describeGroups], Do: listGroups,
		}),
		query.Handle(query.Spec[describeRules, ruleList]{
			Name: "DescribeSecurityGroupRules", Page: page("DescribeSecurityGroupRules"), ReadOnly: true,
			Permit: onAnyResource[describeRules], Do: listRules,
		}),
		query.Handle(query.Spec[authorizeIngress, authorizedGroup]{
			Name: "AuthorizeSecurityGroupIngress", Page: page("AuthorizeSecurityGroupIngress"), Permit: permitRules[authorizeIngress],
			Do: func(c *query.Call, r *authorizeIngress) (*authorizedGroup, error) {
				return a.authorize(c, r.wanted(), cloud.Ingress)
			},
		}),
		query.Handle(query.Spec[authorizeEgress, authorizedGroup]{
			Name: "AuthorizeSecurityGroupEgress", Page: page("AuthorizeSecurityGroupEgress"), Permit: permitRules[authorizeEgress],
			Do: func(c *query.Call, r *authorizeEgress) (*authorizedGroup, error) {
				return a.authorize(c, r.wanted(), cloud.Egress)
			},
		}),
		query.Handle(query.Spec[revokeIngress, revokedGroup]{
			Name: "RevokeSecurityGroupIngress", Page: page("RevokeSecurityGroupIngress"), Permit: permitRules[revokeIngress],
			Do: func(c *query.Call, r *revokeIngress) (*revokedGroup, error) {
				return a.revoke(c, r.wanted(), cloud.Ingress)
			},
		}),
		query.Handle(query.Spec[revokeEgress, revokedGroup]{
			Name: "RevokeSecurityGroupEgress", Page: page("RevokeSecurityGroupEgress"), Permit: permitRules[revokeEgress],
			Do: func(c *query.Call, r *revokeEgress) (*revokedGroup, error) {
				return a.revoke(c, r.wanted(), cloud.Egress)
			},
		}),
	}
}

type rangeXML struct {
	CIDR string `q:"cidrIp"`
	Note string `q:"description,omitempty"`
}

type range6XML struct {
	CIDR string `q:"cidrIpv6"`
	Note string `q:"description,omitempty"`
}

type pairXML struct {
	Group string `q:"groupId"`
	Owner string `q:"userId"`
	Note  string `q:"description,omitempty"`
}

// permissionXML is IpPermission: rules that share protocol and ports.
// Source: API_IpPermission.html.
type permissionXML struct {
	Protocol string      `q:"ipProtocol"`
	From     *int        `q:"fromPort"`
	To       *int        `q:"toPort"`
	Groups   []pairXML   `q:"groups"`
	Ranges   []rangeXML  `q:"ipRanges"`
	Ranges6  []range6XML `q:"ipv6Ranges"`
	// Lists is always empty: there are no prefix lists here.
	Lists []struct{} `q:"prefixListIds"`
}

// securityGroupXML is SecurityGroup. Source: API_SecurityGroup.html.
type securityGroupXML struct {
	ID          string          `q:"groupId"`
	ARN         string          `q:"securityGroupArn"`
	Name        string          `q:"groupName"`
	Description string          `q:"groupDescription"`
	Owner       string          `q:"ownerId"`
	VPC         string          `q:"vpcId"`
	Ingress     []permissionXML `q:"ipPermissions"`
	Egress      []permissionXML `q:"ipPermissionsEgress"`
	Tags        []tagXML        `q:"tagSet,omitempty"`
}

type describeGroups struct {
	query.DryRun
	Page
	IDs     []string `q:"GroupId"`
	Names   []string `q:"GroupName"`
	Filters []Filter `q:"Filter"`
}

type groupList struct {
	Groups    []securityGroupXML `q:"securityGroupInfo"`
	NextToken string             `q:"nextToken,omitempty"`
}

func listGroups(c *query.Call, r *describeGroups) (*groupList, error) {
	if len(r.Names) > 0 {
		return nil, noDefaultVPC()
	}
	out, next, err := listPage(c, listing[*cloud.Group]{
		kind: cloud.KindGroup, set: "group", all: cloud.Sorted(c.State.Groups), ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(g *cloud.Group) string { return string(g.ID) },
		tags:  func(g *cloud.Group) cloud.Tags { return g.Tags },
		attrs: groupAttributes(c.State),
	}, func(g *cloud.Group) securityGroupXML { return newSecurityGroupXML(c, g) })
	return &groupList{out, next}, err
}

// groupAttributes are the filters of DescribeSecurityGroups. For filters on rules, a
// group passes if each value matches any of its rules, not necessarily the same one.
func groupAttributes(s *cloud.State) attributes[*cloud.Group] {
	type group = *cloud.Group
	out := attributes[group]{
		"group-id":    func(g group) []string { return one(string(g.ID)) },
		"group-name":  func(g group) []string { return one(g.Name) },
		"description": func(g group) []string { return one(g.Description) },
		"owner-id":    func(group) []string { return one(s.Account) },
		"vpc-id":      func(group) []string { return one(string(s.VPC.ID)) },
	}
	for prefix, rules := range map[string]func(group) []cloud.Rule{
		"":        func(g group) []cloud.Rule { return g.Ingress },
		"egress.": func(g group) []cloud.Rule { return g.Egress },
	} {
		for name, values := range permissionAttributes(s) {
			out[prefix+"ip-permission."+name] = func(g group) []string {
				var all []string
				for _, p := range permissions(s, rules(g)) {
					all = append(all, values(p)...)
				}
				return all
			}
		}
	}
	return out
}

// permissionAttributes are the filter values of one entry of a group.
func permissionAttributes(s *cloud.State) attributes[permissionXML] {
	number := func(n *int) []string {
		if n == nil {
			return nil
		}
		return one(strconv.Itoa(*n))
	}
	return merged(attributes[permissionXML]{
		"protocol":  func(p permissionXML) []string { return one(p.Protocol) },
		"from-port": func(p permissionXML) []string { return number(p.From) },
		"to-port":   func(p permissionXML) []string { return number(p.To) },
		"cidr":      func(p permissionXML) []string { return each(p.Ranges, func(x rangeXML) string { return x.CIDR }) },
		"ipv6-cidr": func(p permissionXML) []string { return each(p.Ranges6, func(x range6XML) string { return x.CIDR }) },
		"group-id":  func(p permissionXML) []string { return each(p.Groups, func(x pairXML) string { return x.Group }) },
		"user-id":   func(p permissionXML) []string { return each(p.Groups, func(x pairXML) string { return x.Owner }) },
		"group-name": func(p permissionXML) []string {
			var names []string
			for _, x := range p.Groups {
				if g := s.Groups[vpc.SecurityGroupID(x.Group)]; g != nil {
					names = append(names, g.Name)
				}
			}
			return names
		},
	}, absent[permissionXML]("prefix-list-id"))
}

func newSecurityGroupXML(c *query.Call, g *cloud.Group) securityGroupXML {
	return securityGroupXML{
		ID: string(g.ID), ARN: arn(c, cloud.KindGroup, string(g.ID)), Name: g.Name, Description: g.Description,
		Owner: c.State.Account, VPC: string(c.State.VPC.ID), Tags: tagsXML(g.Tags),
		Ingress: permissions(c.State, g.Ingress), Egress: permissions(c.State, g.Egress),
	}
}

// permissions merges rules with the same protocol and ports into one entry, in the
// order of the first rule of each.
func permissions(s *cloud.State, rules []cloud.Rule) []permissionXML {
	type class struct{ protocol, from, to int }
	var order []class
	folded := map[class]*permissionXML{}
	for _, r := range rules {
		k := class{r.Protocol, r.From, r.To}
		p := folded[k]
		if p == nil {
			p = &permissionXML{Protocol: cloud.ProtocolName(r.Protocol), From: port(r, r.From), To: port(r, r.To)}
			folded[k], order = p, append(order, k)
		}
		switch {
		case r.Group != "":
			p.Groups = append(p.Groups, pairXML{string(r.Group), s.Account, r.Note})
		case r.Peer.Addr().Is4():
			p.Ranges = append(p.Ranges, rangeXML{r.Peer.String(), r.Note})
		default:
			p.Ranges6 = append(p.Ranges6, range6XML{r.Peer.String(), r.Note})
		}
	}
	var out []permissionXML
	for _, k := range order {
		out = append(out, *folded[k])
	}
	return out
}

// port returns nil for a protocol without ports.
func port(r cloud.Rule, v int) *int {
	if !cloud.HasPorts(r.Protocol) {
		return nil
	}
	return &v
}
