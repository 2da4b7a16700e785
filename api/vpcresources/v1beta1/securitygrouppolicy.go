package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SecurityGroupPolicy gives the pods of its namespace that it selects security groups of their
// own. A pod that several policies select gets the groups of all.
//
// The spec is not validated further than by AWS's definition, which accepts policies without a
// selector and groups of any name: such a policy selects no pods, or its pods are refused, and its
// conditions say why.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sgp
// +kubebuilder:printcolumn:name="Security-Group-Ids",type=string,JSONPath=`.spec.securityGroups.groupIds`,description="The security group IDs to apply to the elastic network interface of pods that match this policy"
// +kubebuilder:printcolumn:name="Matched",type=integer,JSONPath=`.status.matchedPods`,priority=1
// +kubebuilder:printcolumn:name="Applied",type=integer,JSONPath=`.status.appliedPods`,priority=1
// +kubebuilder:printcolumn:name="Refused",type=integer,JSONPath=`.status.refusedPods`,priority=1
type SecurityGroupPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SecurityGroupPolicySpec `json:"spec,omitempty"`
	// Status is written by Trunkline's controller through the status sub-resource. A cluster
	// with AWS's definition has neither.
	// +optional
	Status SecurityGroupPolicyStatus `json:"status,omitzero"`
}

// SecurityGroupPolicySpec selects pods and names their security groups. With both selectors a
// pod must match both; without any the policy selects none. An empty selector matches all.
type SecurityGroupPolicySpec struct {
	// PodSelector selects by the labels of the pod.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// ServiceAccountSelector selects by the labels of the pod's service account.
	// +optional
	ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector,omitempty"`
	// SecurityGroups of the pods that the policy selects.
	// +optional
	SecurityGroups GroupIDs `json:"securityGroups,omitempty"`
}

// GroupIDs are security groups.
type GroupIDs struct {
	// Groups are the ids of security groups of the cluster's VPC. How many a pod may have is
	// a quota of the account for each interface: 5 by default, at most 16.
	// +optional
	// +kubebuilder:validation:MinItems=1
	Groups []string `json:"groupIds,omitempty"`
}

// SecurityGroupPolicyStatus is what the policy has effected.
// +kubebuilder:validation:XValidation:rule="self.appliedPods + self.refusedPods <= self.matchedPods",message="applied and refused pods are among the matched ones"
type SecurityGroupPolicyStatus struct {
	// ObservedGeneration is the generation that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// MatchedPods is the number of pods that the policy selects.
	// +kubebuilder:validation:Minimum=0
	MatchedPods int32 `json:"matchedPods"`
	// AppliedPods are matched, and have the groups of all policies that select them.
	// +kubebuilder:validation:Minimum=0
	AppliedPods int32 `json:"appliedPods"`
	// RefusedPods are matched, and do not run or were cut off, because their groups cannot be
	// applied.
	// +kubebuilder:validation:Minimum=0
	RefusedPods int32 `json:"refusedPods"`
	// Refused are the first of the refused pods by name.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=map
	// +listMapKey=name
	Refused []RefusedPod `json:"refused,omitempty"`
	// Conditions: Valid (the policy can be applied as it is written) and Applied (every matched
	// pod has its groups).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RefusedPod is a pod of the policy's namespace, and why its groups cannot be applied.
type RefusedPod struct {
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Reason in CamelCase, such as UnknownGroup.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// Condition types of a SecurityGroupPolicy.
const (
	ConditionValid   = "Valid"
	ConditionApplied = "Applied"
)

// SecurityGroupPolicyList is a list of SecurityGroupPolicies.
//
// +kubebuilder:object:root=true
type SecurityGroupPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SecurityGroupPolicy `json:"items"`
}
