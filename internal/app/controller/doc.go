// Package controller is the cluster daemon: an elected leader that deletes leaked
// interfaces, tags the primary interfaces of nodes with their instances, creates AWS's
// CNINode objects and deletes the reports of nodes that no longer exist. Where Trunkline owns
// trunks and branches, it runs their controller, control/trunk; where nodes enforce security groups,
// control/groupfeed and control/groupstatus.
//
// It connects the parts: core/leak decides what leaked, edge/ec2 deletes, edge/kube
// reads and writes the API. cmd/trunkline calls Run. Every loop lists and compares; no
// step depends on having received an event.
package controller
