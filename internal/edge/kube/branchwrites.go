package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// controllerOwner is the field manager of the controller's writes.
const controllerOwner = "trunkline-controller"

// ErrChanged means that another program has changed the record since it was read or written last.
var ErrChanged = errors.New("another program has changed it")

// WriteLedger writes the record of Trunkline's controller to the status of a CNINode, and returns
// the object as it is then. was is the object as it was read or written last, and tried are the records of
// later writes with an unknown outcome: if the API server has another record than one of these, nothing is
// written and the error is ErrChanged. The rest of the object may have changed. A definition without the
// field is an error.
func (b *BranchObjects) WriteLedger(ctx context.Context, was *vpcresources.CNINode, l *vpcresources.BranchLedger, tried ...*vpcresources.BranchLedger) (*vpcresources.CNINode, error) {
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	next := was.DeepCopy()
	for range 3 {
		next.Status.Trunkline = l
		out, err := b.putStatus(ctx, next)
		if !apierrors.IsConflict(err) {
			return out, err
		}
		live := &vpcresources.CNINode{}
		if err := b.client.VPC.Get().Resource(vpcresources.ResourceCNINodes).Name(was.Name).Do(ctx).Into(live); err != nil {
			return nil, fmt.Errorf("get CNINode %s: %w", was.Name, err)
		}
		same := func(of *vpcresources.BranchLedger) bool {
			return apiequality.Semantic.DeepEqual(live.Status.Trunkline, of)
		}
		if live.UID != was.UID || !same(was.Status.Trunkline) && !slices.ContainsFunc(tried, same) {
			return nil, fmt.Errorf("write status.trunkline of CNINode %s: %w", was.Name, ErrChanged)
		}
		next = live
	}
	return nil, fmt.Errorf("write status.trunkline of CNINode %s: other programs change the object all the time", was.Name)
}

func (b *BranchObjects) putStatus(ctx context.Context, n *vpcresources.CNINode) (*vpcresources.CNINode, error) {
	n.TypeMeta = metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: "CNINode"}
	out := &vpcresources.CNINode{}
	err := b.client.VPC.Put().Resource(vpcresources.ResourceCNINodes).Name(n.Name).SubResource("status").
		Param("fieldManager", controllerOwner).Param("fieldValidation", metav1.FieldValidationStrict).Body(n).Do(ctx).Into(out)
	if err != nil {
		return nil, fmt.Errorf("write status.trunkline of CNINode %s: %w", n.Name, err)
	}
	return out, nil
}

// SetFinalizer adds a finalizer to a CNINode, or removes it. Of an object that does not exist
// there is nothing to remove.
func (b *BranchObjects) SetFinalizer(ctx context.Context, n *vpcresources.CNINode, name string, want bool) error {
	list := slices.DeleteFunc(slices.Clone(n.Finalizers), func(f string) bool { return f == name })
	if want {
		list = append(list, name)
	}
	if list == nil {
		list = []string{}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion, "finalizers": list}})
	if err != nil {
		return fmt.Errorf("encode finalizers of CNINode %s: %w", n.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	err = b.client.VPC.Patch(types.MergePatchType).Resource(vpcresources.ResourceCNINodes).Name(n.Name).
		Param("fieldManager", controllerOwner).Body(body).Do(ctx).Error()
	if err != nil && (want || !apierrors.IsNotFound(err)) {
		return fmt.Errorf("write finalizers of CNINode %s: %w", n.Name, err)
	}
	return nil
}

// AnnotatePod writes the annotation that gives a pod its branches, if the pod has the uid. The
// error is ErrNoPod if it has ended.
func (b *BranchObjects) AnnotatePod(ctx context.Context, ref PodRef, uid, text string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "annotations": map[string]string{vpc.AnnotationPodENI: text}}})
	if err != nil {
		return fmt.Errorf("encode annotation of pod %s: %w", ref, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	_, err = b.client.Core.CoreV1().Pods(ref.Namespace).Patch(ctx, ref.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: controllerOwner})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // a conflict: the pod of that name has another uid
		return fmt.Errorf("annotate pod %s: %w: %w", ref, ErrNoPod, err)
	case err != nil:
		return fmt.Errorf("annotate pod %s: %w", ref, err)
	}
	return nil
}

// Refused reports whether the API server refused a request, which then had no effect.
func Refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < 500
}

// SetBranchCapacity writes the number of branches that a node can have to its capacity; -1 removes it.
func (b *BranchObjects) SetBranchCapacity(ctx context.Context, node string, n int) error {
	capacity := map[string]any{vpc.ResourcePodENI: fmt.Sprint(n)}
	if n < 0 {
		capacity[vpc.ResourcePodENI] = nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": capacity}})
	if err != nil {
		return fmt.Errorf("encode capacity of node %s: %w", node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	_, err = b.client.Core.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{FieldManager: controllerOwner}, "status")
	if err != nil {
		return fmt.Errorf("write capacity of node %s: %w", node, err)
	}
	return nil
}

// BranchCapacity is the number of branches in a node's capacity; ok is false without one.
func BranchCapacity(n *corev1.Node) (count int, ok bool) {
	q, ok := n.Status.Capacity[vpc.ResourcePodENI]
	return int(q.Value()), ok
}

// NodeEvent writes an event about a node.
func (e *Events) NodeEvent(node, kind, reason, message string) {
	e.recorder.Event(nodeReference(node), kind, reason, message)
}
