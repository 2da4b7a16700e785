// Package controller is the cluster's daemon: one leader that collects leaked
// interfaces, keeps AWS's CNINode objects and removes the reports of nodes that
// are gone.
//
// It introduces: core/leak decides what leaked, edge/ec2 deletes, edge/kube reads
// and writes the API. cmd/trunkline calls Run. Every loop lists and compares; no
// step depends on having seen an event.
package controller
