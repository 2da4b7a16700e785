// Package kube is the product's only way to the Kubernetes API: it reflects what
// one node has to know of its cluster (its own pods, its Node, the Brakes), asks
// for a pod the reflection does not hold yet, and writes back events, the node's
// NodeNetwork and its NetworkUnavailable condition.
//
// It acts and never decides. It may touch the API server and one snapshot file,
// by which a node keeps working while the API server is away. Resources are named
// by group and version here, never discovered: absence is only ever a 404 to a
// request for that very object. The agent uses Cluster; the controller and the
// CLI use Client.
package kube
