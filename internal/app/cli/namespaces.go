package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// namespaces creates and deletes the namespaces of connectivity tests. A namespace is
// addressed by its name and UID: one of the same name with another UID belongs to another
// run.
type namespaces struct{ client *kube.Client }

// list returns the namespaces of all runs.
func (n namespaces) list(ctx context.Context) ([]corev1.Namespace, error) {
	list, err := n.client.Core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + testPart})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// create creates a namespace. If one of another run exists it returns errConflict.
func (n namespaces) create(ctx context.Context, name string) (types.UID, error) {
	all := n.client.Core.CoreV1().Namespaces()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		partOfLabel: testPart,
		// The test needs host pods and raw sockets.
		"pod-security.kubernetes.io/enforce": "privileged",
	}}}
	created, err := all.Create(ctx, ns, metav1.CreateOptions{})
	switch {
	case err == nil:
		return created.UID, nil
	case !apierrors.IsAlreadyExists(err):
		return "", fmt.Errorf("create namespace %s: %w", name, err)
	}
	existing, err := all.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && existing.Labels[partOfLabel] != testPart:
		return "", fmt.Errorf("namespace %s exists and was not created by this test: choose another one with --namespace", name)
	case err == nil || apierrors.IsNotFound(err):
		return "", errConflict
	}
	return "", fmt.Errorf("get namespace %s: %w", name, err)
}

// remove deletes the namespace with this UID and waits until it is deleted. Another
// namespace of the same name is not changed.
func (n namespaces) remove(ctx context.Context, name string, uid types.UID) error {
	if exists, err := n.exists(ctx, name, uid); err != nil || !exists {
		return err
	}
	// Pods are deleted first: the namespace controller, if it finds pods that are being
	// deleted, retries only after half a minute.
	pods := n.client.Core.CoreV1().Pods(name)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the pods of namespace %s: %w", name, err)
	}
	err := poll(ctx, func(ctx context.Context) (bool, error) { return n.noPods(ctx, name, uid), nil })
	if err != nil {
		// Delete the namespace without waiting, so that Kubernetes removes it with its
		// last pod.
		uninterrupted, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		err = errors.Join(err, n.delete(uninterrupted, name, uid))
		return fmt.Errorf("wait until the pods of namespace %s are deleted: %w", name, err)
	}
	if err := n.delete(ctx, name, uid); err != nil {
		return err
	}
	return n.waitDeleted(ctx, name, uid)
}

// noPods reports whether the namespace has no pods. It returns false if it cannot read
// them.
func (n namespaces) noPods(ctx context.Context, name string, uid types.UID) bool {
	pods := n.client.Core.CoreV1().Pods(name)
	left, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) == 0 {
		return err == nil
	}
	if exists, err := n.exists(ctx, name, uid); err != nil || !exists {
		return err == nil
	}
	if slices.ContainsFunc(left.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil }) {
		// A pod that was being created when the run was interrupted.
		_ = pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	return false
}

// exists reports whether the namespace with this UID exists.
func (n namespaces) exists(ctx context.Context, name string, uid types.UID) (bool, error) {
	ns, err := n.client.Core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return ns.UID == uid, nil
}

func (n namespaces) delete(ctx context.Context, name string, uid types.UID) error {
	err := n.client.Core.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict: being deleted, or another UID
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}

// waitDeleted waits until the namespace with this UID is deleted.
func (n namespaces) waitDeleted(ctx context.Context, name string, uid types.UID) error {
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		exists, err := n.exists(ctx, name, uid)
		return err == nil && !exists, nil
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %s is deleted: %w", name, err)
	}
	return nil
}
