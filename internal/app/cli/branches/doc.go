// Package branches prints the branch interfaces of nodes for `trunkline show branches`, and for
// `trunkline explain pod` which security groups a pod gets, by which policies, and what is missing
// until it has them.
//
// It decides nothing: core/securitygroup selects, core/podeni reads annotations. It reads the API
// server (read.go), joins what it has read (list.go, explain.go) and renders it (write.go).
package branches
