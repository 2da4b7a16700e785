package podadmission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func pod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
}

// requests is whether a container of a pod requests a branch, by its limits and requests.
func requests(p *corev1.Pod) bool {
	for _, c := range p.Spec.Containers {
		limit, request := c.Resources.Limits[vpc.ResourcePodENI], c.Resources.Requests[vpc.ResourcePodENI]
		if limit.Value() >= 1 && request.Value() >= 1 {
			return true
		}
	}
	return false
}

func TestAPodThatAPodSelectorSelectsRequestsABranch(t *testing.T) {
	objects := podadmission.Compile(podadmission.Input{Policies: []securitygroup.Policy{{
		Ref: securitygroup.Ref{Namespace: "shop", Name: "db"}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "db"}}, Groups: []string{"sg-1"},
	}}}, podadmission.Config{Mutates: true})
	c := start(t, objects, []string{"shop", "bank"}, "127.0.0.1:1")
	for _, tt := range []struct {
		namespace, role string
		want            bool
	}{{"shop", "db", true}, {"shop", "web", false}, {"bank", "db", false}} {
		got, err := c.create(t.Context(), pod(tt.namespace, "p", map[string]string{"role": tt.role}))
		if err != nil || requests(got) != tt.want {
			t.Errorf("%s in %s requests a branch: %v, want %v; %v", tt.role, tt.namespace, requests(got), tt.want, err)
		}
	}
}
