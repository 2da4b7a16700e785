// Package grouprules compiles the rules of EC2 security groups to policies of core/policy, for
// pods that have groups and no interface of their own.
//
// Compile makes the policies: a pod with groups may open and accept what one of its groups
// allows, and of that what network policies allow as well. Labels says which groups a pod is a
// member of, as labels that the policies select by. Membership says which addresses are members
// of a group because of their interface. What cannot be expressed is left out and named: it
// allows nothing.
//
// Pure: values in, values out. The controller of the cluster reads groups and interfaces from EC2
// and distributes them; each node compiles them for its pods.
package grouprules

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// All is the protocol, the port, the ICMP type or the ICMP code of a rule for all of them.
const All = -1

// Rule allows connections of one direction with some peers. Source: EC2 API reference,
// SecurityGroupRule.
type Rule struct {
	ID        string
	Direction policy.Direction
	Protocol  int // IP protocol number
	From, To  int // ports, or ICMP type and code
	// Prefixes are the peers: a range, or those of a prefix list.
	Prefixes []netip.Prefix
	// Group in place of Prefixes: its members are the peers.
	Group vpc.SecurityGroupID
	// Unusable is why the peers are not known; empty if they are.
	Unusable string
}

// Group is a security group with its rules and members.
type Group struct {
	ID    vpc.SecurityGroupID
	Rules []Rule
	// Members are the addresses of interfaces with the group that are no pods'.
	Members []netip.Prefix
	// Pools are those that a node's interface with the group has for pods. Such an address is a
	// member if a pod without groups of its own has it.
	Pools []netip.Prefix
}

// Kind is that of the compiled policies; their names are those of the groups, or one of these.
const (
	Kind = "SecurityGroup"
	// Unfiltered names the policy for what EC2 does not filter.
	Unfiltered = "unfiltered"
	// Implicit names the policy that denies what no group allows.
	Implicit = "implicit-deny"
)

// Orders of the policies, before those of cluster-wide policies (0 to 1000): a connection that a
// group allows is passed to network policies; the rest is denied.
const (
	allows = -2
	denies = -1
)

// Compiled is a policy with the parts of its group that allow nothing, and why.
type Compiled struct {
	Policy   policy.Policy
	Problems []string
}

// Compile returns the policies of groups, in the order of their names, and the two that every pod
// with groups has. There is one policy for each group and none for sets of groups, so their
// number does not depend on pods. A group that is missing allows nothing.
func Compile(groups []Group) []Compiled {
	c := compiler{byID: make(map[vpc.SecurityGroupID]*Group, len(groups))}
	for i := range groups {
		c.byID[groups[i].ID] = &groups[i]
	}
	out := []Compiled{{Policy: implicit()}, {Policy: unfiltered()}}
	for i := range groups {
		out = append(out, c.group(&groups[i]))
	}
	slices.SortFunc(out, func(a, b Compiled) int { return cmp.Compare(a.Policy.Ref.Name, b.Policy.Ref.Name) })
	return out
}

func ref(name string) policy.Ref { return policy.Ref{Kind: Kind, Name: name} }

// implicit denies what no group allows.
func implicit() policy.Policy {
	deny := []policy.Rule{{Name: "no group allows it", Action: policy.Deny, AnyPeer: true, AnyPort: true}}
	return policy.Policy{
		Ref: ref(Implicit), Tier: policy.Admin, Order: denies, Subject: having(isolatedLabel),
		Rules: [2][]policy.Rule{policy.Ingress: deny, policy.Egress: deny},
	}
}

// unfiltered passes connections to what EC2's security groups do not filter. Instance metadata is
// not among it: whether pods reach it is a setting of the node. The resolver is also at the base of
// the VPC's range plus two; pods ask the cluster's DNS, and groups decide about that address.
//
// Source: VPC user guide, "Control traffic to your AWS resources using security groups": groups do
// not filter traffic to Amazon DNS and to the Amazon Time Sync Service. Addresses: EC2 user guide,
// "Set the time reference", and VPC user guide, "DNS attributes for your VPC".
func unfiltered() policy.Policy {
	const dns, ntp = 53, 123
	to := func(port uint16, protocols []policy.Protocol, addresses ...string) policy.Rule {
		r := policy.Rule{Action: policy.Pass}
		for _, a := range addresses {
			r.Peers = append(r.Peers, block(host(netip.MustParseAddr(a))))
		}
		for _, p := range protocols {
			r.Ports = append(r.Ports, policy.Port{Protocol: p, First: port, Last: port})
		}
		return r
	}
	return policy.Policy{
		Ref: ref(Unfiltered), Tier: policy.Admin, Order: allows, Subject: having(isolatedLabel),
		Rules: [2][]policy.Rule{policy.Egress: {
			to(dns, []policy.Protocol{policy.TCP, policy.UDP}, "169.254.169.253", "fd00:ec2::253"),
			to(ntp, []policy.Protocol{policy.UDP}, "169.254.169.123", "fd00:ec2::123"),
		}},
	}
}

// having selects the pods with a label of Labels.
func having(key string) policy.PodSet {
	return policy.PodSet{Pods: labels.SelectorFromSet(labels.Set{key: labelValue})}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func block(p netip.Prefix) policy.Peer { return policy.Peer{Block: &policy.Block{Prefix: p}} }

// compiler compiles groups that refer to each other.
type compiler struct {
	byID map[vpc.SecurityGroupID]*Group
}

func (c compiler) group(g *Group) Compiled {
	out := Compiled{Policy: policy.Policy{
		Ref: ref(string(g.ID)), Tier: policy.Admin, Order: allows, Subject: having(SubjectLabel(g.ID)),
	}}
	for _, r := range g.Rules {
		rule, err := c.rule(r)
		if err != nil {
			out.Problems = append(out.Problems, fmt.Sprintf("rule %s: %v; it allows nothing", r.ID, err))
			continue
		}
		out.Policy.Rules[r.Direction] = append(out.Policy.Rules[r.Direction], rule)
	}
	return out
}

func (c compiler) rule(r Rule) (out policy.Rule, err error) {
	out = policy.Rule{Name: r.ID, Action: policy.Pass}
	if out.Ports, out.AnyPort, err = ports(r); err != nil {
		return out, err
	}
	switch {
	case r.Direction != policy.Ingress && r.Direction != policy.Egress:
		return out, fmt.Errorf("direction %d is unknown", r.Direction)
	case r.Unusable != "":
		return out, fmt.Errorf("its peers are not known: %s", r.Unusable)
	case r.Group == "":
		for _, p := range r.Prefixes {
			if !p.IsValid() || p.Addr().Is4In6() {
				return out, fmt.Errorf("its range %s cannot be read", p)
			}
			out.Peers = append(out.Peers, block(p.Masked()))
		}
		return out, nil
	}
	out.Peers, err = c.members(r.Group)
	return out, err
}

// members are the peers that a reference to a group matches.
func (c compiler) members(id vpc.SecurityGroupID) ([]policy.Peer, error) {
	g := c.byID[id]
	if g == nil {
		return nil, fmt.Errorf("security group %s, which it refers to, is not known", id)
	}
	pods := having(MemberLabel(id))
	peers := []policy.Peer{{Pods: &pods}}
	for _, p := range g.Members {
		peers = append(peers, block(p))
	}
	return peers, nil
}

// lastPort is the last port.
const lastPort = 1<<16 - 1

// ports are those of a rule, or any of any protocol. The classes of core/policy divide the ports
// of TCP, UDP and SCTP: all other protocols are one class, which only a rule for every protocol
// allows.
func ports(r Rule) (list []policy.Port, all bool, err error) {
	switch p := policy.Protocol(r.Protocol); {
	case r.Protocol == All:
		return nil, true, nil
	case r.Protocol < 0 || r.Protocol > 255:
		return nil, false, fmt.Errorf("protocol %d is unknown", r.Protocol)
	case p == policy.SCTP, p.HasPorts() && r.From == All && r.To == All:
		return []policy.Port{{Protocol: p, Last: lastPort}}, false, nil
	case p.HasPorts() && (r.From < 0 || r.To > lastPort || r.From > r.To):
		return nil, false, fmt.Errorf("ports %d to %d are no range", r.From, r.To)
	case p.HasPorts():
		return []policy.Port{{Protocol: p, First: uint16(r.From), Last: uint16(r.To)}}, false, nil
	default:
		return nil, false, fmt.Errorf("%s cannot be enforced in the node, only all protocols together", p)
	}
}
