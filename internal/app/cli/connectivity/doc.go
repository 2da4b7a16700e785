// Package connectivity is `trunkline connectivity test`: it puts a few pods into
// any cluster, sends real packets between them, the nodes, the services and the
// world outside, and judges every answer by the address the receiver saw.
//
// A case is a row of a table (name, what it asserts, what it needs, how it runs);
// each group of cases has a file. Cases that cannot run here are skipped with a
// named reason. Three checks watch the whole run: unexpected drops, error logs,
// interrupted connections.
//
// It touches one namespace, which it makes and removes, and reads the rest; beside
// that it removes what runs left that died. There is one run at a time in a cluster. It
// knows the cluster only through Cluster, the pods only by the JSON that the
// workload image prints. The CLI calls Run.
package connectivity
