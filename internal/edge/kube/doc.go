// Package kube is the product's only client of the Kubernetes API. It caches what one
// node needs of its cluster (its own pods, its Node, the Brakes), reads a pod that is
// not in the cache yet, and writes events, the node's NodeNetwork and its
// NetworkUnavailable condition. It reflects what network policies are judged on: the
// policies, the namespaces' labels and, with at least one policy, the cluster's pods.
//
// It acts and never decides. It may touch the API server and the snapshot files, with
// which a node keeps working while the API server is unreachable. Resources are
// addressed by fixed group and version, without discovery: an object is absent only if
// a request for it returns 404. The agent uses Cluster and PolicyObjects; the controller
// and the CLI use Client.
package kube
