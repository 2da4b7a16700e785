// Package policy decides which connections the network policies of a cluster allow.
//
// Evaluate is the meaning: a slow interpreter of policies that names the policy and rule that
// decided. Engine compiles the same policies for the endpoints of one node into the tables that
// the node's programs look up, and returns what to write when policies, namespaces, pods or
// endpoints change. A property test compares both.
//
// Policies of every API are one type, Policy, with tiers, order and actions; FromNetworkPolicy
// converts Kubernetes' own. The package is pure: values in, values out. control/policy feeds the
// engine and writes its changes by edge/bpf; app/cli traces flows with Evaluate.
package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Direction is that of a connection, seen from the pod that is judged. The numbers are those
// of bpf/maps.h.
type Direction uint8

// Directions.
const (
	Ingress Direction = 0
	Egress  Direction = 1
)

func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Protocol is an IP protocol number.
type Protocol uint8

// Protocols with ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// HasPorts reports whether rules can name ports of the protocol.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	case 1:
		return "ICMP"
	case 58:
		return "ICMPv6"
	default:
		return fmt.Sprintf("protocol %d", uint8(p))
	}
}

// Ref names a policy.
type Ref struct {
	Kind      string // "NetworkPolicy"
	Namespace string // empty for policies of the cluster
	Name      string
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Compare orders policies of the same tier and order.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(strings.Compare(r.Namespace, o.Namespace), strings.Compare(r.Name, o.Name), strings.Compare(r.Kind, o.Kind))
}

// Tier is a level of policies. A connection that one tier decides is not judged by the next.
type Tier uint8

// Tiers, in the order in which they are asked. Without a decision a connection is allowed.
const (
	// Admin policies come first; their rules are asked in order.
	Admin Tier = iota
	// Namespaced policies isolate the pods that they select: what none of their rules allows
	// is denied. They have no order.
	Namespaced
	// Baseline policies are asked, in order, for pods that no namespaced policy isolates.
	Baseline
)

func (t Tier) String() string {
	return [...]string{Admin: "admin", Namespaced: "namespaced", Baseline: "baseline"}[t]
}

// Action is what a rule does with a connection that it matches.
type Action uint8

// Actions. Rules of namespaced policies only accept.
const (
	Accept Action = iota
	Deny
	Pass // asks the next tier
)

func (a Action) String() string {
	return [...]string{Accept: "accept", Deny: "deny", Pass: "pass"}[a]
}

// Policy is a policy of any API.
type Policy struct {
	Ref  Ref
	Tier Tier
	// Order of admin and baseline policies: lower first, equal ones by Ref.Compare.
	Order   int
	Subject PodSet
	// Rules by direction, in order.
	Rules [2][]Rule
	// Isolates is true for the directions in which a namespaced policy isolates its pods.
	Isolates [2]bool
}

// Rule matches connections by their peer and port.
type Rule struct {
	Name   string // empty if the API has none
	Action Action
	// A peer is one of Peers, or any if AnyPeer is set. With neither the rule matches nothing.
	Peers   []Peer
	AnyPeer bool
	// A port is one of Ports, or any of any protocol if AnyPort is set. With neither the rule
	// matches nothing.
	Ports   []Port
	AnyPort bool
}

// Peer is one kind of peers; exactly one field is set.
type Peer struct {
	Pods  *PodSet
	Block *Block
	// Name is a domain name, as cluster-wide policies have. Nothing resolves names yet, so
	// such a peer matches no address.
	Name string
}

// PodSet selects pods by the labels of their namespaces and by their own. Pods that use their
// node's network are in none.
type PodSet struct {
	Namespace  string          // the only namespace, if not empty
	Namespaces labels.Selector // else the labels of the namespace; nil selects all
	Pods       labels.Selector // the labels of the pod; nil selects all
}

// Key is the same for sets that select the same pods by the same labels.
func (s PodSet) Key() string {
	if s.Namespace != "" {
		return "=" + s.Namespace + "|" + selectorKey(s.Pods)
	}
	return selectorKey(s.Namespaces) + "|" + selectorKey(s.Pods)
}

// selectorKey is the same for selectors that select the same labels. The text of a selector of
// nothing is that of one of everything.
func selectorKey(s labels.Selector) string {
	if s == nil {
		return "*"
	}
	if _, selectable := s.Requirements(); !selectable {
		return "-"
	}
	return s.String()
}

// Has reports whether the set selects a pod, given the labels of its namespace.
func (s PodSet) Has(p *Pod, namespace labels.Set) bool {
	return s.has(p.HostNetwork, p.Namespace, p.Labels, namespace)
}

func (s PodSet) has(hostNetwork bool, name string, pod, namespace labels.Set) bool {
	switch {
	case hostNetwork:
		return false
	case s.Namespace != "" && s.Namespace != name:
		return false
	case s.Namespace == "" && s.Namespaces != nil && !s.Namespaces.Matches(namespace):
		return false
	}
	return s.Pods == nil || s.Pods.Matches(pod)
}

// Block is a range of addresses without some ranges within it.
type Block struct {
	Prefix netip.Prefix // masked
	Except []netip.Prefix
}

// Has reports whether an address is in the block.
func (b Block) Has(a netip.Addr) bool {
	if !b.Prefix.Contains(a) {
		return false
	}
	for _, e := range b.Except {
		if e.Contains(a) {
			return false
		}
	}
	return true
}

// Key is the same for blocks with the same ranges in the same order.
func (b Block) Key() string { return fmt.Sprint(b.Prefix, b.Except) }

// Port is a range of ports of a protocol, or a named port of the destination pod.
type Port struct {
	Protocol    Protocol
	First, Last uint16 // both included; 0 to 65535 are all
	Name        string // if not empty, it is looked up in the destination pod
}
