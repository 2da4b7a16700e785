package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// FromPod converts a pod; ok is false for one that has ended: others use its address.
// Addresses that cannot be read are left out.
func FromPod(p *corev1.Pod) (pod Pod, ok bool) {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return Pod{}, false
	}
	return Pod{
		Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Node: p.Spec.NodeName,
		HostNetwork: p.Spec.HostNetwork, Addresses: addressesOf(&p.Status), Ports: NamedPorts(&p.Spec),
	}, true
}

func addressesOf(s *corev1.PodStatus) (list []netip.Addr) {
	texts := []string{s.PodIP}
	for _, ip := range s.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(list, a.Unmap()) {
			list = append(list, a.Unmap())
		}
	}
	return list
}

// NamedPorts are the ports with names of the containers that run as long as the pod: init
// containers that are restarted always are among them.
func NamedPorts(s *corev1.PodSpec) (list []NamedPort) {
	containers := slices.Clone(s.Containers)
	for _, c := range s.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, p := range c.Ports {
			named := NamedPort{Name: p.Name, Port: uint16(p.ContainerPort)}
			switch p.Protocol {
			case corev1.ProtocolTCP, "":
				named.Protocol = TCP
			case corev1.ProtocolUDP:
				named.Protocol = UDP
			case corev1.ProtocolSCTP:
				named.Protocol = SCTP
			default:
				continue
			}
			if p.Name != "" && p.ContainerPort > 0 && p.ContainerPort <= allPorts && !slices.Contains(list, named) {
				list = append(list, named)
			}
		}
	}
	return list
}
