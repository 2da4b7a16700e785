package policy

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// equalPolicies reports whether two policies have the same content.
func equalPolicies(a, b *Policy) bool {
	return a.Ref == b.Ref && a.Tier == b.Tier && a.Order == b.Order && a.Isolates == b.Isolates && equalPodSets(a.Subject, b.Subject) &&
		slices.EqualFunc(a.Rules[Ingress], b.Rules[Ingress], equalRules) && slices.EqualFunc(a.Rules[Egress], b.Rules[Egress], equalRules)
}

func equalRules(a, b Rule) bool {
	return a.Name == b.Name && a.Action == b.Action && a.AnyPeer == b.AnyPeer && a.AnyPort == b.AnyPort &&
		slices.EqualFunc(a.Peers, b.Peers, equalPeers) && slices.Equal(a.Ports, b.Ports)
}

func equalPeers(a, b Peer) bool {
	if a.Name != b.Name || (a.Pods == nil) != (b.Pods == nil) || (a.Block == nil) != (b.Block == nil) {
		return false
	}
	if a.Pods != nil && !equalPodSets(*a.Pods, *b.Pods) {
		return false
	}
	return a.Block == nil || a.Block.Prefix == b.Block.Prefix && slices.Equal(a.Block.Except, b.Block.Except)
}

func equalPodSets(a, b PodSet) bool {
	return a.Namespace == b.Namespace && equalSelectors(a.Pods, b.Pods) && (a.Namespace != "" || equalSelectors(a.Namespaces, b.Namespaces))
}

func equalSelectors(a, b labels.Selector) bool { return selectorKey(a) == selectorKey(b) }
