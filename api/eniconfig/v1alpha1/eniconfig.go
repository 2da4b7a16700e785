package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group, Version, and the definition's kind and resource name.
const (
	Group   = "crd.k8s.amazonaws.com"
	Version = "v1alpha1"

	KindENIConfig      = "ENIConfig"
	ResourceENIConfigs = "eniconfigs"
)

// GroupVersion returns the group and version as one value.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &ENIConfig{}, &ENIConfigList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// ENIConfigSpec is where interfaces are created. AWS's definition checks none of it.
type ENIConfigSpec struct {
	// SecurityGroups by id; without any, interfaces have those of the node's primary interface.
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Subnet by id.
	Subnet string `json:"subnet"`
}

// ENIConfig names the subnet and the security groups of interfaces with custom networking.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
type ENIConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ENIConfigSpec `json:"spec,omitempty"`
}

// ENIConfigList is a list of ENIConfigs.
//
// +kubebuilder:object:root=true
type ENIConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ENIConfig `json:"items"`
}
