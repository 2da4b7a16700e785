package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// GroupPolicyOptions of GroupPolicies.
type GroupPolicyOptions struct {
	Client *Client
	// SnapshotPath is the file that the objects are saved to; its content is used until the API
	// server has listed them.
	SnapshotPath string
	Log          *slog.Logger
}

// GroupPolicies reflects what decides which pods have security groups of their own: the
// SecurityGroupPolicies and the labels of service accounts. Its resources are fixed: nothing is
// inferred from what the server says it serves, so a server without policies, and one that does not
// serve them at the moment, are not the same. Its methods may be called from any goroutine.
type GroupPolicies struct {
	opts  GroupPolicyOptions
	dirty chan struct{} // capacity 1: the snapshot on disk is outdated

	mu       sync.Mutex
	seeded   bool // from a snapshot
	policies mirror[securitygroup.Policy]
	accounts mirror[securitygroup.Account]
	compiled *securitygroup.Set // nil: policies changed since
}

// mirror is the objects of one resource.
type mirror[T any] struct {
	listed bool
	rows   map[securitygroup.Ref]T
}

// groupPolicySnapshot is the objects as they are saved to disk.
type groupPolicySnapshot struct {
	Version  int                     `json:"version"`
	Policies []securitygroup.Policy  `json:"policies"`
	Accounts []securitygroup.Account `json:"accounts"`
}

const groupPolicyVersion = 1

// NewGroupPolicies reads the snapshot. One that cannot be read is logged and not used: nothing is
// known then until the API server has listed the objects.
func NewGroupPolicies(o GroupPolicyOptions) *GroupPolicies {
	g := &GroupPolicies{opts: o, dirty: make(chan struct{}, 1)}
	g.policies.rows, g.accounts.rows = map[securitygroup.Ref]securitygroup.Policy{}, map[securitygroup.Ref]securitygroup.Account{}
	text, err := os.ReadFile(o.SnapshotPath)
	if errors.Is(err, fs.ErrNotExist) {
		return g
	}
	var saved groupPolicySnapshot
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err == nil && saved.Version != groupPolicyVersion {
		err = fmt.Errorf("it has version %d, this build reads %d", saved.Version, groupPolicyVersion)
	}
	if err != nil {
		o.Log.Error("snapshot of SecurityGroupPolicies not used", "path", o.SnapshotPath, "err", err)
		return g
	}
	for _, p := range saved.Policies {
		g.policies.rows[p.Ref] = p
	}
	for _, a := range saved.Accounts {
		g.accounts.rows[a.Ref] = a
	}
	g.seeded = true
	return g
}

// Decide decides for a pod by what is known. It reports false if policies or accounts come neither
// from the API server nor from a snapshot.
func (g *GroupPolicies) Decide(pod securitygroup.Pod) (securitygroup.Decision, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.seeded && (!g.policies.listed || !g.accounts.listed) {
		return securitygroup.Decision{}, false
	}
	if g.compiled == nil {
		g.compiled = securitygroup.Compile(slices.Collect(maps.Values(g.policies.rows)))
	}
	var account *securitygroup.Account
	if a, ok := g.accounts.rows[securitygroup.Ref{Namespace: pod.Namespace, Name: pod.ServiceAccount}]; ok {
		account = &a
	}
	return g.compiled.Select(pod, account), true
}

// Run watches until ctx ends, then returns nil. It retries without a limit.
func (g *GroupPolicies) Run(ctx context.Context) error {
	policies := cache.NewListWatchFromClient(g.opts.Client.Policies, v1beta1.ResourceSecurityGroupPolicies, metav1.NamespaceAll, fields.Everything())
	client := g.opts.Client.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts"))
	accounts := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: client.Watch,
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		runReflector(ctx, reflector("securitygrouppolicies", &v1beta1.SecurityGroupPolicy{}, policies, policyRowsOf(g, &g.policies, policyOf, func(p securitygroup.Policy) securitygroup.Ref { return p.Ref })), g.opts.Log)
	})
	wg.Go(func() {
		runReflector(ctx, reflector("serviceaccounts", &metav1.PartialObjectMetadata{}, accounts, policyRowsOf(g, &g.accounts, accountOf, func(a securitygroup.Account) securitygroup.Ref { return a.Ref })), g.opts.Log)
	})
	wg.Go(func() { g.save(ctx) })
	wg.Wait()
	return nil
}

func policyOf(obj any) (securitygroup.Policy, error) {
	p, ok := obj.(*v1beta1.SecurityGroupPolicy)
	if !ok {
		return securitygroup.Policy{}, fmt.Errorf("%T is no SecurityGroupPolicy", obj)
	}
	return securitygroup.Policy{
		Ref: securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}, PodSelector: p.Spec.PodSelector,
		ServiceAccountSelector: p.Spec.ServiceAccountSelector, Groups: p.Spec.SecurityGroups.Groups,
	}, nil
}

func accountOf(obj any) (securitygroup.Account, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return securitygroup.Account{}, fmt.Errorf("read service account %T: %w", obj, err)
	}
	return securitygroup.Account{Ref: securitygroup.Ref{Namespace: m.GetNamespace(), Name: m.GetName()}, Labels: m.GetLabels()}, nil
}

// policyRowsOf enters the objects of a resource in its mirror.
func policyRowsOf[T any](g *GroupPolicies, to *mirror[T], convert func(any) (T, error), ref func(T) securitygroup.Ref) rows[T] {
	change := func(f func()) {
		g.mu.Lock()
		f()
		g.compiled = nil
		g.mu.Unlock()
		signal(g.dirty)
	}
	return rows[T]{
		convert: convert,
		set:     func(row T) { change(func() { to.rows[ref(row)] = row }) },
		remove: func(namespace, name string) {
			change(func() { delete(to.rows, securitygroup.Ref{Namespace: namespace, Name: name}) })
		},
		replace: func(list []T) {
			change(func() {
				clear(to.rows)
				for _, row := range list {
					to.rows[ref(row)] = row
				}
				to.listed = true
			})
		},
	}
}

// save writes the snapshot after changes, at most once per saveEvery, and not before both resources
// were listed.
func (g *GroupPolicies) save(ctx context.Context) {
	pause := time.NewTicker(saveEvery)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.dirty:
		}
		if err := g.write(); err != nil {
			g.opts.Log.Warn("snapshot of SecurityGroupPolicies not saved", "path", g.opts.SnapshotPath, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

func (g *GroupPolicies) write() error {
	g.mu.Lock()
	complete := g.seeded || g.policies.listed && g.accounts.listed
	s := groupPolicySnapshot{Version: groupPolicyVersion, Policies: slices.Collect(maps.Values(g.policies.rows)), Accounts: slices.Collect(maps.Values(g.accounts.rows))}
	g.mu.Unlock()
	if g.opts.SnapshotPath == "" || !complete {
		return nil
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return errors.Join(atomicfile.RemoveLeftovers(g.opts.SnapshotPath), atomicfile.Write(g.opts.SnapshotPath, text, 0o600))
}
