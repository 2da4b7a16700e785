// Package groups puts security groups in force for pods without an interface of their own, by the
// engine of network policies.
//
// It decides which pods have which groups (core/securitygroup) and gives control/policy, in place
// of the objects of the cluster, the same with the policies that groups compile to
// (core/grouprules) and with pods that are labelled by their groups. Objects are control/policy's
// Objects, Pods its Pods, and Component the component of control/cni around its own, which refuses
// a pod that has groups that cannot be applied. app/agent connects them.
//
// It reads no table and writes none. It drives edge/kube: network policies, namespaces and pods,
// and SecurityGroupPolicies, service accounts and the SecurityGroups that the controller reads from
// EC2. Until these are known, pods are refused, with the codes of edge/cnirpc.
package groups

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Policies are what network policies are judged on; *kube.PolicyObjects is one.
type Policies interface {
	Known() bool
	Synced() bool
	Copied() bool
	Any() bool
	Take() kube.PolicyChanges
	Again()
	// NeedPods has pods watched without network policies as well.
	NeedPods(needed bool)
}

// Groups are what the groups of pods depend on; *kube.GroupObjects is one.
type Groups interface {
	Known() bool
	Synced() bool
	Copied() bool
	// Denied is why the API server refuses SecurityGroups; empty if it does not.
	Denied() string
	State() *kube.GroupState
	// Kept are the last groups of pods, by uid, as Keep had them saved; Keep does not block.
	Kept() map[string][]vpc.SecurityGroupID
	Keep(groups map[string][]vpc.SecurityGroupID)
}

// Deps is what Objects are made of.
type Deps struct {
	Policies Policies
	Groups   Groups
	// VPC is that of the node; empty while it is not known.
	VPC func() vpc.ID
	// Limit is how many groups a pod may have; 0 is the default of EC2's accounts.
	Limit int
	// Branches: pods may have branch interfaces. The VPC enforces the groups of such a pod, and only
	// that it is a member of them counts here. Of others, control/branch refuses at ADD those that are
	// selected, so groups are enforced of pods that came to be selected later.
	Branches bool
	// Excluded are namespaces in which the groups of policies are not enforced here, but of pods that request
	// a branch themselves, as admission adds no request there. Their pods have the groups of the node.
	Excluded []string
	// Judges reports, where pods may have branch interfaces, whether the node has none for pods that
	// are added now: these are refused here if their groups cannot be applied. Nil: it may have.
	Judges func() bool
}

// Objects are what both kinds of policies are judged on. Its methods may be called from any
// goroutine.
type Objects struct {
	Deps

	mu       sync.Mutex
	selector selector                      // of the newest state
	pods     map[policy.PodRef]pod         // of the cluster, as the API has them
	given    map[policy.PodRef]*policy.Pod // as Take returned them
	compiled map[policy.Ref]*kube.PolicyObject
	applied  map[policy.PodRef][]vpc.SecurityGroupID // the last groups of pods that had some
	kept     kept
}

// pod is a pod with its service account.
type pod struct {
	*policy.Pod
	account string
}

// New returns the objects of a cluster.
func New(d Deps) *Objects {
	return &Objects{
		Deps: d,
		pods: map[policy.PodRef]pod{}, given: map[policy.PodRef]*policy.Pod{}, compiled: map[policy.Ref]*kube.PolicyObject{},
		applied: map[policy.PodRef][]vpc.SecurityGroupID{}, kept: newKept(d.Groups.Kept()),
	}
}

// Known implements control/policy.Objects. In an unknown VPC no group can be applied.
func (o *Objects) Known() bool { return o.Policies.Known() && o.Groups.Known() && o.VPC() != "" }

// Copied implements control/policy.Objects.
func (o *Objects) Copied() bool { return o.Policies.Copied() && o.Groups.Copied() }

// Synced implements control/policy.Objects. In an unknown VPC every group is refused, and pods that
// have some would be cut off.
func (o *Objects) Synced() bool {
	o.update()
	return o.VPC() != "" && o.Policies.Synced() && o.Groups.Synced()
}

// Any implements control/policy.Objects: while a SecurityGroupPolicy exists, packets are judged.
func (o *Objects) Any() bool {
	o.update()
	return o.Policies.Any() || len(o.Groups.State().Policies) > 0
}

// Again implements control/policy.Objects.
func (o *Objects) Again() {
	o.Policies.Again()
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.given)
	clear(o.compiled)
	o.selector = selector{}
}

// Take implements control/policy.Objects. A change of groups returns each pod of which the labels
// are others by it.
func (o *Objects) Take() kube.PolicyChanges {
	changed := o.update()
	out := o.Policies.Take()
	o.mu.Lock()
	defer o.mu.Unlock()
	for ref, p := range out.Pods {
		if p == nil {
			delete(o.pods, ref)
			continue
		}
		o.pods[ref] = pod{p, out.Accounts[ref]}
	}
	taken := out.Pods
	out.Pods = map[policy.PodRef]*policy.Pod{}
	for ref, p := range taken {
		if p == nil {
			out.Pods[ref] = nil
		}
		o.give(&out, ref)
	}
	if changed {
		for ref := range o.pods {
			o.give(&out, ref)
		}
		o.compile(&out)
	}
	return out
}

// update reads the groups' state, and reports whether it changed what is selected or allowed.
func (o *Objects) update() bool {
	state, id := o.Groups.State(), o.VPC()
	o.Policies.NeedPods(len(state.Policies) > 0)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.selector.state == state && o.selector.known.VPC == id {
		return o.selector.fresh
	}
	o.selector = newSelector(state, id, o.Limit)
	return true
}

// give enters a pod, labelled, in changes, if it is another than the one that was given.
func (o *Objects) give(out *kube.PolicyChanges, ref policy.PodRef) {
	p, exists := o.pods[ref]
	if !exists {
		delete(o.given, ref)
		delete(o.applied, ref)
		return
	}
	labelled := *p.Pod
	labelled.Labels = o.labels(securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}, Labels: p.Labels, ServiceAccount: p.account, HostNetwork: p.HostNetwork,
	}, p.Addresses, false, false)
	if before := o.given[ref]; before != nil && reflect.DeepEqual(*before, labelled) {
		return
	}
	o.given[ref], out.Pods[ref] = &labelled, &labelled
}

// compile enters the policies of groups that changed.
func (o *Objects) compile(out *kube.PolicyChanges) {
	o.selector.fresh = false
	next := map[policy.Ref]*kube.PolicyObject{}
	if len(o.selector.state.Policies) > 0 {
		next = o.selector.compile()
	}
	changes := maps.Clone(out.Policies)
	if changes == nil {
		changes = map[policy.Ref]*kube.PolicyObject{}
	}
	for ref, object := range next {
		if before := o.compiled[ref]; before == nil || !reflect.DeepEqual(before, object) {
			changes[ref] = object
		}
	}
	for ref := range o.compiled {
		if next[ref] == nil {
			changes[ref] = nil
		}
	}
	o.compiled, out.Policies = next, changes
}

// selector decides by one state of the groups.
type selector struct {
	state  *kube.GroupState
	fresh  bool // Take has not returned what it changes yet
	set    *securitygroup.Set
	known  securitygroup.Known
	groups []grouprules.Group
	pools  grouprules.Pools
}

func newSelector(state *kube.GroupState, id vpc.ID, limit int) selector {
	s := selector{state: state, fresh: true, set: securitygroup.Compile(state.Policies)}
	s.known = securitygroup.Known{VPC: id, Limit: limit, Groups: map[string]securitygroup.Group{}}
	for _, name := range slices.Sorted(maps.Keys(state.Groups)) {
		g := state.Groups[name]
		if g.Absent {
			s.known.Groups[string(name)] = securitygroup.Group{}
			continue
		}
		s.known.Groups[string(name)] = securitygroup.Group{Exists: true, VPCs: []vpc.ID{g.VPC}}
		if g.VPC == id {
			s.groups = append(s.groups, g.Group)
		}
	}
	s.pools = grouprules.NewPools(s.groups)
	return s
}

// decide decides for a pod.
func (s *selector) decide(p securitygroup.Pod) securitygroup.Decision {
	account := s.state.Accounts[securitygroup.Ref{Namespace: p.Namespace, Name: p.ServiceAccount}]
	if p.ServiceAccount == "" {
		account = nil
	}
	return s.known.Judge(s.set.Select(p, account))
}

// labels are the labels of a pod with those of its groups. A pod that is refused keeps the groups
// that it has; without any it is cut off. Of a pod with a branch nothing is denied. Whether a pod of another
// node requests a branch is not known. The caller holds the lock.
func (o *Objects) labels(p securitygroup.Pod, addresses []netip.Addr, branch, requests bool) labels.Set {
	ref := policy.PodRef{Namespace: p.Namespace, Name: p.Name}
	excluded := !requests && slices.Contains(o.Excluded, p.Namespace)
	d := securitygroup.Decision{Verdict: securitygroup.NotSelected}
	if !excluded {
		d = o.selector.decide(p)
	}
	g := grouprules.Groups{Isolated: d.Verdict != securitygroup.NotSelected}
	switch d.Verdict {
	case securitygroup.Selected:
		for _, id := range d.Groups {
			g.Own = append(g.Own, vpc.SecurityGroupID(id))
		}
		o.applied[ref] = g.Own
	case securitygroup.Refused:
		g.Own = o.applied[ref]
	case securitygroup.NotSelected:
		if !excluded {
			delete(o.applied, ref)
		}
		if !p.HostNetwork {
			g.Inherited = o.selector.pools.Of(addresses)
		}
	}
	if branch {
		g = grouprules.Groups{Inherited: slices.Concat(g.Own, g.Inherited)}
	}
	return grouprules.Labels(p.Labels, g)
}

// compile returns the policies of the groups.
func (s *selector) compile() map[policy.Ref]*kube.PolicyObject {
	out := map[policy.Ref]*kube.PolicyObject{}
	for _, c := range grouprules.Compile(s.groups) {
		object := &kube.PolicyObject{Policy: c.Policy, Problems: c.Problems}
		if g, exists := s.state.Groups[vpc.SecurityGroupID(c.Policy.Ref.Name)]; exists {
			object.UID, object.Generation = g.UID, g.Generation
			object.Problems = slices.Concat(g.Problems, c.Problems)
		}
		out[c.Policy.Ref] = object
	}
	return out
}
