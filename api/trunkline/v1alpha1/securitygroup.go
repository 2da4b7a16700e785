package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SecurityGroup is what nodes need to know of a security group of EC2 to enforce it for pods
// without an interface of their own. Its name is the group's id. There is one for each group that
// a SecurityGroupPolicy names, and for each that a rule of these refers to. The controller reads
// EC2 and writes it, so that nodes need neither the permission nor the calls; only the controller
// may write it.
//
// A node without the object of a group allows nothing by that group.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="VPC",type=string,JSONPath=`.spec.vpcID`
// +kubebuilder:printcolumn:name="Name",type=string,JSONPath=`.spec.groupName`
// +kubebuilder:printcolumn:name="Absent",type=boolean,JSONPath=`.spec.absent`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^sg-([0-9a-f]{8}|[0-9a-f]{17})$')",message="the name must be the id of a security group, such as sg-0123456789abcdef0"
type SecurityGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SecurityGroupSpec `json:"spec"`
}

// SecurityGroupSpec is a group as EC2 describes it.
//
// +kubebuilder:validation:XValidation:rule="has(self.vpcID) != has(self.absent)",message="exactly one of vpcID and absent must be set"
// +kubebuilder:validation:XValidation:rule="!has(self.absent) || !(has(self.groupName) || has(self.rules) || has(self.members) || has(self.pools) || has(self.notUsed))",message="a group that is absent has nothing else"
type SecurityGroupSpec struct {
	// VPCID of the group.
	// +optional
	// +kubebuilder:validation:Pattern=`^vpc-[0-9a-f]+$`
	VPCID string `json:"vpcID,omitempty"`
	// Absent: a policy names the group, and EC2 has none of the id in the account. Nodes refuse pods
	// with it by name. It may be created later.
	// +optional
	// +kubebuilder:validation:Enum=true
	Absent bool `json:"absent,omitempty"`
	// GroupName is that of EC2.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	GroupName string `json:"groupName,omitempty"`
	// Rules by id. EC2 allows up to 1,000 for all groups of an interface.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=1000
	Rules []SecurityGroupRule `json:"rules,omitempty"`
	// Members are ranges with the addresses of interfaces that have the group and are not pods':
	// of instances, load balancers and nodes; disjoint, in order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20000
	// +kubebuilder:validation:items:MaxLength=43
	Members []string `json:"members,omitempty"`
	// Pools are ranges that nodes' interfaces with the group have for pods. Of these, addresses
	// of pods without groups of their own are members.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20000
	// +kubebuilder:validation:items:MaxLength=43
	Pools []string `json:"pools,omitempty"`
	// NotUsed is what EC2 describes of the group that could not be read, with the reason. It
	// allows nothing.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	NotUsed []string `json:"notUsed,omitempty"`
}

// SecurityGroupRule is a rule of a group.
//
// +kubebuilder:validation:XValidation:rule="[has(self.prefixes), has(self.groupID), has(self.unusable)].exists_one(x, x)",message="exactly one of prefixes, groupID and unusable must be set"
// +kubebuilder:validation:XValidation:rule="self.fromPort <= self.toPort || !(self.protocol in [6, 17])",message="fromPort must not be greater than toPort"
type SecurityGroupRule struct {
	// ID of the rule.
	// +kubebuilder:validation:Pattern=`^sgr-[0-9a-f]+$`
	// +kubebuilder:validation:MaxLength=40
	ID string `json:"id"`
	// Direction of the connections.
	// +kubebuilder:validation:Enum=Ingress;Egress
	Direction RuleDirection `json:"direction"`
	// Protocol is the number of an IP protocol, -1 for all.
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=255
	Protocol int32 `json:"protocol"`
	// FromPort is the first port, or the ICMP type; -1 is all.
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=65535
	FromPort int32 `json:"fromPort"`
	// ToPort is the last port, or the ICMP code; -1 is all.
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=65535
	ToPort int32 `json:"toPort"`
	// Prefixes are the peers: one range, or those of a prefix list.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=43
	Prefixes []string `json:"prefixes,omitempty"`
	// GroupID is the group of which the members are the peers.
	// +optional
	// +kubebuilder:validation:Pattern=`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`
	GroupID string `json:"groupID,omitempty"`
	// Unusable is why the peers are not known: a group of another VPC, a prefix list that could
	// not be read. The rule allows nothing.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Unusable string `json:"unusable,omitempty"`
}

// RuleDirection is the direction of the connections that a rule allows.
type RuleDirection string

// Directions, seen from the interface with the group.
const (
	RuleIngress RuleDirection = "Ingress"
	RuleEgress  RuleDirection = "Egress"
)

// SecurityGroupList is a list of SecurityGroups.
//
// +kubebuilder:object:root=true
type SecurityGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SecurityGroup `json:"items"`
}
