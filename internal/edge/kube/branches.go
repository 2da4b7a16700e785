package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// BranchObjects is the cache of what the controller of trunks and branches needs of the cluster.
// Its methods may be called from any goroutine.
type BranchObjects struct {
	client   *Client
	log      *slog.Logger
	changed  func(BranchChange)
	nodes    cache.SharedIndexInformer
	cniNodes cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	policies cache.SharedIndexInformer
	accounts cache.SharedIndexInformer
	brakes   cache.SharedIndexInformer
	custom   *eniConfigs
}

// BranchChange is what a change of the cache concerns.
type BranchChange struct {
	Node string // its name; empty without one
	All  bool   // every node, as after a change of policies
}

// byNode is the index of pods by the node that they are bound to.
const byNode = "node"

// NewBranchObjects prepares the informers. changed is called after each change; it must not block.
func NewBranchObjects(c *Client, changed func(BranchChange), log *slog.Logger) *BranchObjects {
	core := c.Core.CoreV1().RESTClient()
	b := &BranchObjects{
		client: c, log: log, changed: changed,
		nodes:    informer(core, "nodes", &corev1.Node{}, fields.Everything(), stripNode),
		cniNodes: informer(c.VPC, vpcresources.ResourceCNINodes, &vpcresources.CNINode{}, fields.Everything(), nil),
		pods:     informer(core, "pods", &corev1.Pod{}, fields.Everything(), stripBranchPod),
		policies: informer(c.Policies, v1beta1.ResourceSecurityGroupPolicies, &v1beta1.SecurityGroupPolicy{}, fields.Everything(), stripManaged),
		accounts: informer(core, "serviceaccounts", &corev1.ServiceAccount{}, fields.Everything(), stripAccount),
		brakes:   informer(c.Trunkline, trunkline.ResourceBrakes, &trunkline.Brake{}, fields.Everything(), nil),
	}
	mustNotRun(nil, b.pods.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) { return []string{nodeOf(obj)}, nil }}))
	b.custom = newENIConfigs(c.ENIConfigs, func() { changed(BranchChange{All: true}) }, log)
	for _, inf := range b.informers() {
		mustNotRun(nil, inf.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) {
			log.Warn("watch interrupted, retrying", "resource", r.TypeDescription(), "err", err)
		}))
		mustNotRun(inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { changed(changeOf(obj)) },
			UpdateFunc: func(was, is any) {
				if heartbeat(was, is) {
					return
				}
				changed(changeOf(is))
			},
			DeleteFunc: func(obj any) {
				if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = gone.Obj
				}
				changed(changeOf(obj))
			},
		}))
	}
	return b
}

// changeOf is what a change of an object concerns. A pod that is bound to no node concerns none.
func changeOf(obj any) BranchChange {
	_, pod := obj.(*corev1.Pod)
	node := nodeOf(obj)
	return BranchChange{Node: node, All: node == "" && !pod}
}

// nodeOf is the name of the node that an object is of; empty without one.
func nodeOf(obj any) string {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return obj.Spec.NodeName
	case *corev1.Node:
		return obj.Name
	case *vpcresources.CNINode:
		return obj.Name
	}
	return ""
}

// heartbeat reports whether an update of a Node changes nothing that the controller reads.
func heartbeat(was, is any) bool {
	before, ok := was.(*corev1.Node)
	after, same := is.(*corev1.Node)
	if !ok || !same {
		return false
	}
	had, _ := BranchCapacity(before)
	has, _ := BranchCapacity(after)
	return before.UID == after.UID && before.Spec.ProviderID == after.Spec.ProviderID && maps.Equal(before.Labels, after.Labels) && had == has
}

func stripManaged(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
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

// stripBranchPod drops everything that groups and branches of a pod do not depend on.
func stripBranchPod(obj any) (any, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	out := &corev1.Pod{}
	out.Namespace, out.Name, out.UID, out.ResourceVersion = in.Namespace, in.Name, in.UID, in.ResourceVersion
	out.Labels, out.DeletionTimestamp = in.Labels, in.DeletionTimestamp
	if text, has := in.Annotations[vpc.AnnotationPodENI]; has {
		out.Annotations = map[string]string{vpc.AnnotationPodENI: text}
	}
	out.Spec.NodeName, out.Spec.HostNetwork, out.Spec.ServiceAccountName = in.Spec.NodeName, in.Spec.HostNetwork, in.Spec.ServiceAccountName
	for _, c := range slices.Concat(in.Spec.InitContainers, in.Spec.Containers) {
		if n, requested := c.Resources.Requests[vpc.ResourcePodENI]; requested && !n.IsZero() {
			out.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{vpc.ResourcePodENI: n}}}}
			break
		}
	}
	out.Status.Phase = in.Status.Phase
	return out, nil
}

func (b *BranchObjects) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{b.nodes, b.cniNodes, b.pods, b.policies, b.accounts, b.brakes}
}

// Run watches until ctx ends. It retries without a limit while the server does not respond.
func (b *BranchObjects) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, inf := range b.informers() {
		wg.Go(func() { inf.RunWithContext(ctx) })
	}
	wg.Go(func() { b.custom.run(ctx) })
	wg.Wait()
}

// Wait returns true once everything but ENIConfigs was read, and false if ctx ends before.
func (b *BranchObjects) Wait(ctx context.Context) bool {
	var synced []cache.InformerSynced
	for _, inf := range b.informers() {
		synced = append(synced, inf.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// objects are those of an informer, by namespace and name. Callers must not change them.
func objects[T runtime.Object](inf cache.SharedIndexInformer) []T {
	return typed[T](inf.GetStore().List())
}

func typed[T runtime.Object](list []any) (out []T) {
	for _, obj := range list {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(keyOf(a), keyOf(b)) })
	return out
}

func keyOf(obj any) string {
	m, ok := obj.(metav1.Object)
	if !ok {
		return ""
	}
	return m.GetNamespace() + "/" + m.GetName()
}

func object[T runtime.Object](inf cache.SharedIndexInformer, key string) (found T, ok bool) {
	obj, exists, err := inf.GetStore().GetByKey(key)
	if err != nil || !exists {
		return found, false
	}
	found, ok = obj.(T)
	return found, ok
}

// Nodes are all Nodes, without what the controller does not read.
func (b *BranchObjects) Nodes() []*corev1.Node { return objects[*corev1.Node](b.nodes) }

// Node is one Node.
func (b *BranchObjects) Node(name string) (*corev1.Node, bool) {
	return object[*corev1.Node](b.nodes, name)
}

// CNINodes are all CNINodes.
func (b *BranchObjects) CNINodes() []*vpcresources.CNINode {
	return objects[*vpcresources.CNINode](b.cniNodes)
}

// CNINode is one CNINode.
func (b *BranchObjects) CNINode(name string) (*vpcresources.CNINode, bool) {
	return object[*vpcresources.CNINode](b.cniNodes, name)
}

// Pods are all pods; see stripBranchPod.
func (b *BranchObjects) Pods() []*corev1.Pod { return objects[*corev1.Pod](b.pods) }

// PodsOn are the pods that are bound to a node.
func (b *BranchObjects) PodsOn(node string) []*corev1.Pod {
	found, err := b.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		b.log.Error("pods of a node not listed", "node", node, "err", err)
		return nil
	}
	return typed[*corev1.Pod](found)
}

// Policies are all SecurityGroupPolicies.
func (b *BranchObjects) Policies() []*v1beta1.SecurityGroupPolicy {
	return objects[*v1beta1.SecurityGroupPolicy](b.policies)
}

// Account is a service account; it has labels only.
func (b *BranchObjects) Account(namespace, name string) (*corev1.ServiceAccount, bool) {
	return object[*corev1.ServiceAccount](b.accounts, namespace+"/"+name)
}

// Freeze returns the strictest brake that selects a node, with its reason.
func (b *BranchObjects) Freeze(node string) (trunkline.Freeze, string) {
	var all []trunkline.Brake
	for _, brake := range objects[*trunkline.Brake](b.brakes) {
		all = append(all, *brake)
	}
	return Strictest(all, node)
}

// PodEnded reports whether the API server has no pod of a uid, or has it in a terminal phase.
func (b *BranchObjects) PodEnded(ctx context.Context, ref PodRef, uid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	p, err := b.client.Core.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get pod %s: %w", ref, err)
	}
	return string(p.UID) != uid || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed, nil
}

// NodeGone reports whether the API server has no Node of a name and uid; an empty uid is any.
func (b *BranchObjects) NodeGone(ctx context.Context, name, uid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	n, err := b.client.Core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return uid != "" && string(n.UID) != uid, nil
}
