package v1alpha1

import (
	"slices"

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

// FeatureName names a feature of a node's network. AWS's definition accepts any name.
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

// Manager names the controller that owns a CNINode and AWS's part of its status. Empty is
// ManagedByVPCResourceController.
type Manager string

// Managers.
const (
	ManagedByVPCResourceController Manager = "vpc-resource-controller"
	ManagedByEKSAutoMode           Manager = "eks-auto-mode"
)

// CNINodeSpec is the desired state.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.managedBy) || has(self.managedBy)",message="managedBy cannot be removed once set"
type CNINodeSpec struct {
	// Features that the node's agent requests.
	// +optional
	Features []Feature `json:"features,omitempty"`
	// Tags of every interface created for the node.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// ManagedBy is the controller that owns the object. Others leave it alone.
	// +optional
	// +kubebuilder:validation:Enum=vpc-resource-controller;eks-auto-mode
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="managedBy is immutable once set"
	ManagedBy Manager `json:"managedBy,omitempty"`
}

// CNINodeStatus has AWS's two fields, which Trunkline never writes, and one of Trunkline's.
type CNINodeStatus struct {
	// TrunkInterface is the trunk and its branches as AWS's controller recorded them.
	// +optional
	TrunkInterface *TrunkInterface `json:"trunkInterface,omitempty"`
	// NodeNetworkState is what AWS's controller restarts from without calls of EC2.
	// +optional
	NodeNetworkState *NodeNetworkState `json:"nodeNetworkState,omitempty"`
	// Trunkline is the record of Trunkline's controller where it owns the trunk. AWS's
	// definition has no such field, and the API server drops it there: write it with
	// fieldValidation=Strict, so that such a write is an error. It is written as a whole, without owners of its
	// fields, and has no schema: both would take the API server several times as long as the write.
	// +optional
	// +structType=atomic
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Trunkline *BranchLedger `json:"trunkline,omitempty"`
}

// CNINode is the node object of AWS's network controllers. Its name is the node's, and
// its owner reference is the Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cnd
// +kubebuilder:printcolumn:name="Features",type=string,JSONPath=`.spec.features`,description="The features delegated to VPC resource controller"
// +kubebuilder:selectablefield:JSONPath=`.spec.managedBy`
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

// FinalizerAWS is that of AWS's VPC resource controller. It adds it to each CNINode that is not managed
// by another controller, whichever program has created it. Source: Reconcile in
// controllers/crds/cninode_controller.go of aws/amazon-vpc-resource-controller-k8s (since v1.4).
const FinalizerAWS = "networking.k8s.aws/resource-cleanup"

// OwnedByAWS is why a controller of AWS owns the CNINode, and with it the trunk of the node; empty if
// nothing shows that one does.
func (n *CNINode) OwnedByAWS() string {
	switch {
	case n.Spec.ManagedBy == ManagedByEKSAutoMode:
		return "EKS Auto Mode manages the CNINode (spec.managedBy)"
	case n.Spec.ManagedBy != "":
		return "AWS's VPC resource controller manages the CNINode (spec.managedBy)"
	case slices.Contains(n.Finalizers, FinalizerAWS):
		return "AWS's VPC resource controller owns the CNINode (its finalizer " + FinalizerAWS + ")"
	case n.Status.TrunkInterface != nil || n.Status.NodeNetworkState != nil:
		return "AWS's VPC resource controller has recorded the trunk of the node in the status of the CNINode"
	}
	return ""
}
