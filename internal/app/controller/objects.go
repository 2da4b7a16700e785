package controller

import (
	"context"
	"errors"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// syncObjects creates missing CNINodes, except of nodes that no agent ever serves, and deletes
// the NodeNetworks of nodes that no longer exist. Kubernetes deletes a CNINode with the Node that
// owns it.
func syncObjects(ctx context.Context, o Options) error {
	// Reports are listed before nodes, so that the report of a node that joins in
	// between is not deleted.
	reports, _, err := kube.Reports(ctx, o.Client)
	if err != nil {
		return err
	}
	nodes, err := kube.Nodes(ctx, o.Client)
	if err != nil {
		return err
	}
	exists := map[string]bool{}
	for i := range nodes {
		exists[nodes[i].Name] = true
	}
	var errs []error
	for i := range reports {
		if name := reports[i].Name; !exists[name] {
			o.Log.Info("delete the report of a node that no longer exists", "node", name)
			errs = append(errs, kube.DeleteReport(ctx, o.Client, name))
		}
	}
	have, found, err := kube.CNINodes(ctx, o.Client)
	if err != nil || !found {
		return errors.Join(append(errs, err)...)
	}
	known := map[string]bool{}
	for i := range have {
		known[have[i].Name] = true
	}
	for i := range nodes {
		if n := &nodes[i]; !known[n.Name] && !neverServed(*n) {
			errs = append(errs, kube.CreateCNINode(ctx, o.Client, cniNode(n, o.Cluster, o.Branches != nil)))
		}
	}
	return errors.Join(errs...)
}

// cniNode returns a node's CNINode as AWS's controller creates it, but without the
// finalizer: AWS deletes interfaces in it, and our collector does so without one.
//
// With branches it has the feature by which AWS's agent asks for a trunk once its node has a free
// slot: agents of Trunkline leave one wherever pods may have branches.
func cniNode(n *corev1.Node, cluster string, branches bool) vpcresources.CNINode {
	out := vpcresources.CNINode{ObjectMeta: metav1.ObjectMeta{
		Name:            n.Name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
	}}
	if os := n.Labels[corev1.LabelOSStable]; os != "" {
		out.Labels = map[string]string{corev1.LabelOSStable: os}
	}
	if branches {
		out.Spec.Features = []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}}
	}
	out.Spec.Tags = map[string]string{}
	if cluster != "" {
		out.Spec.Tags[vpc.TagClusterName] = cluster
	}
	if id := instanceOf(n); id != "" {
		out.Spec.Tags[vpc.TagInstanceID] = string(id)
	}
	return out
}

// instanceOf returns the instance of a Node by its providerID, aws:///zone/i-…; empty
// without one. Kubernetes does not allow to change a providerID.
func instanceOf(n *corev1.Node) vpc.InstanceID {
	id := path.Base(n.Spec.ProviderID)
	if !strings.HasPrefix(n.Spec.ProviderID, "aws://") || !strings.HasPrefix(id, "i-") {
		return ""
	}
	return vpc.InstanceID(id)
}

// instancesOf returns the instances of Nodes by the Nodes' names.
func instancesOf(nodes []corev1.Node) map[string]vpc.InstanceID {
	out := map[string]vpc.InstanceID{}
	for i := range nodes {
		if id := instanceOf(&nodes[i]); id != "" {
			out[nodes[i].Name] = id
		}
	}
	return out
}
