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
)

// BranchObjects is the cache of what the controller of trunks and branches needs of the cluster.
// Its methods may be called from any goroutine.
type BranchObjects struct {
	*SelectionObjects
	nodes    cache.SharedIndexInformer
	cniNodes cache.SharedIndexInformer
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
		SelectionObjects: NewSelectionObjects(c, changed, log),
		nodes:            informer(core, "nodes", &corev1.Node{}, fields.Everything(), stripNode),
		cniNodes:         informer(c.VPC, vpcresources.ResourceCNINodes, &vpcresources.CNINode{}, fields.Everything(), nil),
		brakes:           informer(c.Trunkline, trunkline.ResourceBrakes, &trunkline.Brake{}, fields.Everything(), nil),
	}
	b.custom = newENIConfigs(c.ENIConfigs, func() { changed(BranchChange{All: true}) }, log)
	report([]cache.SharedIndexInformer{b.nodes, b.cniNodes, b.brakes}, func(obj any) { changed(changeOf(obj)) }, log)
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
	return before.UID == after.UID && before.Spec.ProviderID == after.Spec.ProviderID && maps.Equal(before.Labels, after.Labels) && had == has &&
		before.Status.Capacity.Pods().Equal(*after.Status.Capacity.Pods())
}

func stripManaged(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

func (b *BranchObjects) informers() []cache.SharedIndexInformer {
	return append(b.SelectionObjects.informers(), b.nodes, b.cniNodes, b.brakes)
}

// Run watches until ctx ends. It retries without a limit while the server does not respond.
func (b *BranchObjects) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { runInformers(ctx, b.informers()) })
	wg.Go(func() { b.custom.run(ctx) })
	wg.Wait()
}

// Wait returns true once everything but ENIConfigs was read, and false if ctx ends before.
func (b *BranchObjects) Wait(ctx context.Context) bool { return waitFor(ctx, b.informers()) }

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

// Freeze returns the strictest brake that selects a node, with its reason.
func (b *BranchObjects) Freeze(node string) (trunkline.Freeze, string) {
	var all []trunkline.Brake
	for _, brake := range objects[*trunkline.Brake](b.brakes) {
		all = append(all, *brake)
	}
	return Strictest(all, node)
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
