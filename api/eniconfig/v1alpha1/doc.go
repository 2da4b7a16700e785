// Package v1alpha1 is AWS's group crd.k8s.amazonaws.com/v1alpha1: ENIConfig, the
// subnet and security groups of pod interfaces in custom networking. Field names
// and CRD are AWS's (aws/amazon-vpc-cni-k8s, pkg/apis/crd/v1alpha1).
//
// Types only. Users write the objects. This version installs the CRD, does not read
// the objects, and refuses to start when custom networking is enabled.
//
// +kubebuilder:object:generate=true
// +groupName=crd.k8s.amazonaws.com
package v1alpha1
