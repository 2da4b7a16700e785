// Package v1alpha1 is Trunkline's own API group, trunkline.dev/v1alpha1: what a
// node reports about its network (NodeNetwork), what an operator may stop
// while it runs (Brake), and what nodes need to know of security groups (SecurityGroup).
//
// Types only: no decisions, no I/O. The agent writes NodeNetwork and reads Brake, the
// controller reads both, `trunkline status` prints both. controller-gen generates the
// deepcopy code and the CRDs in deploy/crds from this package.
//
// +kubebuilder:object:generate=true
// +groupName=trunkline.dev
package v1alpha1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:dir=../../../deploy/crds
