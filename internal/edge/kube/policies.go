package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metadataOnly has the API server leave out all but the metadata of listed objects.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// policyResources are the resources with policies for pods, by kind: Kubernetes' own, and
// those that AWS's network policy agent enforces.
func policyResources() []struct{ kind, path string } {
	return []struct{ kind, path string }{
		{"NetworkPolicy", "/apis/networking.k8s.io/v1/networkpolicies"},
		{"ClusterNetworkPolicy", "/apis/networking.k8s.aws/v1alpha1/clusternetworkpolicies"},
		{"PolicyEndpoint", "/apis/networking.k8s.aws/v1alpha1/policyendpoints"},
	}
}

// Policies lists the kinds of policies of which the cluster has objects, with their number,
// such as "3 of NetworkPolicy". It reads the metadata of one object of each; a kind that is
// not installed has none. With an error, it lists those that could be read.
func Policies(ctx context.Context, c *Client) (found []string, err error) {
	var errs []error
	for _, r := range policyResources() {
		n, err := count(ctx, c, r.path)
		if err != nil {
			errs = append(errs, fmt.Errorf("list objects of kind %s: %w", r.kind, err))
		}
		if n > 0 {
			found = append(found, fmt.Sprintf("%d of %s", n, r.kind))
		}
	}
	return found, errors.Join(errs...)
}

// count returns the number of objects of a resource in all namespaces.
func count(ctx context.Context, c *Client, path string) (int64, error) {
	raw, err := c.Core.CoreV1().RESTClient().Get().AbsPath(path).Param("limit", "1").SetHeader("Accept", metadataOnly).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, fmt.Errorf("decode the list: %w", err)
	}
	n := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		n += *list.RemainingItemCount
	}
	return n, nil
}

// Policies is the function Policies.
func (c *Cluster) Policies(ctx context.Context) ([]string, error) {
	return Policies(ctx, c.opts.Client)
}
