package kube_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// As AWS's webhook changes a pod that a SecurityGroupPolicy selects: limit and request of its
// first container. Source: aws/amazon-vpc-resource-controller-k8s, webhooks/core.
func withBranch(name string) *corev1.Pod {
	p := pod("a", name, "n1", "uid-"+name)
	one := corev1.ResourceList{"vpc.amazonaws.com/pod-eni": resource.MustParse("1")}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: one, Requests: one}}}
	return p
}

func TestAPodThatRequestsABranchInterfaceIsKnownAsSuch(t *testing.T) {
	ordinary := pod("a", "ordinary", "n1", "uid-ordinary")
	ordinary.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}
	w := newWorld(t, func(s *kubetest.Server) { s.Put(pods, withBranch("branch")); s.Put(pods, ordinary) })
	w.until(t, "sync", func() bool { return w.cluster.Synced() && len(w.cluster.Pods()) == 2 })
	check := func(where string) {
		for name, want := range map[string]bool{"branch": true, "ordinary": false} {
			if p, err := w.cluster.Pod(t.Context(), kube.PodRef{Namespace: "a", Name: name}, ""); err != nil || p.BranchInterface != want {
				t.Errorf("%s: pod %s requests a branch interface: %v (%v), want %v", where, name, p.BranchInterface, err, want)
			}
		}
	}
	check("cache")
	w.until(t, "the snapshot holds both", func() bool {
		s, err := kube.LoadSnapshot(w.path)
		return err == nil && len(s.Pods) == 2
	})
	w.SetDown(true)
	w.start(t)
	check("snapshot")
}
