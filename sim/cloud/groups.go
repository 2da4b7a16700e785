package cloud

import (
	"fmt"
	"net/netip"
	"regexp"
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

// Direction is the direction of the traffic that a rule allows.
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

// withPorts returns r with ports as EC2 stores them, or an error: TCP and UDP need a
// range, ICMP a type and a code (-1 is all of them), and rules of other protocols
// always cover the whole protocol. Source: API_IpPermission.html.
func (r Rule) withPorts() (Rule, error) {
	switch r.Protocol {
	case protocolTCP, protocolUDP:
		for _, port := range []int{r.From, r.To} {
			if port < 0 || port > 65535 {
				return r, Errorf("InvalidPermission.Malformed", "TCP/UDP port (%d) out of range", port)
			}
		}
		if r.From > r.To {
			return r, InvalidParameter("Invalid TCP/UDP port range (%d:%d)", r.From, r.To)
		}
	case protocolICMP, protocolICMPv6:
		for _, number := range []int{r.From, r.To} {
			if number < -1 || number > 255 {
				return r, Errorf("InvalidPermission.Malformed", "ICMP type or code (%d) out of range", number)
			}
		}
		if r.From == -1 && r.To != -1 {
			return r, Errorf("InvalidPermission.Malformed", "ICMP code (%d) must be -1 for all types", r.To)
		}
	default:
		r.From, r.To = -1, -1
	}
	return r, nil
}

// HasPorts reports whether a protocol's rules have ports, or a type and a code.
func HasPorts(protocol int) bool {
	return protocol == protocolTCP || protocol == protocolUDP || protocol == protocolICMP || protocol == protocolICMPv6
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

// GroupHandle changes the rules of one security group.
type GroupHandle struct {
	cloud *Cloud
	id    vpc.SecurityGroupID
}

// Group returns the handle of a security group, which need not exist.
func (c *Cloud) Group(id vpc.SecurityGroupID) GroupHandle { return GroupHandle{c, id} }

// Authorize adds rules and returns them with their ids. If one rule cannot
// be added, none is.
func (h GroupHandle) Authorize(d Direction, rules []Rule) ([]Rule, error) {
	added := slices.Clone(rules)
	err := h.cloud.apply(func(ch *change) error {
		g, err := ch.group(h.id)
		if err != nil {
			return err
		}
		list := g.rules(d)
		for n, r := range added {
			if r, err = r.withPorts(); err != nil {
				return err
			}
			if err := mergeTags(Tags{}, r.Tags); err != nil {
				return err
			}
			if slices.ContainsFunc(added[:n], r.same) {
				return InvalidParameter("The same permission must not appear multiple times")
			}
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
			r.ID = ch.newID("sgr-")
			added[n] = r
			*list = append(*list, r)
		}
		ch.Groups[h.id] = g
		return nil
	})
	return added, err
}

// groupText matches names and descriptions of groups. Source: API_CreateSecurityGroup.html.
var groupText = regexp.MustCompile(`^[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{1,255}$`)

// CreateGroup makes a group that allows all outbound traffic. Sources of the errors: EC2
// API reference, "Error codes", and for a reserved name github.com/openstack/ec2-api,
// which copies EC2's texts.
func (h VPCHandle) CreateGroup(name, description string, tags Tags) (*Group, error) {
	var made *Group
	err := h.add(func(ch *change) error {
		if err := checkNewGroup(ch.State, name, description); err != nil {
			return err
		}
		made = &Group{ID: vpc.SecurityGroupID(ch.newID("sg-")), Name: name, Description: description, Tags: Tags{}}
		for _, p := range everywhere(ch.VPC) {
			made.Egress = append(made.Egress, Rule{ID: ch.newID("sgr-"), Protocol: -1, From: -1, To: -1, Peer: p})
		}
		ch.Groups[made.ID] = made
		return mergeTags(made.Tags, tags)
	})
	return made, err
}

// everywhere are the peers that a new group allows traffic to.
func everywhere(v VPC) []netip.Prefix {
	out := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	if v.CIDR6.IsValid() {
		out = append(out, netip.MustParsePrefix("::/0"))
	}
	return out
}

func checkNewGroup(s *State, name, description string) error {
	const valid = "Valid %ss are strings less than 256 characters from the following set:  a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*"
	switch {
	case !groupText.MatchString(name):
		return InvalidParameter("Invalid security group name. "+valid, "name")
	case !groupText.MatchString(description):
		return InvalidParameter("Invalid security group description. "+valid, "description")
	case strings.HasPrefix(strings.ToLower(name), "sg-"):
		return InvalidParameter("invalid value for parameter groupName. Group names may not be in the format sg-*.")
	case strings.EqualFold(name, defaultGroup):
		return InvalidParameter("Cannot use reserved security group name: %s", defaultGroup)
	case len(s.Groups) >= s.Quotas.GroupsPerVPC:
		return Errorf("SecurityGroupLimitExceeded", "The maximum number of security groups for VPC '%s' has been reached.", s.VPC.ID)
	}
	for _, g := range s.Groups {
		if strings.EqualFold(g.Name, name) {
			return Errorf("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", name, s.VPC.ID)
		}
	}
	return nil
}

// Delete deletes a group that no interface is in and no rule of another group names.
func (h GroupHandle) Delete() error {
	return h.cloud.apply(func(ch *change) error {
		g := ch.Groups[h.id]
		switch {
		case g == nil:
			return KindGroup.NotFound(string(h.id))
		case g.Name == defaultGroup:
			return Errorf("CannotDelete", "the specified group: %q name: %q cannot be deleted by a user", h.id, g.Name)
		case groupUsed(ch.State, h.id):
			return Errorf("DependencyViolation", "resource %s has a dependent object", h.id)
		}
		delete(ch.Groups, h.id)
		return nil
	})
}

func groupUsed(s *State, id vpc.SecurityGroupID) bool {
	for _, i := range s.Interfaces {
		if slices.Contains(i.Groups, id) {
			return true
		}
	}
	for _, g := range s.Groups {
		if g.ID != id && slices.ContainsFunc(slices.Concat(g.Ingress, g.Egress), func(r Rule) bool { return r.Group == id }) {
			return true
		}
	}
	return false
}

// countRules counts the rules that share a quota with r. A rule that names a group
// counts for both families.
func countRules(list []Rule, r Rule) int {
	n := 0
	for _, o := range list {
		if o.Group != "" || r.Group != "" || o.Peer.Addr().Is4() == r.Peer.Addr().Is4() {
			n++
		}
	}
	return n
}

// Revoke removes rules that match exactly, and returns them.
func (h GroupHandle) Revoke(d Direction, rules []Rule) ([]Rule, error) {
	var removed []Rule
	err := h.cloud.apply(func(ch *change) error {
		g, err := ch.group(h.id)
		if err != nil {
			return err
		}
		list := g.rules(d)
		for _, r := range rules {
			if r, err = r.withPorts(); err != nil {
				return err
			}
			i := slices.IndexFunc(*list, r.same)
			if i < 0 {
				return Errorf("InvalidPermission.NotFound",
					"The specified rule does not exist in this security group.")
			}
			removed = append(removed, (*list)[i])
			*list = slices.Delete(*list, i, i+1)
		}
		ch.Groups[h.id] = g
		return nil
	})
	return removed, err
}

// RevokeIDs removes rules by their ids, and returns them.
func (h GroupHandle) RevokeIDs(d Direction, ids []string) ([]Rule, error) {
	var removed []Rule
	err := h.cloud.apply(func(ch *change) error {
		g, err := ch.group(h.id)
		if err != nil {
			return err
		}
		list := g.rules(d)
		for _, rule := range ids {
			i := slices.IndexFunc(*list, func(r Rule) bool { return r.ID == rule })
			if i < 0 {
				return KindRule.NotFound(rule)
			}
			removed = append(removed, (*list)[i])
			*list = slices.Delete(*list, i, i+1)
		}
		ch.Groups[h.id] = g
		return nil
	})
	return removed, err
}

// group returns a copy of a group that may be modified.
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

// Protocols with ports, or types and codes, in their rules.
const (
	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58
)

// ProtocolName returns a protocol as EC2 prints it: by name where EC2 has one, else
// by number.
func ProtocolName(n int) string {
	switch n {
	case protocolICMP:
		return "icmp"
	case protocolTCP:
		return "tcp"
	case protocolUDP:
		return "udp"
	case protocolICMPv6:
		return "icmpv6"
	}
	return strconv.Itoa(n)
}

// ParseProtocol reads a protocol name or number; -1 and "all" mean all protocols.
func ParseProtocol(s string) (int, error) {
	switch strings.ToLower(s) {
	case "icmp":
		return protocolICMP, nil
	case "tcp":
		return protocolTCP, nil
	case "udp":
		return protocolUDP, nil
	case "icmpv6":
		return protocolICMPv6, nil
	case "all":
		return -1, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < -1 || n > 255 {
		return 0, InvalidParameter("Invalid value '%s' for IP protocol. Unknown protocol.", s)
	}
	return n, nil
}
