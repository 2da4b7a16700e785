package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// At names the pod that has an address.
func (e *Engine) At(a netip.Addr) (PodRef, bool) {
	p := e.peers.owners[a]
	if p == nil {
		return PodRef{}, false
	}
	return PodRef{Namespace: p.namespace.name, Name: p.name}, true
}

// Selecting lists the policies that select an endpoint, in the order in which they are asked, as
// of the last commit.
func (e *Engine) Selecting(id endpoint.ID) (refs []Ref) {
	if l := e.endpoints[id]; l != nil {
		for _, p := range l.selected {
			refs = append(refs, p.Ref)
		}
	}
	return refs
}

// InForce is the set that the tables have of an endpoint, as of the last commit.
func (e *Engine) InForce(id endpoint.ID) SetID {
	if l := e.endpoints[id]; l != nil {
		return l.number
	}
	return SetNone
}

// Selects reports whether a policy selects an endpoint of the node, as of the last commit.
func Selects(e *Engine, ref Ref) bool {
	p := e.policies.byRef[ref]
	return p != nil && p.uses > 0
}

// Policies lists all policies, those that select no endpoint of the node included.
func (e *Engine) Policies() []Ref {
	return slices.SortedFunc(maps.Keys(e.policies.byRef), Ref.Compare)
}
