package branches

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// ReadList reads the trunks and branches of all nodes.
func ReadList(ctx context.Context, c *kube.Client) (List, error) {
	nodes, found, err := kube.CNINodes(ctx, c)
	if err != nil {
		return List{}, err
	}
	if !found {
		return List{}, fmt.Errorf("the API server has no CNINodes: security groups for pods are not installed")
	}
	return Of(nodes), nil
}

// Read reads what an explanation of a pod is made of.
func Read(ctx context.Context, c *kube.Client, namespace, name string) (o Objects, err error) {
	o.Now = time.Now()
	o.Pod, err = c.Core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return o, fmt.Errorf("pod %s/%s: the API server has no pod %s in the namespace %s: list the pods of all namespaces with `kubectl get pods -A`, and write NAMESPACE/NAME", namespace, name, name, namespace)
	}
	if err != nil {
		return o, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	var policies v1beta1.SecurityGroupPolicyList
	err = c.Policies.Get().Namespace(namespace).Resource(v1beta1.ResourceSecurityGroupPolicies).Do(ctx).Into(&policies)
	if apierrors.IsNotFound(err) {
		return o, fmt.Errorf("the API server has no SecurityGroupPolicies: security groups for pods are not installed")
	}
	if err != nil {
		return o, fmt.Errorf("list SecurityGroupPolicies of %s: %w", namespace, err)
	}
	o.Policies = policies.Items
	if account := o.Pod.Spec.ServiceAccountName; account != "" {
		o.Account, err = c.Core.CoreV1().ServiceAccounts(namespace).Get(ctx, account, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			o.Account = nil
		} else if err != nil {
			return o, fmt.Errorf("read service account %s/%s: %w", namespace, account, err)
		}
	}
	if node := o.Pod.Spec.NodeName; node != "" {
		var n v1alpha1.CNINode
		err = c.VPC.Get().Resource(v1alpha1.ResourceCNINodes).Name(node).Do(ctx).Into(&n)
		if err == nil {
			o.CNINode = &n
		} else if !apierrors.IsNotFound(err) {
			return o, fmt.Errorf("read CNINode %s: %w", node, err)
		}
	}
	return o, o.readMode(ctx, c)
}

// readMode reads how the pod's node treats groups, and which ones nodes know.
func (o *Objects) readMode(ctx context.Context, c *kube.Client) (err error) {
	node := o.Pod.Spec.NodeName
	if node == "" {
		o.Networks, _, err = kube.Reports(ctx, c)
		return err
	}
	n, err := kube.Report(ctx, c, node)
	if n == nil {
		return err
	}
	o.Networks = []trunkline.NodeNetwork{*n}
	if g := n.Status.PodGroups; g == nil || !g.NodeEnforces {
		return nil
	}
	for _, id := range decide(*o).Groups {
		if errors.Is(securitygroup.Known{}.Problem(id), securitygroup.ErrMalformedGroup) {
			continue // the name of no object
		}
		g, found, err := kube.ReadSecurityGroup(ctx, c, id)
		if err != nil {
			return err
		}
		if found {
			o.Groups = append(o.Groups, g)
		}
	}
	return nil
}
