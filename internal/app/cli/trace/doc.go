// Package trace explains which network policies decide about a connection, for `trunkline
// policy trace`: of manifests in a directory, or of a live cluster.
//
// It decides nothing: core/policy judges. It reads manifests (manifests.go) or the API server
// (live.go), finds the ends of a connection by their names (end.go), and renders the answer.
package trace
