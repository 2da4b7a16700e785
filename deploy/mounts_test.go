package deploy_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A bpffs that the init container mounts is the node's, and the agent sees it.
func TestABPFFSThatInitMountsIsTheNodes(t *testing.T) {
	propagation := map[string]corev1.MountPropagationMode{}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			for _, m := range c.VolumeMounts {
				if m.MountPath == "/bpf" && m.MountPropagation != nil {
					propagation[owner+", "+c.Name] = *m.MountPropagation
				}
			}
		}
	})
	if propagation["DaemonSet trunkline-agent, init"] != corev1.MountPropagationBidirectional || propagation["DaemonSet trunkline-agent, agent"] != corev1.MountPropagationHostToContainer {
		t.Errorf("mount propagation %v", propagation)
	}
}
