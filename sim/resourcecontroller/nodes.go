package resourcecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Of CNINodes.
const (
	finalizer = "networking.k8s.aws/resource-cleanup"
	feature   = "SecurityGroupsForPods"
)

const group = "vpcresources.k8s.aws"

func cniNodeResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "cninodes"}
}

// nodeChanged gives a node its CNINode and its trunk. AWS's retries at the next change of the node;
// here the queue does.
func (c *Controller) nodeChanged(ctx context.Context, name string) {
	if err := c.reconcileNode(ctx, name); err != nil && ctx.Err() == nil {
		c.options.Log.Warn("node of the VPC resource controller, retrying", "node", name, "err", err)
		c.nodeQueue.AddRateLimited(name)
		return
	}
	c.nodeQueue.Forget(name)
}

func (c *Controller) reconcileNode(ctx context.Context, name string) error {
	node, err := c.core.Core().V1().Nodes().Lister().Get(name)
	object := c.cniNode(name)
	if object != nil && object.GetDeletionTimestamp() != nil {
		return c.unfinalize(ctx, object)
	}
	if apierrors.IsNotFound(err) {
		if c.trunkOf(name) != nil {
			c.jobs.AddAfter(job{do: forget, node: name}, nodeDeleteAfter)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if object == nil {
		return c.createCNINode(ctx, node)
	}
	if _, labelled := node.Labels[vpc.LabelTrunkAttached]; c.trunkOf(name) != nil || !c.options.Unasked && !labelled && !asksForTrunk(object) {
		return nil
	}
	return c.initTrunk(ctx, node)
}

// asksForTrunk reports whether the agent of the node has added the feature.
func asksForTrunk(cniNode *unstructured.Unstructured) bool {
	list, _, err := unstructured.NestedSlice(cniNode.Object, "spec", "features")
	return err == nil && slices.ContainsFunc(list, func(f any) bool {
		of, ok := f.(map[string]any)
		return ok && of["name"] == feature
	})
}

// unfinalize removes the finalizer of a CNINode that is being deleted. The object is created again if
// its node exists.
func (c *Controller) unfinalize(ctx context.Context, object *unstructured.Unstructured) error {
	kept := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == finalizer })
	if len(kept) == len(object.GetFinalizers()) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": kept, "resourceVersion": object.GetResourceVersion()}})
	if err != nil {
		return err
	}
	_, err = c.objects.Resource(cniNodeResource()).Patch(ctx, object.GetName(), types.MergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// createCNINode creates the object of a node. Only the node's agent adds features.
func (c *Controller) createCNINode(ctx context.Context, node *corev1.Node) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(group + "/v1alpha1")
	object.SetKind("CNINode")
	object.SetName(node.Name)
	object.SetFinalizers([]string{finalizer})
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}})
	if os, ok := node.Labels[corev1.LabelOSStable]; ok {
		object.SetLabels(map[string]string{corev1.LabelOSStable: os})
	}
	if err := unstructured.SetNestedStringMap(object.Object, map[string]string{
		vpc.TagClusterName: c.options.Cluster, vpc.TagInstanceID: instanceOf(node),
	}, "spec", "tags"); err != nil {
		return err
	}
	_, err := c.objects.Resource(cniNodeResource()).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// instanceOf is the id of a node's instance: aws:///zone/i-….
func instanceOf(node *corev1.Node) string { return path.Base(node.Spec.ProviderID) }

// initTrunk finds or makes the trunk of a node, and advertises its branches.
func (c *Controller) initTrunk(ctx context.Context, node *corev1.Node) error {
	i, err := c.ec2.describe(ctx, instanceOf(node))
	if err != nil {
		return err
	}
	limits := c.options.Limits(i.kind)
	if limits.Branches == 0 {
		c.events.Event(node, corev1.EventTypeWarning, "Unsupported", fmt.Sprintf("The instance type %s is not supported for trunk interface (Security Group for Pods)", i.kind))
		return nil
	}
	t := newTrunk(i, limits.Branches)
	if i.trunk == "" {
		if t.instance.trunk, err = c.ec2.makeTrunk(ctx, i, limits.ENIs); err != nil {
			c.events.Event(node, corev1.EventTypeWarning, "TrunkENICreationFailed", "Failed to create trunk interface: Error Code: "+code(err))
			c.events.Event(node, corev1.EventTypeNormal, "NodeTrunkFailedInit", "The node failed initializing trunk interface")
			return fmt.Errorf("make the trunk of node %s: %w", node.Name, err)
		}
	} else if err := c.rebuild(ctx, node.Name, t); err != nil {
		return err
	}
	if err := c.advertise(ctx, node.Name, limits.Branches); err != nil {
		return err
	}
	c.setTrunk(node.Name, t)
	c.events.Event(node, corev1.EventTypeNormal, "NodeTrunkInitiated", "The node has trunk interface initialized successfully")
	c.jobs.AddAfter(job{do: collect, node: node.Name}, c.collectEvery())
	return nil
}

func (c *Controller) advertise(ctx context.Context, node string, branches int) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": map[string]string{vpc.ResourcePodENI: fmt.Sprint(branches)}}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// rebuild finds the branches of a trunk after a restart: those in pods' annotations are theirs, and
// others cool down. AWS's deletes those without a disassociation, of which it does not know the id; the
// embedded EC2 refuses that, so the model reads it.
func (c *Controller) rebuild(ctx context.Context, node string, t *trunk) error {
	found, err := c.ec2.branchesOf(ctx, t.instance)
	if err != nil {
		return err
	}
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		text, ok := p.Annotations[vpc.AnnotationPodENI]
		if !ok || hasEnded(p) {
			continue
		}
		var list []details
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			errs = append(errs, fmt.Errorf("annotation of pod %s/%s: %w", p.Namespace, p.Name, err))
			continue
		}
		for _, d := range list {
			if _, exists := found[d.ID]; exists {
				delete(found, d.ID)
				t.adopt(p.UID, &branch{details: d})
			}
		}
	}
	of := map[string]string{}
	if len(found) > 0 {
		if of, err = c.ec2.associations(ctx); err != nil {
			return err
		}
	}
	for id, vlan := range found {
		t.orphan(&branch{details: details{ID: id, VLAN: vlan, Association: of[id]}})
	}
	if err := errors.Join(errs...); err != nil {
		c.options.Log.Warn("annotations of the VPC resource controller cannot be read", "node", node, "err", err)
	}
	return nil
}
