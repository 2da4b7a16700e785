package conformance

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// Correction is a set of changes to what cyclonus is asked, or to its answer, so that it follows
// the text of one class each.
type Correction uint8

// Corrections, one for each class.
const (
	notIn Correction = 1 << iota
	emptyValue
	ownAddress
	residentNode
	everyName

	everyCorrection = notIn | emptyValue | ownAddress | residentNode | everyName
)

// has reports whether a set has a correction.
func (c Correction) has(one Correction) bool { return c&one != 0 }

// Answer is whether a connection is allowed at its source and at its destination.
type Answer struct{ Egress, Ingress bool }

// Oracle judges the connections of a cluster by cyclonus's matcher.
type Oracle struct {
	cluster  *Cluster
	simplify bool // as cyclonus does before it probes a cluster
	built    map[Correction]*matcher.Policy
}

// NewOracle returns the oracle of a cluster, with cyclonus's policies simplified or not.
func NewOracle(c *Cluster, simplify bool) *Oracle {
	return &Oracle{cluster: c, simplify: simplify, built: map[Correction]*matcher.Policy{}}
}

// Judge judges a connection. Without corrections the answer is cyclonus's own.
func (o *Oracle) Judge(f policy.Flow, with Correction) Answer {
	source, destination := o.cluster.at(f.Source), o.cluster.at(f.Destination)
	answer := Answer{}
	policies := o.policies(with)
	for _, name := range portNames(destination, f, with.has(everyName)) {
		result := policies.IsTrafficAllowed(&matcher.Traffic{
			Source:           o.peer(source, f.Source),
			Destination:      o.peer(destination, f.Destination),
			ResolvedPort:     int(f.Port),
			ResolvedPortName: name,
			Protocol:         corev1.Protocol(f.Protocol.String()),
		})
		answer.Egress = answer.Egress || result.Egress.IsAllowed()
		answer.Ingress = answer.Ingress || result.Ingress.IsAllowed()
	}
	for _, end := range []struct {
		pod     *policy.Pod
		peer    netip.Addr
		allowed *bool
	}{{source, f.Destination, &answer.Egress}, {destination, f.Source, &answer.Ingress}} {
		if end.pod == nil {
			continue
		}
		own := with.has(ownAddress) && slices.Contains(end.pod.Addresses, end.peer)
		*end.allowed = *end.allowed || own || with.has(residentNode) && o.cluster.resident(end.pod, end.peer)
	}
	return answer
}

// peer describes an end of a connection. Pods with their node's network are outside of the
// cluster, as nodes are: cyclonus has no word for them.
func (o *Oracle) peer(pod *policy.Pod, a netip.Addr) *matcher.TrafficPeer {
	p := &matcher.TrafficPeer{IP: a.String()}
	if pod != nil {
		p.Internal = &matcher.InternalPeer{PodLabels: pod.Labels, NamespaceLabels: o.cluster.Namespaces[pod.Namespace], Namespace: pod.Namespace}
	}
	return p
}

// portNames are the names that the destination has for the port: cyclonus is asked with one.
// The empty name stands for a port without one.
func portNames(pod *policy.Pod, f policy.Flow, every bool) (names []string) {
	if pod != nil {
		for _, p := range pod.Ports {
			if p.Port == f.Port && p.Protocol == f.Protocol {
				names = append(names, p.Name)
			}
		}
	}
	switch {
	case names == nil:
		return []string{""}
	case !every:
		return names[:1]
	default:
		return names
	}
}

// policies are those of the cluster, as cyclonus has them.
func (o *Oracle) policies(with Correction) *matcher.Policy {
	with &= notIn | emptyValue
	if o.built[with] == nil {
		var list []*networkingv1.NetworkPolicy
		for _, np := range o.cluster.Policies {
			list = append(list, expand(defaulted(np), with)...)
		}
		o.built[with] = matcher.BuildNetworkPolicies(o.simplify, list)
	}
	return o.built[with]
}

// defaulted is a policy as the API server stores it: cyclonus reads no other.
//
// Source: SetDefaults_NetworkPolicy of k8s.io/kubernetes/pkg/apis/networking/v1.
func defaulted(np *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	np = np.DeepCopy()
	if len(np.Spec.PolicyTypes) == 0 {
		np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(np.Spec.Egress) != 0 {
			np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	return np
}

// expand replaces the selectors of a policy by some that cyclonus reads as Kubernetes does. One
// that is read as the union of several becomes several policies, or several peers.
func expand(np *networkingv1.NetworkPolicy, with Correction) (list []*networkingv1.NetworkPolicy) {
	if !with.has(notIn) && !with.has(emptyValue) {
		return []*networkingv1.NetworkPolicy{np}
	}
	peers := func(from []networkingv1.NetworkPolicyPeer) (to []networkingv1.NetworkPolicyPeer) {
		for _, p := range from {
			for _, pods := range alternatives(p.PodSelector, with) {
				for _, namespaces := range alternatives(p.NamespaceSelector, with) {
					to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: p.IPBlock, PodSelector: pods, NamespaceSelector: namespaces})
				}
			}
		}
		return to
	}
	for _, subject := range alternatives(&np.Spec.PodSelector, with) {
		one := np.DeepCopy()
		one.Spec.PodSelector = *subject
		for i := range one.Spec.Ingress {
			one.Spec.Ingress[i].From = peers(np.Spec.Ingress[i].From)
		}
		for i := range one.Spec.Egress {
			one.Spec.Egress[i].To = peers(np.Spec.Egress[i].To)
		}
		list = append(list, one)
	}
	return list
}

// alternatives are selectors that together select what a selector does.
func alternatives(s *metav1.LabelSelector, with Correction) []*metav1.LabelSelector {
	if s == nil {
		return []*metav1.LabelSelector{nil}
	}
	list := []*metav1.LabelSelector{{MatchLabels: map[string]string{}}}
	each := func(choices ...metav1.LabelSelectorRequirement) {
		var next []*metav1.LabelSelector
		for _, have := range list {
			for _, r := range choices {
				one := have.DeepCopy()
				one.MatchExpressions = append(one.MatchExpressions, r)
				next = append(next, one)
			}
		}
		list = next
	}
	plain := list[0].MatchLabels
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if value := s.MatchLabels[key]; value != "" || !with.has(emptyValue) {
			plain[key] = value
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if s.MatchLabels[key] == "" && with.has(emptyValue) {
			each(metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{""}})
		}
	}
	for _, r := range s.MatchExpressions {
		if r.Operator == metav1.LabelSelectorOpNotIn && with.has(notIn) {
			each(r, metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOpDoesNotExist})
			continue
		}
		each(r)
	}
	return list
}
