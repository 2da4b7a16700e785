package kube

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// AdmissionInputs reflects what admission decides on: all SecurityGroupPolicies, and the metadata of
// all ServiceAccounts. A resource that the API server does not serve is not known to have no
// objects: it is not synced.
type AdmissionInputs struct {
	accounts metadata.Getter
	policies cache.SharedIndexInformer
	labels   cache.SharedIndexInformer
	log      *slog.Logger
}

// NewAdmissionInputs makes the reflectors, which Run runs. changed is called after every change.
func NewAdmissionInputs(c *Client, changed func(), log *slog.Logger) (*AdmissionInputs, error) {
	a := &AdmissionInputs{accounts: c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts")), log: log}
	a.policies = cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c.Policies, v1beta1.ResourceSecurityGroupPolicies, "", fields.Everything()),
		&v1beta1.SecurityGroupPolicy{}, 0, cache.Indexers{})
	accounts := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts"))
	a.labels = cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return accounts.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return accounts.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
	for _, i := range []cache.SharedIndexInformer{a.policies, a.labels} {
		if err := i.SetTransform(withoutManagers); err != nil {
			return nil, fmt.Errorf("set up an informer: %w", err)
		}
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		}); err != nil {
			return nil, fmt.Errorf("set up an informer: %w", err)
		}
	}
	return a, nil
}

// withoutManagers drops what no decision reads, and most of the memory of an account.
func withoutManagers(obj any) (any, error) {
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		o.ManagedFields, o.Annotations = nil, nil
	case *v1beta1.SecurityGroupPolicy:
		o.ManagedFields, o.Annotations = nil, nil
	}
	return obj, nil
}

// Run reflects until ctx ends.
func (a *AdmissionInputs) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { a.policies.RunWithContext(ctx); return nil })
	g.Go(func() error { a.labels.RunWithContext(ctx); return nil })
	return g.Wait()
}

// Missing is what has not been read yet, "" if all has.
func (a *AdmissionInputs) Missing() string {
	switch {
	case !a.policies.HasSynced():
		return "SecurityGroupPolicies"
	case !a.labels.HasSynced():
		return "ServiceAccounts"
	}
	return ""
}

// Policies are all policies.
func (a *AdmissionInputs) Policies() []securitygroup.Policy {
	var out []securitygroup.Policy
	for _, obj := range a.policies.GetStore().List() {
		if p, ok := obj.(*v1beta1.SecurityGroupPolicy); ok {
			out = append(out, GroupPolicy(p))
		}
	}
	return out
}

// Accounts are all service accounts.
func (a *AdmissionInputs) Accounts() []securitygroup.Account {
	var out []securitygroup.Account
	for _, obj := range a.labels.GetStore().List() {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			out = append(out, account(m))
		}
	}
	return out
}

func account(m *metav1.PartialObjectMetadata) securitygroup.Account {
	return securitygroup.Account{Ref: securitygroup.Ref{Namespace: m.Namespace, Name: m.Name}, Labels: m.Labels}
}

// Account is one service account, nil if the API server has none of its name. One that is not
// reflected yet, because it was just created, is read.
func (a *AdmissionInputs) Account(ctx context.Context, ref securitygroup.Ref) (*securitygroup.Account, error) {
	if obj, found, err := a.labels.GetStore().GetByKey(ref.String()); err == nil && found {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			out := account(m)
			return &out, nil
		}
	}
	if ref.Name == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	m, err := a.accounts.Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get service account %s: %w", ref, err)
	}
	out := account(m)
	return &out, nil
}
