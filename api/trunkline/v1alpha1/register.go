package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and Version of this package; resource names are the plural, lower-case
// ones of the CRDs.
const (
	Group   = "trunkline.dev"
	Version = "v1alpha1"

	ResourceNodeNetworks   = "nodenetworks"
	ResourceBrakes         = "brakes"
	ResourceSecurityGroups = "securitygroups"
)

// GroupVersion returns the group and version as one value.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &NodeNetwork{}, &NodeNetworkList{}, &Brake{}, &BrakeList{}, &SecurityGroup{}, &SecurityGroupList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
