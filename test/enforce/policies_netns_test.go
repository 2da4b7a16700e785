//go:build netns

package enforce

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func app(name string) map[string]string { return map[string]string{"app": name} }

// isolating is a policy that selects the pods of an app and allows what its rules do.
func isolating(of string, rules ...networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-" + of},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: app(of)}, Ingress: rules, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
}

// closing is a policy that denies the pods of an app all packets in both directions.
func closing(of string) *networkingv1.NetworkPolicy {
	p := isolating(of)
	p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	return p
}

// from is a rule that allows the pods of an app to reach ports of UDP, TCP and SCTP; without ports, all.
func from(peer string, ports ...int) (rule networkingv1.NetworkPolicyIngressRule) {
	rule.From = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: app(peer)}}}
	for _, port := range ports {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP, corev1.ProtocolSCTP} {
			rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: new(intstr.FromInt(port))})
		}
	}
	return rule
}
