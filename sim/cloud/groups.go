package cloud

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Group is a security group.
type Group struct {
	ID          vpc.SecurityGroupID
	Name        string
	Description string
	Ingress     []Rule
	Egress      []Rule
	Tags        Tags
}

// Rule is one security group rule: one protocol, one port range, one peer.
type Rule struct {
	ID       string // sgr-…
	Protocol int    // IP protocol number, -1 for all
	From, To int    // ports, or ICMP type and code; -1 is all
	Peer     netip.Prefix
	Group    vpc.SecurityGroupID // instead of Peer
	Note     string
	Tags     Tags
}

// Direction is which way a rule lets traffic pass.
type Direction bool

// Directions of a rule, seen from the interface in the group.
const (
	Ingress Direction = false
	Egress  Direction = true
)

func (r Rule) same(o Rule) bool {
	return r.Protocol == o.Protocol && r.From == o.From && r.To == o.To &&
		r.Peer == o.Peer && r.Group == o.Group
}

// String is the rule as EC2's errors print it, such as
// `peer: 0.0.0.0/0, TCP, from port: 22, to port: 22, ALLOW`.
func (r Rule) String() string {
	peer := r.Peer.String()
	if r.Group != "" {
		peer = string(r.Group)
	}
	if r.Protocol < 0 {
		return fmt.Sprintf("peer: %s, ALL, ALLOW", peer)
	}
	return fmt.Sprintf("peer: %s, %s, from port: %d, to port: %d, ALLOW",
		peer, strings.ToUpper(ProtocolName(r.Protocol)), r.From, r.To)
}

func (g *Group) rules(d Direction) *[]Rule {
	if d == Egress {
		return &g.Egress
	}
	return &g.Ingress
}

// Authorize adds rules to a group and returns them with their ids. One rule that
// cannot be added refuses all.
func (c *Cloud) Authorize(id vpc.SecurityGroupID, d Direction, rules []Rule) ([]Rule, error) {
	added := slices.Clone(rules)
	err := c.apply(func(ch *change) error {
		g, err := ch.group(id)
		if err != nil {
			return err
		}
		list := g.rules(d)
		for n, r := range added {
			if r.Group != "" && ch.Groups[r.Group] == nil {
				return KindGroup.NotFound(string(r.Group))
			}
			if slices.ContainsFunc(*list, r.same) {
				return Errorf("InvalidPermission.Duplicate",
					"the specified rule %q already exists", r.String())
			}
			if countRules(*list, r) >= ch.Quotas.RulesPerGroup {
				return Errorf("RulesPerSecurityGroupLimitExceeded",
					"The maximum number of rules per security group has been reached.")
			}
			added[n].ID = ch.newID("sgr-")
			*list = append(*list, added[n])
		}
		ch.Groups[id] = g
		return nil
	})
	return added, err
}

// countRules is how many rules count against the same quota as r. A rule that
// names a group counts for both families.
func countRules(list []Rule, r Rule) int {
	n := 0
	for _, o := range list {
		if o.Group != "" || r.Group != "" || o.Peer.Addr().Is4() == r.Peer.Addr().Is4() {
			n++
		}
	}
	return n
}

// Revoke removes rules that match exactly.
func (c *Cloud) Revoke(id vpc.SecurityGroupID, d Direction, rules []Rule) error {
	return c.apply(func(ch *change) error {
		g, err := ch.group(id)
		if err != nil {
			return err
		}
		list := g.rules(d)
		for _, r := range rules {
			i := slices.IndexFunc(*list, r.same)
			if i < 0 {
				return Errorf("InvalidPermission.NotFound",
					"The specified rule does not exist in this security group.")
			}
			*list = slices.Delete(*list, i, i+1)
		}
		ch.Groups[id] = g
		return nil
	})
}

// RevokeIDs removes rules by their ids.
func (c *Cloud) RevokeIDs(id vpc.SecurityGroupID, d Direction, ids []string) error {
	return c.apply(func(ch *change) error {
		g, err := ch.group(id)
		if err != nil {
			return err
		}
		list := g.rules(d)
		for _, rule := range ids {
			i := slices.IndexFunc(*list, func(r Rule) bool { return r.ID == rule })
			if i < 0 {
				return KindRule.NotFound(rule)
			}
			*list = slices.Delete(*list, i, i+1)
		}
		ch.Groups[id] = g
		return nil
	})
}

// group returns a copy of a group that may be changed.
func (ch *change) group(id vpc.SecurityGroupID) (*Group, error) {
	g := ch.Groups[id]
	if g == nil {
		return nil, KindGroup.NotFound(string(id))
	}
	n := *g
	n.Ingress, n.Egress = slices.Clone(g.Ingress), slices.Clone(g.Egress)
	return &n, nil
}

// checkGroups refuses group lists an interface cannot have.
func (ch *change) checkGroups(ids []vpc.SecurityGroupID) error {
	for n, id := range ids {
		if ch.Groups[id] == nil {
			return KindGroup.NotFound(string(id))
		}
		if slices.Contains(ids[:n], id) {
			return InvalidParameter("Value (%s) for parameter groupId is invalid. Duplicate group.", id)
		}
	}
	if len(ids) > ch.Quotas.GroupsPerInterface {
		return Errorf("SecurityGroupsPerInterfaceLimitExceeded",
			"The maximum number of security groups per interface has been reached.")
	}
	return nil
}

// ProtocolName is how EC2 prints a protocol: a name for those it knows, else the
// number.
func ProtocolName(n int) string {
	switch n {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmpv6"
	}
	return strconv.Itoa(n)
}

// ParseProtocol reads a protocol name or number; -1 and "all" are every one.
func ParseProtocol(s string) (int, error) {
	switch strings.ToLower(s) {
	case "icmp":
		return 1, nil
	case "tcp":
		return 6, nil
	case "udp":
		return 17, nil
	case "icmpv6":
		return 58, nil
	case "all":
		return -1, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < -1 || n > 255 {
		return 0, InvalidParameter("Invalid value '%s' for IP protocol. Unknown protocol.", s)
	}
	return n, nil
}
