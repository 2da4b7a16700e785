package kube

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

// Reports lists every NodeNetwork and Brake. A cluster without the CRDs has none.
func Reports(ctx context.Context, c *Client) ([]trunkline.NodeNetwork, []trunkline.Brake, error) {
	var networks trunkline.NodeNetworkList
	if err := list(c.Trunkline, trunkline.ResourceNodeNetworks).Do(ctx).Into(&networks); err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("list NodeNetworks: %w", err)
	}
	var brakes trunkline.BrakeList
	if err := list(c.Trunkline, trunkline.ResourceBrakes).Do(ctx).Into(&brakes); err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("list Brakes: %w", err)
	}
	return networks.Items, brakes.Items, nil
}

// Report reads the NodeNetwork of a node; nil if there is none.
func Report(ctx context.Context, c *Client, node string) (*trunkline.NodeNetwork, error) {
	var n trunkline.NodeNetwork
	err := c.Trunkline.Get().Resource(trunkline.ResourceNodeNetworks).Name(node).Do(ctx).Into(&n)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read NodeNetwork %s: %w", node, err)
	}
	return &n, nil
}

// Nodes lists every Node.
func Nodes(ctx context.Context, c *Client) ([]corev1.Node, error) {
	nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return nodes.Items, nil
}

func list(c rest.Interface, resource string) *rest.Request {
	return c.Get().Resource(resource)
}

// PutBrake creates or replaces a brake by server-side apply.
func PutBrake(ctx context.Context, c *Client, b trunkline.Brake) error {
	b.TypeMeta = metav1.TypeMeta{APIVersion: trunkline.GroupVersion().String(), Kind: "Brake"}
	body, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode brake %s: %w", b.Name, err)
	}
	err = c.Trunkline.Patch(types.ApplyPatchType).Resource(trunkline.ResourceBrakes).Name(b.Name).
		Param("fieldManager", "trunkline-cli").Param("force", "true").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write brake %s: %w", b.Name, err)
	}
	return nil
}

// DeleteBrake releases a brake. A missing one is an error, because the caller named it.
func DeleteBrake(ctx context.Context, c *Client, name string) error {
	if err := c.Trunkline.Delete().Resource(trunkline.ResourceBrakes).Name(name).Do(ctx).Error(); err != nil {
		return fmt.Errorf("delete brake %s: %w", name, err)
	}
	return nil
}

// DeleteReport deletes a NodeNetwork; a missing one is success.
func DeleteReport(ctx context.Context, c *Client, node string) error {
	err := c.Trunkline.Delete().Resource(trunkline.ResourceNodeNetworks).Name(node).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NodeNetwork %s: %w", node, err)
	}
	return nil
}

// CNINodes lists AWS's CNINode objects. found is false if the CRD is not installed.
func CNINodes(ctx context.Context, c *Client) (nodes []vpcresources.CNINode, found bool, err error) {
	var out vpcresources.CNINodeList
	err = list(c.VPC, vpcresources.ResourceCNINodes).Do(ctx).Into(&out)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("list CNINodes: %w", err)
	}
	return out.Items, true, nil
}

// CreateCNINode creates a CNINode; an existing one is left unchanged.
func CreateCNINode(ctx context.Context, c *Client, n vpcresources.CNINode) error {
	n.TypeMeta = metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: "CNINode"}
	err := c.VPC.Post().Resource(vpcresources.ResourceCNINodes).Body(&n).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CNINode %s: %w", n.Name, err)
	}
	return nil
}
