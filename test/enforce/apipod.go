package enforce

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// APIPod is a running pod as the API server has it.
func APIPod(p policy.Pod) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{NodeName: p.Node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for i, a := range p.Addresses {
		if i == 0 {
			pod.Status.PodIP = a.String()
		}
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	for _, port := range p.Ports {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: port.Name, Ports: []corev1.ContainerPort{{
			Name: port.Name, ContainerPort: int32(port.Port), Protocol: corev1.Protocol(port.Protocol.String()),
		}}})
	}
	return pod
}
