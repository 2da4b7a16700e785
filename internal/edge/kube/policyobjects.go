package kube

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// PolicyOptions of PolicyObjects.
type PolicyOptions struct {
	Client *Client
	// SnapshotPath is the file that policies and namespaces are saved to; pods are saved to
	// the file of that name with the suffix ".peers". Empty saves none. The content at start
	// is used until the API server has listed the objects. It holds objects of the cluster
	// and nothing of the node, so a snapshot of another node of the same cluster is as good;
	// the caller removes that of another cluster.
	SnapshotPath string
	// KeepPods uses the pods that were saved without policies too; see NeedPods.
	KeepPods bool
	// Changed is called after each change that Take returns; it must not block. May be nil.
	Changed func()
	Log     *slog.Logger
}

// PolicyObjects reflects what network policies are judged on: the NetworkPolicies, the labels
// of the namespaces, and, only while there is a policy, the pods of the cluster that have
// addresses of their own. Its methods may be called from any goroutine and before Run.
type PolicyObjects struct {
	opts     PolicyOptions
	convert  *podConverter
	policies chan struct{} // capacity 1: a policy was added or deleted
	dirty    chan struct{} // capacity 1: the snapshot on disk is outdated
	moved    chan struct{} // capacity 1: the pods on disk are outdated
	needed   atomic.Bool   // pods are watched without policies as well

	mu    sync.Mutex
	known policyState
}

// PolicyChanges are the objects that changed, as they are now. What it points to is shared
// and must not be modified.
type PolicyChanges struct {
	Policies   map[policy.Ref]*PolicyObject  // nil: deleted
	Namespaces map[string]*labels.Set        // nil: deleted
	Pods       map[policy.PodRef]*policy.Pod // nil: deleted, ended, or without an address
	// Accounts are the service accounts of Pods; empty for static pods.
	Accounts map[policy.PodRef]string
	// Since is when the first of these changes was received; zero: none was since the last call.
	Since time.Time
	// Written is when the API server wrote the oldest change of a policy among them, in whole
	// seconds of its clock. It is zero without a change that was seen by a watch and has a time of
	// its own; see policyState.watched.
	Written time.Time
}

// PolicyObject is a policy of the API with what the conversion found in it.
type PolicyObject struct {
	Policy policy.Policy
	// Problems are the parts that cannot be honoured; see policy.FromNetworkPolicy.
	Problems   []string
	UID        string
	Generation int64
	// Created is when the object was last written, as its managed fields say, else when it
	// was created; in whole seconds of the API server's clock.
	Created time.Time
}

// NewPolicyObjects reads the snapshot. One that cannot be read is set aside as
// SnapshotPath.corrupt and logged: until the API server has listed policies and namespaces,
// nothing is known then.
func NewPolicyObjects(o PolicyOptions) *PolicyObjects {
	p := &PolicyObjects{
		opts:     o,
		convert:  &podConverter{},
		policies: make(chan struct{}, 1),
		dirty:    make(chan struct{}, 1),
		moved:    make(chan struct{}, 1),
	}
	if o.SnapshotPath != "" {
		p.loadSnapshot()
	}
	return p
}

// Run watches until ctx ends, then returns nil. It retries without a limit while the server
// does not respond.
func (p *PolicyObjects) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.reflect(ctx, p.policyReflector()) })
	wg.Go(func() { p.reflect(ctx, p.namespaceReflector()) })
	wg.Go(func() { p.watchPods(ctx) })
	if p.opts.SnapshotPath != "" {
		wg.Go(func() { p.saveObjects(ctx) })
		wg.Go(func() { p.savePeers(ctx) })
	}
	<-ctx.Done()
	return nil
}

// Known reports whether policies and namespaces come from the API server or a snapshot.
func (p *PolicyObjects) Known() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known.seeded || p.known.listed()
}

// Copied reports whether a snapshot had policies, namespaces and pods.
func (p *PolicyObjects) Copied() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known.copied
}

// Synced reports whether policies, namespaces and, if there is a policy, pods come from the
// API server. It stays true when the server becomes unreachable later, and is false while
// the first policy of the cluster is known and the pods are not.
func (p *PolicyObjects) Synced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known.listed() && (!p.watchesPods() || p.known.synced.pods)
}

// NeedPods has pods watched although there is no policy, or ends that: other objects than policies
// depend on them.
func (p *PolicyObjects) NeedPods(needed bool) {
	if p.needed.Swap(needed) != needed {
		signal(p.policies)
	}
}

// watchesPods reports whether pods are watched, or are to be. The caller holds the lock.
func (p *PolicyObjects) watchesPods() bool { return p.needed.Load() || len(p.known.policies) > 0 }

// Any reports whether at least one policy is known.
func (p *PolicyObjects) Any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.known.policies) > 0
}

// Take returns what changed since the last call. The first call returns all that is known.
// Several changes of an object are one, with its last state; an object that came and went
// between two calls is returned as deleted.
func (p *PolicyObjects) Take() PolicyChanges {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.known.pending
	p.known.pending = PolicyChanges{}
	return out
}

// signal wakes the receiver of a channel with capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// changed is called after the lock is released.
func (p *PolicyObjects) changed(files ...chan struct{}) {
	for _, f := range files {
		signal(f)
	}
	if p.opts.Changed != nil {
		p.opts.Changed()
	}
}
