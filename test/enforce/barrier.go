package enforce

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// Paths of the API server.
const (
	networkPolicies = "/apis/networking.k8s.io/v1/networkpolicies"
	namespaces      = "/api/v1/namespaces"
	pods            = "/api/v1/pods"
)

// barrier is the name of an object of each kind. The server sends the objects of a kind in the
// order in which they changed, so that one with a new number is the last.
const barrier = "barrier"

// raise puts the barriers with a number.
func raise(s *kubetest.Server, n int64) {
	label := map[string]string{barrier: strconv.FormatInt(n, 10)}
	s.Put(networkPolicies, &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: barrier, Name: barrier, Generation: n},
	})
	s.Put(namespaces, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: barrier, Labels: label}})
	s.Put(pods, &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: barrier, Name: barrier, Labels: label},
		Spec: corev1.PodSpec{NodeName: "another"}, Status: corev1.PodStatus{PodIP: "192.0.2.250"},
	})
}

// note notes the numbers of barriers.
func (t *Taken) note(changes kube.PolicyChanges) {
	number := func(text string) int64 {
		n, _ := strconv.ParseInt(text, 10, 64) // 0: not a barrier
		return n
	}
	for ref, object := range changes.Policies {
		if ref.Name == barrier && object != nil {
			t.Policy = object.Generation
		}
	}
	if set := changes.Namespaces[barrier]; set != nil {
		t.Namespace = number((*set)[barrier])
	}
	if pod := changes.Pods[policy.PodRef{Namespace: barrier, Name: barrier}]; pod != nil {
		t.Pod = number(pod.Labels[barrier])
	}
}
