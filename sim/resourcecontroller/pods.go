package resourcecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// action is what a job does.
type action int

const (
	create  action = iota // a branch for a pod
	release               // the branch of a pod that has ended
	collect               // branches of a node that have cooled down
	forget                // a node
)

// job is an entry of the queue.
type job struct {
	do              action
	node            string
	namespace, name string    // of create
	uid             types.UID // of release
}

// podChanged submits the job of a pod that requests a branch.
func (c *Controller) podChanged(obj any) {
	p, ok := obj.(*corev1.Pod)
	if !ok || !requestsBranch(p) || p.Spec.NodeName == "" || !c.options.Serves(p.Spec.NodeName) {
		return
	}
	if hasEnded(p) {
		c.jobs.Add(job{do: release, node: p.Spec.NodeName, uid: p.UID})
		return
	}
	if _, annotated := p.Annotations[vpc.AnnotationPodENI]; !annotated && p.DeletionTimestamp == nil {
		c.jobs.Add(job{do: create, node: p.Spec.NodeName, namespace: p.Namespace, name: p.Name})
	}
}

func hasEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// requestsBranch reports whether the pod requests one; two are no more than one here.
func requestsBranch(p *corev1.Pod) bool {
	if p.Spec.HostNetwork {
		return false
	}
	for _, c := range p.Spec.Containers {
		if n, ok := c.Resources.Requests[vpc.ResourcePodENI]; ok && !n.IsZero() {
			return true
		}
	}
	return false
}

// do does a job. One that fails is tried again, and given up after podRetries.
func (c *Controller) do(ctx context.Context, j job) {
	again, err := c.perform(ctx, j)
	switch {
	case ctx.Err() != nil:
	case err != nil && c.jobs.NumRequeues(j) >= podRetries:
		c.jobs.Forget(j)
		c.options.Log.Warn("job of the VPC resource controller given up", "node", j.node, "namespace", j.namespace, "pod", j.name, "err", err)
	case err != nil:
		c.options.Log.Info("job of the VPC resource controller failed, retrying", "node", j.node, "namespace", j.namespace, "pod", j.name, "err", err)
		c.jobs.AddRateLimited(j)
	case again > 0:
		c.jobs.AddAfter(j, again)
	default:
		c.jobs.Forget(j)
	}
}

// perform returns when the job is to be done again, if so.
func (c *Controller) perform(ctx context.Context, j job) (again time.Duration, err error) {
	t := c.trunkOf(j.node)
	switch {
	case j.do == create && t == nil && c.cniNode(j.node) != nil:
		return nodeNotReady, nil
	case t == nil:
		return 0, nil
	case j.do == create:
		return c.serve(ctx, t, j)
	case j.do == release:
		t.release(j.uid)
	case j.do == collect:
		c.deleteAll(ctx, t, t.due(c.options.CoolDown, false))
		return c.collectEvery(), nil
	case j.do == forget:
		if _, err := c.core.Core().V1().Nodes().Lister().Get(j.node); err == nil {
			return 0, nil // a node of the same name
		}
		c.setTrunk(j.node, nil)
		c.deleteAll(ctx, t, t.due(0, true))
	}
	return 0, nil
}

// collectEvery is deleteEvery, unless cool-downs are shorter.
func (c *Controller) collectEvery() time.Duration { return min(deleteEvery, c.options.CoolDown) }

func (c *Controller) deleteAll(ctx context.Context, t *trunk, list []*branch) {
	for _, b := range list {
		if err := c.ec2.deleteBranch(ctx, b); err != nil {
			c.options.Log.Info("branch of the VPC resource controller not deleted", "interface", b.ID, "err", err)
			t.again(b)
			continue
		}
		t.free(b.VLAN)
	}
}

// serve makes the branch of a pod, with the groups of all policies that select it, or those of its
// instance if none does, and writes the annotation.
func (c *Controller) serve(ctx context.Context, t *trunk, j job) (again time.Duration, err error) {
	p, err := c.client.CoreV1().Pods(j.namespace).Get(ctx, j.name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if _, annotated := p.Annotations[vpc.AnnotationPodENI]; annotated || t.has(p.UID) || hasEnded(p) {
		return 0, nil
	}
	groups, err := c.policies.groupsOf(ctx, p)
	if err != nil {
		return 0, err
	}
	if len(groups) == 0 {
		c.events.Event(p, corev1.EventTypeWarning, "SecurityGroupRequested", "Pod will get the instance security group as the pod didn't match any Security Group from SecurityGroupPolicy")
		groups = t.instance.groups
	} else {
		c.events.Event(p, corev1.EventTypeNormal, "SecurityGroupRequested", fmt.Sprintf("Pod will get the following Security Groups %v", groups))
	}
	vlan := t.reserve()
	if vlan == 0 {
		return c.options.CoolDown, nil
	}
	b, err := c.ec2.makeBranch(ctx, t.instance, vlan, groups)
	switch {
	case b == nil:
		t.free(vlan)
	case err != nil:
		t.discard(p.UID, b)
	}
	if err != nil {
		c.events.Event(p, corev1.EventTypeWarning, "BranchAllocationFailed", fmt.Sprintf("failed to allocate branch ENI to pod: %v", err))
		return 0, err
	}
	t.adopt(p.UID, b)
	return 0, c.annotate(ctx, t, p, b)
}

// annotate writes the annotation of a pod. Without it, the branch is deleted.
func (c *Controller) annotate(ctx context.Context, t *trunk, p *corev1.Pod, b *branch) error {
	text, err := json.Marshal([]details{b.details})
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{vpc.AnnotationPodENI: string(text)}}})
	if err != nil {
		return err
	}
	if _, err := c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.discard(p.UID, b)
		c.events.Event(p, corev1.EventTypeWarning, "BranchENIAnnotationFailed", fmt.Sprintf("failed to annotate pod with branch ENI details: %v", err))
		return errors.Join(err, ctx.Err())
	}
	c.events.Event(p, corev1.EventTypeNormal, "ResourceAllocated", fmt.Sprintf("Allocated %s to the pod", text))
	return nil
}
