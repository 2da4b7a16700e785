// Package resourcecontroller is AWS's VPC resource controller as a cluster and EC2 see it: it makes a
// trunk for each node that asks for one, and a branch for each pod that requests one, by the same
// calls, tags, descriptions, annotation, CNINode and capacity, in the same order.
//
// It decides by AWS's rules, written a second time: it shares no decision with Trunkline's own
// controller. It reads the API server by polling, where AWS's watches, and keeps no state over a
// restart. Nodes without a feature or a label, Windows, custom networking, IPv6 and the status of
// CNINodes, which AWS's does not write, are not modelled.
//
// Source: aws/amazon-vpc-resource-controller-k8s, pkg/node/manager, pkg/provider/branch and
// pkg/aws/ec2/api. Tests run it; it may use EC2 and the API server by their wire formats.
package resourcecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// What AWS's controller uses of VLANs, and the finalizer of its CNINodes.
const (
	maxVLAN   = 120
	finalizer = "networking.k8s.aws/resource-cleanup"
	resource  = "vpc.amazonaws.com/pod-eni"
	feature   = "SecurityGroupsForPods"
	labelled  = "vpc.amazonaws.com/has-trunk-attached"
)

// Options of New.
type Options struct {
	EC2 *ec2.Client
	// API is the URL of the API server.
	API string
	// Cluster is its name, as in tags; Account that of the interfaces.
	Cluster, Account string
	// Branches are how many branches an instance type has, and Devices how many interfaces.
	Branches, Devices func(instanceType string) int
	// CoolDown is how long a branch is kept after its pod: 60 s, and 30 s at least, on AWS.
	CoolDown time.Duration
	Every    time.Duration // between two passes
	Log      *slog.Logger
}

// Controller is the controller. One goroutine runs it.
type Controller struct {
	Options
	api   apiServer
	nodes map[string]*trunk // by the node's name
}

// trunk is a node with its trunk.
type trunk struct {
	instance instance
	eni      string
	branches map[string]*branch // by the pod's uid
	cooling  []*branch
}

// branch is one branch of a trunk.
type branch struct {
	eni, association string
	vlan             int
	until            time.Time // of the cool-down
}

// New returns a controller.
func New(o Options) *Controller {
	return &Controller{Options: o, api: apiServer{url: strings.TrimSuffix(o.API, "/")}, nodes: map[string]*trunk{}}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		if err := c.pass(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("VPC resource controller: pass failed, retrying", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *Controller) pass(ctx context.Context) error {
	var nodes, cniNodes, pods list
	for path, into := range map[string]*list{"/api/v1/nodes": &nodes, cniNodePath: &cniNodes, "/api/v1/pods": &pods} {
		if err := c.api.get(ctx, path, into); err != nil {
			return err
		}
	}
	var errs []error
	for _, n := range nodes.Items {
		i := slices.IndexFunc(cniNodes.Items, func(o object) bool { return o.Metadata.Name == n.Metadata.Name })
		if i < 0 {
			errs = append(errs, c.createCNINode(ctx, n))
			continue
		}
		_, managed := n.Metadata.Labels[labelled]
		managed = managed || slices.ContainsFunc(cniNodes.Items[i].Spec.Features, func(f namedFeature) bool { return f.Name == feature })
		if c.nodes[n.Metadata.Name] == nil && managed {
			errs = append(errs, c.initTrunk(ctx, n))
		}
	}
	for name, t := range c.nodes {
		errs = append(errs, c.servePods(ctx, name, t, pods.Items), c.collect(ctx, t))
	}
	return errors.Join(errs...)
}

// createCNINode creates the object of a node. Only the node's agent adds features.
func (c *Controller) createCNINode(ctx context.Context, n object) error {
	meta := map[string]any{
		"name": n.Metadata.Name, "finalizers": []string{finalizer},
		"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": n.Metadata.Name, "uid": n.Metadata.UID}},
	}
	if os, ok := n.Metadata.Labels["kubernetes.io/os"]; ok {
		meta["labels"] = map[string]string{"kubernetes.io/os": os}
	}
	return c.api.send(ctx, "POST", cniNodePath, map[string]any{
		"apiVersion": "vpcresources.k8s.aws/v1alpha1", "kind": "CNINode", "metadata": meta,
		"spec": map[string]any{"tags": map[string]string{
			"cluster.k8s.amazonaws.com/name": c.Cluster, "node.k8s.amazonaws.com/instance_id": n.instanceID(),
		}},
	})
}

// initTrunk finds or makes the trunk of a node, and advertises its branches.
func (c *Controller) initTrunk(ctx context.Context, n object) error {
	i, err := c.describeInstance(ctx, n.instanceID())
	if err != nil {
		return err
	}
	limit := c.Branches(i.kind)
	if limit == 0 {
		return fmt.Errorf("node %s: the instance type %s is not supported for trunk interface", n.Metadata.Name, i.kind)
	}
	t := &trunk{instance: i, eni: i.trunk, branches: map[string]*branch{}}
	if t.eni == "" {
		if t.eni, err = c.makeTrunk(ctx, i); err != nil {
			return fmt.Errorf("make the trunk of node %s: %w", n.Metadata.Name, err)
		}
	}
	err = c.api.send(ctx, "PATCH", "/api/v1/nodes/"+n.Metadata.Name+"/status", map[string]any{"status": map[string]any{"capacity": map[string]string{resource: fmt.Sprint(limit)}}})
	if err != nil {
		return err
	}
	c.nodes[n.Metadata.Name] = t
	return nil
}

// servePods gives branches to pods that request one, and has those of pods that have ended cool down.
func (c *Controller) servePods(ctx context.Context, node string, t *trunk, pods []object) error {
	var errs []error
	run := map[string]bool{}
	for _, p := range pods {
		ended := p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
		if p.Spec.NodeName != node || ended {
			continue
		}
		run[p.Metadata.UID] = true
		_, annotated := p.Metadata.Annotations[resource]
		if t.branches[p.Metadata.UID] != nil || annotated || !p.requestsBranch() {
			continue
		}
		if len(t.branches)+len(t.cooling) >= c.Branches(t.instance.kind) {
			continue // until a cool-down ends
		}
		errs = append(errs, c.serve(ctx, t, p))
	}
	for uid, b := range t.branches {
		if !run[uid] {
			b.until = time.Now().Add(c.CoolDown)
			t.cooling = append(t.cooling, b)
			delete(t.branches, uid)
		}
	}
	return errors.Join(errs...)
}

// serve makes the branch of a pod, with the groups of all policies that match it, or those of its
// instance if none does, and writes the annotation.
func (c *Controller) serve(ctx context.Context, t *trunk, p object) error {
	groups, err := c.groupsOf(ctx, p)
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		groups = t.instance.groups
	}
	vlan := t.freeVLAN()
	if vlan == 0 {
		return fmt.Errorf("pod %s: no free VLAN", p.Metadata.Name)
	}
	made, details, err := c.makeBranch(ctx, t, vlan, groups)
	if err != nil {
		return fmt.Errorf("make the branch of pod %s: %w", p.Metadata.Name, err)
	}
	t.branches[p.Metadata.UID] = made
	text, err := annotation(details)
	if err != nil {
		return err
	}
	return c.api.send(ctx, "PATCH", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", p.Metadata.Namespace, p.Metadata.Name),
		map[string]any{"metadata": map[string]any{"annotations": map[string]string{resource: text}}})
}

// freeVLAN is the lowest one; 0 if there is none.
func (t *trunk) freeVLAN() int {
	used := map[int]bool{}
	for _, b := range t.branches {
		used[b.vlan] = true
	}
	for _, b := range t.cooling {
		used[b.vlan] = true
	}
	for vlan := 1; vlan <= maxVLAN; vlan++ {
		if !used[vlan] {
			return vlan
		}
	}
	return 0
}

// collect deletes branches with a cool-down that has ended.
func (c *Controller) collect(ctx context.Context, t *trunk) error {
	var errs []error
	t.cooling = slices.DeleteFunc(t.cooling, func(b *branch) bool {
		if time.Now().Before(b.until) {
			return false
		}
		err := c.deleteBranch(ctx, b)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}
