package podeni

import (
	"errors"
	"fmt"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Who may write the annotation.
var (
	// ErrAtCreation: a pod is created with the annotation. No branch can be its own yet.
	ErrAtCreation = errors.New("a pod cannot be created with the annotation vpc.amazonaws.com/pod-eni")
	// ErrNotWriter: the annotation is added, changed or removed by another user than a controller.
	ErrNotWriter = errors.New("only the controller of branches may change the annotation vpc.amazonaws.com/pod-eni")
)

// AWSWriters are the users by which AWS's controller writes the annotation. Source: the webhook
// vpod.vpc.k8s.aws (AnnotationValidator) of aws/amazon-vpc-resource-controller-k8s.
func AWSWriters() []string {
	return []string{
		"eks:vpc-resource-controller",
		"system:serviceaccount:kube-system:vpc-resource-controller",
		"system:serviceaccount:kube-system:eks-vpc-resource-controller",
	}
}

// AdmitCreate judges the creation of a pod with these annotations, by any user.
func AdmitCreate(annotations map[string]string) error {
	if _, ok := annotations[vpc.AnnotationPodENI]; ok {
		return ErrAtCreation
	}
	return nil
}

// AdmitUpdate judges an update of a pod's annotations by a user. writers are the controllers' users.
func AdmitUpdate(before, after map[string]string, user string, writers []string) error {
	was, had := before[vpc.AnnotationPodENI]
	is, has := after[vpc.AnnotationPodENI]
	if had == has && was == is || slices.Contains(writers, user) {
		return nil
	}
	return fmt.Errorf("user %q: %w", user, ErrNotWriter)
}
