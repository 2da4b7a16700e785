// Package connectivity implements `trunkline connectivity test`: it creates a few pods
// in any cluster, sends real packets between them, the nodes, the services and hosts
// outside, and checks every answer, including the source address that the receiver saw.
//
// A case is a row of a table (name, what it asserts, what it needs, how it runs); each
// group of cases has a file. Cases that cannot run in a cluster are skipped with a
// reason. Three checks cover the whole run: unexpected drops, error logs and interrupted
// connections.
//
// Run prepares an Env and runs the cases in it. The set-up chooses nodes and creates a
// client, a server and a host pod on each (setup.go), searches pairs of pods on one and
// on two ENIs (pairs.go), creates Services (services.go) and streams (streams.go), and
// records which needs are not met (need.go).
// Pods with security groups of their own, and those with policies, are created after the
// other cases ran.
//
// It writes to one namespace, which it creates and deletes, and deletes the namespaces
// of earlier runs that crashed. One run at a time is allowed in a cluster. It accesses
// the cluster only through the Cluster interface, and the pods only through the JSON
// that the workload image prints. The CLI calls Run.
package connectivity
