package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group, Version and the CRD's resource name.
const (
	Group   = "crd.k8s.amazonaws.com"
	Version = "v1alpha1"

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

// ENIConfigSpec is the subnet and the security groups of pod interfaces.
type ENIConfigSpec struct {
	// Subnet of the interfaces, by ID.
	Subnet string `json:"subnet"`
	// SecurityGroups of the interfaces, by ID. Empty: those of the node's
	// primary interface.
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

// ENIConfigStatus has no fields, as on AWS.
type ENIConfigStatus struct{}

// ENIConfig is the subnet and the security groups of the pod interfaces of nodes that
// refer to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
type ENIConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ENIConfigSpec `json:"spec,omitempty"`
	// +optional
	Status ENIConfigStatus `json:"status,omitempty"`
}

// ENIConfigList is a list of ENIConfigs.
//
// +kubebuilder:object:root=true
type ENIConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ENIConfig `json:"items"`
}
