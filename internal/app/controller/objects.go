package controller

import (
	"context"
	"errors"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// syncObjects creates missing CNINodes and deletes the NodeNetworks of nodes that no
// longer exist. Kubernetes deletes a CNINode with the Node that owns it.
func syncObjects(ctx context.Context, o Options) error {
	// Reports are listed before nodes, so that the report of a node that joins in
	// between is not deleted.
	reports, _, err := kube.Reports(ctx, o.Client)
	if err != nil {
		return err
	}
	nodes, err := o.Client.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	exists := map[string]bool{}
	for i := range nodes.Items {
		exists[nodes.Items[i].Name] = true
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
	for i := range nodes.Items {
		if n := &nodes.Items[i]; !known[n.Name] {
			errs = append(errs, kube.CreateCNINode(ctx, o.Client, cniNode(n, o.Cluster)))
		}
	}
	return errors.Join(errs...)
}

// cniNode returns a node's CNINode as AWS's controller creates it, but without the
// finalizer: AWS deletes interfaces in it, and our collector does so without one.
func cniNode(n *corev1.Node, cluster string) vpcresources.CNINode {
	out := vpcresources.CNINode{ObjectMeta: metav1.ObjectMeta{
		Name:            n.Name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
	}}
	if os := n.Labels[corev1.LabelOSStable]; os != "" {
		out.Labels = map[string]string{corev1.LabelOSStable: os}
	}
	out.Spec.Tags = map[string]string{}
	if cluster != "" {
		out.Spec.Tags[vpc.TagClusterName] = cluster
	}
	// providerID is aws:///zone/i-…
	if id := path.Base(n.Spec.ProviderID); n.Spec.ProviderID != "" {
		out.Spec.Tags[vpc.TagInstanceID] = id
	}
	return out
}
