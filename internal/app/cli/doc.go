// Package cli is the operator's side of Trunkline: status, show, the brakes and
// the pods of the connectivity test, by the API server alone. It decides nothing
// about networks: it reads what agents report, renders it, and judges nothing
// that the report does not say.
//
// cmd/trunkline parses flags and calls it. What a node knows beyond its report is
// read from the agent's introspection, on the node itself or by running the same
// command in the agent's pod.
package cli

// Names of what deploy/ installs.
const (
	systemNamespace = "kube-system"
	agentName       = "trunkline-agent"
	controllerName  = "trunkline-controller"
	nameLabel       = "app.kubernetes.io/name"
	partOfLabel     = "app.kubernetes.io/part-of"
)
