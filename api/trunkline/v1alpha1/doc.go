// Package v1alpha1 is Trunkline's own API group, trunkline.dev/v1alpha1: what a
// node reports about its network (NodeNetwork) and what an operator may stop
// while it runs (Brake).
//
// Types only: it decides nothing and talks to nobody. The agent writes
// NodeNetwork and reads Brake, the controller reads both, `trunkline status`
// prints both. Deepcopy code and the CRDs in deploy/crds are generated from here
// by controller-gen.
//
// +kubebuilder:object:generate=true
// +groupName=trunkline.dev
package v1alpha1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=../../... output:crd:dir=../../../deploy/crds
