package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metadataOnly has the API server leave out all but the metadata of listed objects.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Kinds of objects with policies for pods: Kubernetes' own, and those that AWS's network policy
// agent enforces.
const (
	kindNetworkPolicy        = "NetworkPolicy"
	kindClusterNetworkPolicy = "ClusterNetworkPolicy"
	kindApplicationPolicy    = "ApplicationNetworkPolicy"
	kindPolicyEndpoint       = "PolicyEndpoint"
)

// policyResources are the resources of these kinds.
func policyResources() []struct{ kind, path string } {
	return []struct{ kind, path string }{
		{kindNetworkPolicy, "/apis/networking.k8s.io/v1/networkpolicies"},
		{kindClusterNetworkPolicy, "/apis/networking.k8s.aws/v1alpha1/clusternetworkpolicies"},
		{kindApplicationPolicy, "/apis/networking.k8s.aws/v1alpha1/applicationnetworkpolicies"},
		{kindPolicyEndpoint, "/apis/networking.k8s.aws/v1alpha1/policyendpoints"},
	}
}

// ServedPolicies returns those of the kinds that Policies found which Trunkline enforces, and
// UnservedPolicies those that it does not read. PolicyEndpoints are neither: AWS's controller
// derives them from the others.
func ServedPolicies(found []string) []string { return ofKind(found, kindNetworkPolicy) }

// UnservedPolicies is documented at ServedPolicies.
func UnservedPolicies(found []string) []string {
	return ofKind(found, kindClusterNetworkPolicy, kindApplicationPolicy)
}

func ofKind(found []string, kinds ...string) (some []string) {
	for _, text := range found {
		if _, kind, _ := strings.Cut(text, counted); slices.Contains(kinds, kind) {
			some = append(some, text)
		}
	}
	return some
}

// counted is between the number and the kind of policies.
const counted = " of "

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
			found = append(found, fmt.Sprint(n, counted, r.kind))
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
