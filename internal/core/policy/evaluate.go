package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Flow is the packet that opens a connection, with its real addresses: after the translation
// of a service's address, before that of the source.
type Flow struct {
	Source, Destination netip.Addr
	Protocol            Protocol
	Port                uint16 // of the destination; 0 for protocols without ports
}

func (f Flow) String() string {
	if !f.Protocol.HasPorts() {
		return fmt.Sprintf("%s → %s %s", f.Source, f.Destination, f.Protocol)
	}
	return fmt.Sprintf("%s → %s %s", f.Source, netip.AddrPortFrom(f.Destination, f.Port), f.Protocol)
}

// Basis is what a decision rests on.
type Basis string

// Bases.
const (
	NoPod        Basis = "no pod of the cluster"      // the address has no policies
	OwnAddress   Basis = "the pod itself"             // a pod cannot be kept from itself
	ResidentNode Basis = "the node that runs it"      // which cannot be kept from its pods
	ByRule       Basis = "a rule"                     // Policy and Rule say which
	Isolated     Basis = "no rule allows it"          // Isolating lists the policies
	NotIsolated  Basis = "no policy decides about it" // the default, allow
	NoNamespace  Basis = "its namespace is not known" // nothing is known of what selects the pod
)

// Decision is what the policies of one pod say of a connection.
type Decision struct {
	Allowed bool
	Basis   Basis
	Policy  Ref // of ByRule
	Tier    Tier
	Rule    int // index within the policy's rules of the direction
	// Isolating are the namespaced policies that isolate the pod in the direction, if they
	// were asked.
	Isolating []Ref
}

func (d Decision) String() string {
	verdict := "denied"
	if d.Allowed {
		verdict = "allowed"
	}
	switch d.Basis {
	case ByRule:
		return fmt.Sprintf("%s by %s, rule %d", verdict, d.Policy, d.Rule+1)
	case Isolated:
		names := make([]string, len(d.Isolating))
		for i, ref := range d.Isolating {
			names[i] = ref.String()
		}
		return fmt.Sprintf("%s: isolated by %s, and %s", verdict, strings.Join(names, ", "), d.Basis)
	default:
		return fmt.Sprintf("%s: %s", verdict, d.Basis)
	}
}

// Verdict is what both ends of a connection say. It is allowed if both allow it.
type Verdict struct {
	Egress  Decision // of the source's pod
	Ingress Decision // of the destination's pod
}

// Allowed reports whether the connection may be opened.
func (v Verdict) Allowed() bool { return v.Egress.Allowed && v.Ingress.Allowed }

// Evaluate judges a connection by the policies of both ends.
func (c *Cluster) Evaluate(f Flow) Verdict {
	return Verdict{Egress: c.Judge(c.At(f.Source), Egress, f), Ingress: c.Judge(c.At(f.Destination), Ingress, f)}
}

// Judge judges a connection by the policies of one end: its source for egress, its destination
// for ingress.
func (c *Cluster) Judge(subject *Pod, d Direction, f Flow) Decision {
	peer := f.Source
	if d == Egress {
		peer = f.Destination
	}
	switch {
	case subject == nil || subject.HostNetwork:
		return Decision{Allowed: true, Basis: NoPod}
	case slices.Contains(subject.Addresses, peer):
		return Decision{Allowed: true, Basis: OwnAddress}
	case c.resident(subject, peer):
		return Decision{Allowed: true, Basis: ResidentNode}
	}
	if _, known := c.Namespaces[subject.Namespace]; !known {
		return Decision{Basis: NoNamespace}
	}
	if decision, decided := c.ordered(Admin, subject, d, f); decided {
		return decision
	}
	if decision, decided := c.namespaced(subject, d, f); decided {
		return decision
	}
	if decision, decided := c.ordered(Baseline, subject, d, f); decided {
		return decision
	}
	return Decision{Allowed: true, Basis: NotIsolated}
}

// of returns the policies of a tier that select a pod, in order.
func (c *Cluster) of(t Tier, subject *Pod) []*Policy {
	var list []*Policy
	for i := range c.Policies {
		if p := &c.Policies[i]; p.Tier == t && p.Subject.Has(subject, c.Namespaces[subject.Namespace]) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, comparePolicies)
	return list
}

func comparePolicies(a, b *Policy) int {
	if a.Order != b.Order {
		return a.Order - b.Order
	}
	return a.Ref.Compare(b.Ref)
}

// ordered asks a tier of which the first rule that matches decides.
func (c *Cluster) ordered(t Tier, subject *Pod, d Direction, f Flow) (Decision, bool) {
	for _, p := range c.of(t, subject) {
		for i, r := range p.Rules[d] {
			if !c.matches(r, d, f) {
				continue
			}
			if r.Action == Pass {
				return Decision{}, false
			}
			return Decision{Allowed: r.Action == Accept, Basis: ByRule, Policy: p.Ref, Tier: t, Rule: i}, true
		}
	}
	return Decision{}, false
}

// namespaced asks the policies that isolate a pod: any rule of them allows.
func (c *Cluster) namespaced(subject *Pod, d Direction, f Flow) (Decision, bool) {
	var isolating []Ref
	for _, p := range c.of(Namespaced, subject) {
		if p.Isolates[d] {
			isolating = append(isolating, p.Ref)
		}
	}
	if isolating == nil {
		return Decision{}, false
	}
	for _, p := range c.of(Namespaced, subject) {
		for i, r := range p.Rules[d] {
			if p.Isolates[d] && c.matches(r, d, f) {
				return Decision{Allowed: true, Basis: ByRule, Policy: p.Ref, Tier: Namespaced, Rule: i, Isolating: isolating}, true
			}
		}
	}
	return Decision{Basis: Isolated, Tier: Namespaced, Isolating: isolating}, true
}

// matches reports whether a rule matches a connection.
func (c *Cluster) matches(r Rule, d Direction, f Flow) bool {
	peer := f.Source
	if d == Egress {
		peer = f.Destination
	}
	return c.matchesPeer(r, peer) && c.matchesPort(r, f)
}

func (c *Cluster) matchesPeer(r Rule, peer netip.Addr) bool {
	if r.AnyPeer {
		return true
	}
	pod := c.At(peer)
	for _, p := range r.Peers {
		switch {
		case p.Block != nil && p.Block.Has(peer):
			return true
		case p.Pods != nil && pod != nil:
			namespace, known := c.Namespaces[pod.Namespace]
			if known && p.Pods.Has(pod, namespace) {
				return true
			}
		}
	}
	return false
}

func (c *Cluster) matchesPort(r Rule, f Flow) bool {
	if r.AnyPort {
		return true
	}
	if !f.Protocol.HasPorts() {
		return false
	}
	for _, p := range r.Ports {
		switch {
		case p.Protocol != f.Protocol:
		case p.Name == "" && p.First <= f.Port && f.Port <= p.Last:
			return true
		case p.Name != "":
			if pod := c.At(f.Destination); pod != nil && pod.named(p.Name, f.Protocol, f.Port) {
				return true
			}
		}
	}
	return false
}
