package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group, Version, and the CRD's kind and resource name.
const (
	Group   = "vpcresources.k8s.aws"
	Version = "v1beta1"

	KindSecurityGroupPolicy       = "SecurityGroupPolicy"
	ResourceSecurityGroupPolicies = "securitygrouppolicies"
)

// GroupVersion returns the group and version as one value.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &SecurityGroupPolicy{}, &SecurityGroupPolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
