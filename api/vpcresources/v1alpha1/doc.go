// Package v1alpha1 is the part of AWS's group vpcresources.k8s.aws/v1alpha1 that
// Trunkline reads and writes: CNINode, through which a node's agent and AWS's VPC
// resource controller negotiate features. Field names and CRD are AWS's, so that
// either side can be replaced on a live cluster. Source:
// aws/amazon-vpc-resource-controller-k8s, apis/vpcresources/v1alpha1 of commit 0caa2d53.
// CNINodeStatus has one more field, trunkline, for the records of Trunkline's controller.
//
// Types, and what is wrong with a ledger that was read. The controller creates the objects.
//
// +kubebuilder:object:generate=true
// +groupName=vpcresources.k8s.aws
package v1alpha1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:dir=../../../deploy/components/cninode
