// Package v1alpha1 is the part of AWS's group crd.k8s.amazonaws.com/v1alpha1 that Trunkline reads:
// ENIConfig, which names the subnet and the security groups of interfaces with custom networking.
// Source: aws/amazon-vpc-cni-k8s, pkg/apis/crd/v1alpha1.
//
// Types only, and no definition: AWS's CNI installs it.
//
// +kubebuilder:object:generate=true
// +groupName=crd.k8s.amazonaws.com
package v1alpha1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object paths=.
