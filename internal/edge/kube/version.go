package kube

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// OldestKubernetes is the first version that has all that the manifests use:
// ValidatingAdmissionPolicy v1 (KEP-3488), and the name of the node in the tokens of service
// accounts (KEP-4193, beta and on).
const OldestKubernetes = "1.30"

// ServerVersion returns the version of the API server, such as v1.33.4-eks-1234567. Every
// authenticated user may read it.
func ServerVersion(ctx context.Context, c *Client) (string, error) {
	raw, err := c.Core.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the API server's version: %w", err)
	}
	var info apiversion.Info
	if err := json.Unmarshal(raw, &info); err != nil {
		return "", fmt.Errorf("read the API server's version: %w", err)
	}
	return info.GitVersion, nil
}

// TooOld says why Trunkline does not work with an API server of this version; empty if it
// does, or the version is not known.
func TooOld(server string) string {
	v, err := version.ParseGeneric(server)
	if err != nil || v.AtLeast(version.MustParseGeneric(OldestKubernetes)) {
		return ""
	}
	return fmt.Sprintf("is Kubernetes %s, and Trunkline needs %s or newer: without ValidatingAdmissionPolicy v1 a part of its manifests is not applied, and without the node's name in their tokens the agents' reports are refused or not bound to their nodes. Upgrade the cluster first", server, OldestKubernetes)
}
