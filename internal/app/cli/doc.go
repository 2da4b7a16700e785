// Package cli implements the operator's commands of Trunkline: status, show and the
// cluster access of the connectivity test, all through the API server. It makes no
// decisions about networks: it reads and renders the reports of agents.
//
// cmd/trunkline parses flags and calls it. Details beyond a node's report come from the
// agent's introspection, either on the node itself or by running the same command in the
// agent's pod.
package cli

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Names and labels of the objects in deploy/.
const (
	systemNamespace = "kube-system"
	agentName       = "trunkline-agent"
	controllerName  = "trunkline-controller"
	admissionName   = "trunkline-admission"
	nameLabel       = "app.kubernetes.io/name"
	partOfLabel     = "app.kubernetes.io/part-of"
)

// own reports whether a pod is one of Trunkline's.
func own(p *corev1.Pod) bool {
	return p.Namespace == systemNamespace && slices.Contains([]string{agentName, controllerName, admissionName}, p.Labels[nameLabel])
}
