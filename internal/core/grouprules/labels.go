package grouprules

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Labels of pods that compiled policies select by. Labels of these domains that a pod has in the
// API are removed: a user must not be able to make a pod a member of a group.
const (
	labelDomain   = "groups.trunkline.dev"
	isolatedLabel = labelDomain + "/isolated"
	labelValue    = "true"
)

// SubjectLabel is that of pods to which the rules of a group apply.
func SubjectLabel(id vpc.SecurityGroupID) string { return "subject." + labelDomain + "/" + string(id) }

// MemberLabel is that of pods that a reference to a group matches.
func MemberLabel(id vpc.SecurityGroupID) string { return "member." + labelDomain + "/" + string(id) }

// Groups are the groups of a pod.
type Groups struct {
	// Isolated: groups apply to the pod. Without any of them it may neither send nor receive,
	// as one that is selected and for which the groups are not known.
	Isolated bool
	// Own are the groups that policies give the pod.
	Own []vpc.SecurityGroupID
	// Inherited are those of the interface that has the address of a pod without own groups.
	Inherited []vpc.SecurityGroupID
}

// Labels returns the labels by which compiled policies know a pod: its own, and those of its
// groups. The result may be the argument, which is not modified.
func Labels(own labels.Set, g Groups) labels.Set {
	add := labels.Set{}
	if g.Isolated {
		add[isolatedLabel] = labelValue
		for _, id := range g.Own {
			add[SubjectLabel(id)], add[MemberLabel(id)] = labelValue, labelValue
		}
	} else {
		for _, id := range g.Inherited {
			add[MemberLabel(id)] = labelValue
		}
	}
	forged := false
	for key := range own {
		forged = forged || reserved(key)
	}
	if len(add) == 0 && !forged {
		return own
	}
	out := maps.Clone(own)
	maps.DeleteFunc(out, func(key, _ string) bool { return reserved(key) })
	if out == nil {
		out = labels.Set{}
	}
	maps.Copy(out, add)
	return out
}

// reserved reports whether a label is one of Labels.
func reserved(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	return found && (domain == labelDomain || strings.HasSuffix(domain, "."+labelDomain))
}

// Pools finds the groups of the interface that has an address for pods.
type Pools struct {
	groups []Group // that a rule refers to, by id
}

// NewPools returns the pools of the groups that rules refer to. Pods are members of others as well,
// which no verdict depends on.
func NewPools(groups []Group) Pools {
	referred := map[vpc.SecurityGroupID]bool{}
	for _, g := range groups {
		for _, r := range g.Rules {
			referred[r.Group] = true
		}
	}
	list := slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return !referred[g.ID] || len(g.Pools) == 0 })
	for i := range list {
		list[i].Pools = Aggregate(list[i].Pools)
	}
	slices.SortFunc(list, func(a, b Group) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return Pools{list}
}

// Of are the groups that the interfaces of all addresses of a pod have.
func (p Pools) Of(addresses []netip.Addr) (ids []vpc.SecurityGroupID) {
	for _, g := range p.groups {
		if len(addresses) > 0 && !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !within(g.Pools, a) }) {
			ids = append(ids, g.ID)
		}
	}
	return ids
}

// within reports whether an address is in one of disjoint ranges, in order.
func within(ranges []netip.Prefix, a netip.Addr) bool {
	at, exact := slices.BinarySearchFunc(ranges, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if exact {
		return true
	}
	return at > 0 && ranges[at-1].Contains(a)
}
