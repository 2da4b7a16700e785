package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// SelectionObjects is the cache of which pods of the cluster get which security groups: pods,
// SecurityGroupPolicies and service accounts. Its methods may be called from any goroutine.
type SelectionObjects struct {
	client   *Client
	log      *slog.Logger
	pods     cache.SharedIndexInformer
	policies cache.SharedIndexInformer
	accounts cache.SharedIndexInformer

	mu  sync.Mutex
	set *securitygroup.Set // of the policies; nil: to be compiled
}

// NewSelectionObjects prepares the informers. changed is called after each change; it must not block.
func NewSelectionObjects(c *Client, changed func(BranchChange), log *slog.Logger) *SelectionObjects {
	core := c.Core.CoreV1().RESTClient()
	s := &SelectionObjects{
		client: c, log: log,
		pods:     informer(core, "pods", &corev1.Pod{}, fields.Everything(), stripBranchPod),
		policies: informer(c.Policies, v1beta1.ResourceSecurityGroupPolicies, &v1beta1.SecurityGroupPolicy{}, fields.Everything(), stripManaged),
		accounts: informer(core, "serviceaccounts", &corev1.ServiceAccount{}, fields.Everything(), stripAccount),
	}
	mustNotRun(nil, s.pods.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) { return []string{nodeOf(obj)}, nil }}))
	report(s.informers(), func(obj any) {
		if _, policy := obj.(*v1beta1.SecurityGroupPolicy); policy {
			s.mu.Lock()
			s.set = nil
			s.mu.Unlock()
		}
		changed(changeOf(obj))
	}, log)
	return s
}

// report has changed called with each object of informers that is added, changed or deleted.
func report(informers []cache.SharedIndexInformer, changed func(obj any), log *slog.Logger) {
	for _, inf := range informers {
		mustNotRun(nil, inf.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) {
			log.Warn("watch interrupted, retrying", "resource", r.TypeDescription(), "err", err)
		}))
		mustNotRun(inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: changed,
			UpdateFunc: func(was, is any) {
				if !heartbeat(was, is) && !sameForGroups(was, is) {
					changed(is)
				}
			},
			DeleteFunc: func(obj any) {
				if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = gone.Obj
				}
				changed(obj)
			},
		}))
	}
}

func (s *SelectionObjects) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{s.pods, s.policies, s.accounts}
}

// Run watches until ctx ends. It retries without a limit while the server does not respond.
func (s *SelectionObjects) Run(ctx context.Context) { runInformers(ctx, s.informers()) }

// Wait returns true once everything was read, and false if ctx ends before.
func (s *SelectionObjects) Wait(ctx context.Context) bool { return waitFor(ctx, s.informers()) }

func runInformers(ctx context.Context, list []cache.SharedIndexInformer) {
	var wg sync.WaitGroup
	for _, inf := range list {
		wg.Go(func() { inf.RunWithContext(ctx) })
	}
	wg.Wait()
}

func waitFor(ctx context.Context, list []cache.SharedIndexInformer) bool {
	var synced []cache.InformerSynced
	for _, inf := range list {
		synced = append(synced, inf.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// stripBranchPod drops everything that groups and branches of a pod do not depend on.
func stripBranchPod(obj any) (any, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	out := &corev1.Pod{}
	out.Namespace, out.Name, out.UID, out.ResourceVersion = in.Namespace, in.Name, in.UID, in.ResourceVersion
	out.Labels, out.CreationTimestamp, out.DeletionTimestamp = in.Labels, in.CreationTimestamp, in.DeletionTimestamp
	if owner := metav1.GetControllerOf(in); owner != nil {
		out.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if text, has := in.Annotations[vpc.AnnotationPodENI]; has {
		out.Annotations = map[string]string{vpc.AnnotationPodENI: text}
	}
	out.Spec.NodeName, out.Spec.HostNetwork, out.Spec.ServiceAccountName = in.Spec.NodeName, in.Spec.HostNetwork, in.Spec.ServiceAccountName
	if podadmission.Requests(in.Spec) {
		out.Spec.Containers = []corev1.Container{requestingBranch()}
	}
	out.Status.Phase, out.Status.PodIP = in.Status.Phase, in.Status.PodIP
	if RequestsBranch(out) && len(out.Annotations) == 0 {
		out.Status.Conditions = slices.DeleteFunc(slices.Clone(in.Status.Conditions), func(c corev1.PodCondition) bool {
			return c.Type != corev1.PodReadyToStartContainers || c.Status != corev1.ConditionTrue
		})
	}
	return out, nil
}

func stripAccount(obj any) (any, error) {
	in, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return obj, nil
	}
	out := &corev1.ServiceAccount{}
	out.Namespace, out.Name, out.UID, out.ResourceVersion, out.Labels = in.Namespace, in.Name, in.UID, in.ResourceVersion, in.Labels
	return out, nil
}

// Pods are all pods; see stripBranchPod.
func (s *SelectionObjects) Pods() []*corev1.Pod { return objects[*corev1.Pod](s.pods) }

// PodsOn are the pods that are bound to a node.
func (s *SelectionObjects) PodsOn(node string) []*corev1.Pod {
	found, err := s.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		s.log.Error("pods of a node not listed", "node", node, "err", err)
		return nil
	}
	return typed[*corev1.Pod](found)
}

// Policies are all SecurityGroupPolicies.
func (s *SelectionObjects) Policies() []*v1beta1.SecurityGroupPolicy {
	return objects[*v1beta1.SecurityGroupPolicy](s.policies)
}

// Set is the policies, compiled once for each change.
func (s *SelectionObjects) Set() *securitygroup.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		var list []securitygroup.Policy
		for _, p := range s.Policies() {
			list = append(list, GroupPolicy(p))
		}
		s.set = securitygroup.Compile(list)
	}
	return s.set
}

// Select decides for a pod by the policies, whether its groups are known or not.
func (s *SelectionObjects) Select(p *corev1.Pod) securitygroup.Decision {
	of := securitygroup.FromPod(p)
	var account *securitygroup.Account
	if a, ok := object[*corev1.ServiceAccount](s.accounts, p.Namespace+"/"+of.ServiceAccount); ok {
		account = &securitygroup.Account{Ref: securitygroup.Ref{Namespace: a.Namespace, Name: a.Name}, Labels: a.Labels}
	}
	return s.Set().Select(of, account)
}

// requestingBranch is the container of a cached pod that requests a branch.
func requestingBranch() corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{vpc.ResourcePodENI: *resource.NewQuantity(1, resource.DecimalSI)},
	}}
}

// RequestsBranch reports whether a cached pod requests a branch, as admission and the node read it.
func RequestsBranch(p *corev1.Pod) bool { return podadmission.Requests(p.Spec) }

// Wired reports whether the node of a pod has set its network up.
func Wired(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning || p.Status.PodIP != "" }

// WiredWithoutBranch reports whether a cached pod that requests a branch has a sandbox with a network and
// no branch: its node enforced the groups of new pods itself. The kubelet sets the condition, which is lost
// with the sandbox (KEP-3085, in every version since 1.29).
func WiredWithoutBranch(p *corev1.Pod) bool {
	return RequestsBranch(p) && len(p.Annotations) == 0 && len(p.Status.Conditions) > 0
}

// PodEnded reports whether the API server has no pod of a uid, or has it in a terminal phase.
func (s *SelectionObjects) PodEnded(ctx context.Context, ref PodRef, uid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	p, err := s.client.Core.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get pod %s: %w", ref, err)
	}
	return string(p.UID) != uid || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed, nil
}

// Evict asks the API server to evict a pod, if it has the uid. The server refuses what a
// PodDisruptionBudget forbids; a pod that does not exist any more is success.
func Evict(ctx context.Context, c *Client, ref PodRef, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	err := c.Core.CoreV1().Pods(ref.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("evict pod %s: %w", ref, err)
	}
	return nil
}
