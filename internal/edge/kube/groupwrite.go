package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

// SecurityGroups lists every SecurityGroup. A cluster without the definition is an error: what is not
// served is not known to be absent.
func SecurityGroups(ctx context.Context, c *Client) ([]trunkline.SecurityGroup, error) {
	var out trunkline.SecurityGroupList
	if err := list(c.Trunkline, trunkline.ResourceSecurityGroups).Do(ctx).Into(&out); err != nil {
		return nil, fmt.Errorf("list SecurityGroups: %w", err)
	}
	return out.Items, nil
}

// ReadSecurityGroup reads a SecurityGroup; found is false if there is none.
func ReadSecurityGroup(ctx context.Context, c *Client, name string) (g trunkline.SecurityGroup, found bool, err error) {
	err = c.Trunkline.Get().Resource(trunkline.ResourceSecurityGroups).Name(name).Do(ctx).Into(&g)
	if apierrors.IsNotFound(err) {
		return g, false, nil
	}
	if err != nil {
		return g, false, fmt.Errorf("read SecurityGroup %s: %w", name, err)
	}
	return g, true, nil
}

// PutSecurityGroup creates a SecurityGroup, or replaces one that was listed: another writer's change
// since then is an error.
func PutSecurityGroup(ctx context.Context, c *Client, g trunkline.SecurityGroup) error {
	g.TypeMeta = metav1.TypeMeta{APIVersion: trunkline.GroupVersion().String(), Kind: "SecurityGroup"}
	req := c.Trunkline.Post()
	if g.ResourceVersion != "" {
		req = c.Trunkline.Put().Name(g.Name)
	}
	if err := req.Resource(trunkline.ResourceSecurityGroups).Body(&g).Do(ctx).Error(); err != nil {
		return fmt.Errorf("write SecurityGroup %s: %w", g.Name, err)
	}
	return nil
}

// DeleteSecurityGroup deletes a SecurityGroup; a missing one is success.
func DeleteSecurityGroup(ctx context.Context, c *Client, name string) error {
	err := c.Trunkline.Delete().Resource(trunkline.ResourceSecurityGroups).Name(name).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete SecurityGroup %s: %w", name, err)
	}
	return nil
}
