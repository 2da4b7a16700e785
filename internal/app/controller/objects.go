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

// keepObjects makes the CNINode of every node that lacks one, and removes the
// reports of nodes that are gone. CNINodes go with their Node, which owns them.
func keepObjects(ctx context.Context, o Options) error {
	// Reports before nodes: a node that joins in between has none to lose.
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
			o.Log.Info("report of a node that is gone removed", "node", name)
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

// cniNode is a node's CNINode as AWS's controller makes it, without the finalizer
// by which that controller deletes interfaces: our collector does that.
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
