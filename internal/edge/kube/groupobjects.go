package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// GroupOptions of GroupObjects.
type GroupOptions struct {
	Client *Client
	// Accounts and Groups have service accounts and SecurityGroups reflected, besides policies.
	Accounts, Groups bool
	// SnapshotPath is the file that all objects are saved to; empty saves none. The content at
	// start is used until the API server has listed the objects. It holds nothing of the node but what Keep
	// has saved, by uids of pods.
	SnapshotPath string
	// Changed is called after each change of State; it must not block. May be nil.
	Changed func()
	Log     *slog.Logger
}

// GroupObjects reflects what security groups of pods depend on: the SecurityGroupPolicies, the labels
// of the service accounts, and, for pods without branches, the SecurityGroups that the controller has
// read from EC2. Its resources are fixed: nothing is inferred from what the server says it serves, so
// a server without policies, and one that does not serve them at the moment, are not the same. Its
// methods may be called from any goroutine and before Run.
type GroupObjects struct {
	opts  GroupOptions
	dirty chan struct{} // capacity 1: the snapshot on disk is outdated

	mu    sync.Mutex
	known groupState
}

// GroupState is what is known at one time. It must not be modified.
type GroupState struct {
	Version  uint64 // greater for each change
	Policies []securitygroup.Policy
	Accounts map[securitygroup.Ref]*securitygroup.Account
	Groups   map[vpc.SecurityGroupID]GroupObject
}

// GroupObject is a SecurityGroup of the API, as a value.
type GroupObject struct {
	Group grouprules.Group
	VPC   vpc.ID
	// Absent: EC2 has no such group.
	Absent bool
	UID    string
	// Problems are the parts of the object that could not be read. They allow nothing.
	Problems   []string
	Generation int64
}

// NewGroupObjects reads the snapshot. One that cannot be read is set aside as SnapshotPath.corrupt
// and logged; nothing is known then until the API server has listed the objects.
func NewGroupObjects(o GroupOptions) *GroupObjects {
	g := &GroupObjects{opts: o, dirty: make(chan struct{}, 1), known: newGroupState(o)}
	if o.SnapshotPath != "" {
		g.load()
	}
	return g
}

// Known reports whether the objects come from the API server or a snapshot.
func (g *GroupObjects) Known() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.seeded || g.known.answered()
}

// Copied reports whether a snapshot had the objects.
func (g *GroupObjects) Copied() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.seeded
}

// Synced reports whether the objects come from the API server. It stays true when the server
// becomes unreachable later. It is true without SecurityGroups too if the server denies them.
func (g *GroupObjects) Synced() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.answered()
}

// Denied is why the API server refuses SecurityGroups now, and what to do; empty if it does not, or has not
// answered. Those that were read before, or by an earlier process, stay in force.
func (g *GroupObjects) Denied() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known.groups.denied == "" {
		return ""
	}
	return "the API server does not allow the agent to read securitygroups.trunkline.dev, the groups that nodes enforce (" + g.known.groups.denied +
		"): apply deploy/components/node-groups, which the components trunks, managed and auto include, and deploy/crds"
}

// State is what is known now. Without a change it is the same as that of the last call.
func (g *GroupObjects) State() *GroupState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.state()
}

// Kept are the groups that Keep has saved, also by an earlier process.
func (g *GroupObjects) Kept() map[string][]vpc.SecurityGroupID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.kept
}

// Keep saves the last groups of pods, by uid, with the snapshot. They must not be modified after the call.
func (g *GroupObjects) Keep(groups map[string][]vpc.SecurityGroupID) {
	g.mu.Lock()
	g.known.kept = groups
	g.mu.Unlock()
	signal(g.dirty)
}

// Decide decides for a pod by the policies, whether its groups are known or not. It reports false if
// the objects come neither from the API server nor from a snapshot.
func (g *GroupObjects) Decide(pod securitygroup.Pod) (securitygroup.Decision, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.known.seeded && !g.known.selects() {
		return securitygroup.Decision{}, false
	}
	return g.known.decide(pod), true
}

// Run watches until ctx ends, then returns nil. It retries without a limit while the server
// does not respond. A definition that does not exist is an interruption as any other: what is not
// served is not known to be absent. Of SecurityGroups it is noted, as that they may not be read: see Denied.
func (g *GroupObjects) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	run := func(r *cache.Reflector, failed func(error)) {
		wg.Go(func() { runReflector(ctx, r, g.opts.Log, failed) })
	}
	run(g.policyReflector(), nil)
	if g.opts.Accounts {
		run(g.accountReflector(), nil)
	}
	if g.opts.Groups {
		run(g.groupReflector(), func(err error) { g.update(func() bool { return g.known.groups.deny(err) }) })
	}
	if g.opts.SnapshotPath != "" {
		wg.Go(func() { g.save(ctx) })
	}
	<-ctx.Done()
	return nil
}

func (g *GroupObjects) policyReflector() *cache.Reflector {
	lw := cache.NewListWatchFromClient(g.opts.Client.Policies, vpcresources.ResourceSecurityGroupPolicies, metav1.NamespaceAll, fields.Everything())
	return reflector(vpcresources.ResourceSecurityGroupPolicies, &vpcresources.SecurityGroupPolicy{}, lw, rowsOf(g, func() *reflected[securitygroup.Policy] { return &g.known.policies }, policyEntryOf))
}

func (g *GroupObjects) accountReflector() *cache.Reflector {
	accounts := g.opts.Client.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts"))
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return accounts.List(ctx, o)
		},
		WatchFuncWithContext: accounts.Watch,
	}
	return reflector("serviceaccounts", &metav1.PartialObjectMetadata{}, lw, rowsOf(g, func() *reflected[securitygroup.Account] { return &g.known.accounts }, accountEntryOf))
}

func (g *GroupObjects) groupReflector() *cache.Reflector {
	lw := cache.NewListWatchFromClient(g.opts.Client.Trunkline, trunkline.ResourceSecurityGroups, metav1.NamespaceAll, fields.Everything())
	return reflector(trunkline.ResourceSecurityGroups, &trunkline.SecurityGroup{}, lw, rowsOf(g, func() *reflected[groupSpec] { return &g.known.groups }, groupSpecOf))
}

// rowsOf is the store of a reflector that enters objects in what is known.
func rowsOf[T any](g *GroupObjects, of func() *reflected[T], convert func(obj any) (entry[T], error)) rows[entry[T]] {
	return rows[entry[T]]{
		convert: convert,
		set:     func(e entry[T]) { g.update(func() bool { return of().set(e) }) },
		remove: func(namespace, name string) {
			g.update(func() bool { return of().remove(securitygroup.Ref{Namespace: namespace, Name: name}) })
		},
		replace: func(list []entry[T]) { g.update(func() bool { return of().replace(list) }) },
	}
}

func (g *GroupObjects) update(change func() bool) {
	g.mu.Lock()
	changed := change()
	if changed {
		g.known.changed()
	}
	g.mu.Unlock()
	if !changed {
		return
	}
	signal(g.dirty)
	if g.opts.Changed != nil {
		g.opts.Changed()
	}
}

// entry is an object as it is kept.
type entry[T any] struct {
	Ref   securitygroup.Ref `json:"ref"`
	Value T                 `json:"value"`
}

func policyEntryOf(obj any) (entry[securitygroup.Policy], error) {
	in, ok := obj.(*vpcresources.SecurityGroupPolicy)
	if !ok {
		return entry[securitygroup.Policy]{}, fmt.Errorf("convert %T: not a SecurityGroupPolicy", obj)
	}
	p := GroupPolicy(in)
	return entry[securitygroup.Policy]{p.Ref, p}, nil
}

// GroupPolicy is a SecurityGroupPolicy of the API, as a value.
func GroupPolicy(in *vpcresources.SecurityGroupPolicy) securitygroup.Policy {
	return securitygroup.Policy{
		Ref: securitygroup.Ref{Namespace: in.Namespace, Name: in.Name}, PodSelector: in.Spec.PodSelector,
		ServiceAccountSelector: in.Spec.ServiceAccountSelector, Groups: in.Spec.SecurityGroups.Groups,
	}
}

func accountEntryOf(obj any) (entry[securitygroup.Account], error) {
	in, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return entry[securitygroup.Account]{}, fmt.Errorf("convert %T: not the metadata of a ServiceAccount", obj)
	}
	a := account(in)
	return entry[securitygroup.Account]{a.Ref, a}, nil
}

// groupSpec is what is kept of a SecurityGroup.
type groupSpec struct {
	UID        string                      `json:"uid"`
	Generation int64                       `json:"generation"`
	Spec       trunkline.SecurityGroupSpec `json:"spec"`
}

func groupSpecOf(obj any) (entry[groupSpec], error) {
	in, ok := obj.(*trunkline.SecurityGroup)
	if !ok {
		return entry[groupSpec]{}, fmt.Errorf("convert %T: not a SecurityGroup", obj)
	}
	return entry[groupSpec]{securitygroup.Ref{Name: in.Name}, groupSpec{string(in.UID), in.Generation, in.Spec}}, nil
}
