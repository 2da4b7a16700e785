package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group, Version and the CRD's resource name.
const (
	Group   = "vpcresources.k8s.aws"
	Version = "v1alpha1"

	ResourceCNINodes = "cninodes"
)

// GroupVersion returns the group and version as one value.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme registers the types of this package in s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &CNINode{}, &CNINodeList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// FeatureName names a feature of a node's network.
// +kubebuilder:validation:Enum=SecurityGroupsForPods;CustomNetworking
type FeatureName string

// Features.
const (
	SecurityGroupsForPods FeatureName = "SecurityGroupsForPods"
	CustomNetworking      FeatureName = "CustomNetworking"
)

// Feature is one feature with its value; CustomNetworking's is the name of an
// ENIConfig.
type Feature struct {
	Name FeatureName `json:"name,omitempty"`
	// +optional
	Value string `json:"value,omitempty"`
}

// CNINodeSpec is the desired state.
type CNINodeSpec struct {
	// Features that the node's agent requests.
	// +optional
	Features []Feature `json:"features,omitempty"`
	// Tags of every interface created for the node.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
}

// CNINodeStatus has no fields yet, as on AWS.
type CNINodeStatus struct{}

// CNINode is the node object of AWS's network controllers. Its name is the node's, and
// its owner reference is the Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cnd
// +kubebuilder:printcolumn:name="Features",type=string,JSONPath=`.spec.features`
type CNINode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CNINodeSpec `json:"spec,omitempty"`
	// +optional
	Status CNINodeStatus `json:"status,omitempty"`
}

// CNINodeList is a list of CNINodes.
//
// +kubebuilder:object:root=true
type CNINodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CNINode `json:"items"`
}
