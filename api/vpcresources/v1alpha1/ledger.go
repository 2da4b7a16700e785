package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BranchLedger is the record of a node's trunk and branches where Trunkline's controller owns
// them. Each call is recorded before it is made, so that a restarted controller knows every VLAN,
// interface and call in flight without a describe.
//
// The records are of one instance, and each is of one pod by its UID or of none: a node of the
// same name on another instance, and a pod of the same name, use none of them.
type BranchLedger struct {
	// InstanceID of the node's instance, as EC2 prints it.
	// +kubebuilder:validation:MaxLength=19
	// +kubebuilder:validation:Pattern=`^i-([0-9a-f]{8}|[0-9a-f]{17})$`
	InstanceID string `json:"instanceID"`
	// Mode is how selected pods of the node get their groups, where security-groups-for-pods is auto;
	// absent with another value.
	// +optional
	Mode *ModeRecord `json:"mode,omitempty"`
	// Host is where interfaces of the node are created; absent before EC2 was read.
	// +optional
	Host *HostRecord `json:"host,omitempty"`
	// CustomNetworking is where interfaces are created in the place of Host; absent on a node
	// without custom networking.
	// +optional
	CustomNetworking *CustomNetworkingRecord `json:"customNetworking,omitempty"`
	// Trunk of the instance; absent before its creation is planned.
	// +optional
	Trunk *TrunkRecord `json:"trunk,omitempty"`
	// LastVLAN is the VLAN that was assigned last; the search for a free one starts after it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=120
	LastVLAN int32 `json:"lastVLAN,omitempty"`
	// VLANs that have an owner or cool down: the list's key keeps a VLAN from having two.
	// +optional
	// +kubebuilder:validation:MaxItems=120
	// +listType=map
	// +listMapKey=vlanID
	VLANs []VLANRecord `json:"vlans,omitempty"`
	// Branches by id. A record is removed after EC2 confirmed that the branch is disassociated
	// and deleted.
	// +optional
	// +kubebuilder:validation:MaxItems=480
	// +listType=map
	// +listMapKey=id
	Branches []BranchRecord `json:"branches,omitempty"`
	// Backoffs delay what EC2 refused.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=key
	Backoffs []BackoffRecord `json:"backoffs,omitempty"`
	// Refused are pods with groups that EC2 refused; they are not tried again.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=podUID
	Refused []RefusedRecord `json:"refused,omitempty"`
	// Unowned are branches that EC2 showed and that are in no record.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=eniID
	Unowned []UnownedRecord `json:"unowned,omitempty"`
	// ObservedAt is when the interfaces were last read from EC2.
	// +optional
	ObservedAt *metav1.MicroTime `json:"observedAt,omitempty"`
}

// GroupMode is how selected pods of a node get their security groups.
// +kubebuilder:validation:Enum=managed;own;ebpf
type GroupMode string

// ModeRecord is the controller's decision on a node. The node refuses selected pods while it has none.
type ModeRecord struct {
	// Mode; absent while none is chosen.
	// +optional
	Mode GroupMode `json:"mode,omitempty"`
	// Reason in CamelCase.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// Message says what the decision is from and, where pods wait, what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// HostRecord is the primary interface of an instance, and what its type has. It never changes.
type HostRecord struct {
	// +kubebuilder:validation:MaxLength=21
	VPCID string `json:"vpcID"`
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID"`
	// +optional
	// +kubebuilder:validation:MaxLength=18
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=49
	SubnetV6CIDR string `json:"subnetV6CIDR,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Interfaces is the number of device indexes of the default network card.
	// +kubebuilder:validation:Minimum=1
	Interfaces int32 `json:"interfaces"`
}

// CustomNetworkingRecord is what became of the ENIConfig of a node. With a refusal no interface is
// created, and the subnet is the one that was used last.
type CustomNetworkingRecord struct {
	// ENIConfig is its name; empty if neither the Node nor the CNINode names one.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ENIConfig string `json:"eniConfig,omitempty"`
	// SubnetID of new interfaces, which EC2 has in the zone and the VPC of the node.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=18
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=49
	SubnetV6CIDR string `json:"subnetV6CIDR,omitempty"`
	// SecurityGroups of a new trunk.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Reason is why no interface is created, in CamelCase; empty if interfaces are.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// Message says what is wrong and what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// VLANRecord is a VLAN that is not free.
type VLANRecord struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=120
	VLANID int32 `json:"vlanID"`
	// Owner is the id of its branch; empty if EC2 refused the VLAN because of a branch that is in
	// no record.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Owner string `json:"owner,omitempty"`
	// Until is the end of its cool-down; absent while its branch may be associated.
	// +optional
	Until *metav1.MicroTime `json:"until,omitempty"`
}

// CallRecord is a call of EC2, or a binding, without a known outcome.
type CallRecord struct {
	// ID is EC2's client token, and of a created interface its tag trunkline.dev/intent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// Kind such as CreateBranch.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Kind string `json:"kind"`
	// Began is when the first try began; it is in the tags of a created interface.
	Began metav1.MicroTime `json:"began"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=21
	TrunkENIID string `json:"trunkENIID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=21
	ENIID string `json:"eniID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=24
	SubnetID string `json:"subnetID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// +optional
	VLANID int32 `json:"vlanID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AssociationID string `json:"associationID,omitempty"`
	// +optional
	DeviceIndex int32 `json:"deviceIndex,omitempty"`
	// Tries that were begun.
	// +kubebuilder:validation:Minimum=1
	Tries int32 `json:"tries"`
	// Unknown: the outcome of an earlier try is not known.
	// +optional
	Unknown bool `json:"unknown,omitempty"`
	// Lost: no try is in flight. The call is repeated from Retry on.
	// +optional
	Lost bool `json:"lost,omitempty"`
	// At is when the last try began or ended.
	At metav1.MicroTime `json:"at"`
	// +optional
	Retry *metav1.MicroTime `json:"retry,omitempty"`
}

// TrunkPhase is the stage of a trunk.
// +kubebuilder:validation:Enum=Creating;Attaching;Ready;Deleting
type TrunkPhase string

// Phases of a trunk: the step that is pending or in flight, or Ready.
const (
	TrunkCreating  TrunkPhase = "Creating"
	TrunkAttaching TrunkPhase = "Attaching"
	TrunkReady     TrunkPhase = "Ready"
	TrunkDeleting  TrunkPhase = "Deleting"
)

// TrunkRecord is the trunk of an instance.
// +kubebuilder:validation:XValidation:rule="self.phase == 'Creating' || has(self.eniID)",message="eniID is required once the trunk is created"
// +kubebuilder:validation:XValidation:rule="self.phase != 'Creating' || has(self.call)",message="a trunk in creation has its call"
type TrunkRecord struct {
	Phase TrunkPhase `json:"phase"`
	// +optional
	// +kubebuilder:validation:MaxLength=21
	// +kubebuilder:validation:Pattern=`^eni-([0-9a-f]{8}|[0-9a-f]{17})$`
	ENIID string `json:"eniID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=17
	MAC string `json:"mac,omitempty"`
	// DeviceIndex that the trunk is attached at.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DeviceIndex int32 `json:"deviceIndex,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// MissingSince is when EC2 first did not show it attached.
	// +optional
	MissingSince *metav1.MicroTime `json:"missingSince,omitempty"`
	// +optional
	Call *CallRecord `json:"call,omitempty"`
}

// BranchPhase is the stage of a branch.
// +kubebuilder:validation:Enum=Creating;Tagging;Associating;Idle;Binding;Bound;Cooling;Disassociating;Deleting
type BranchPhase string

// Phases of a branch: the step that is pending or in flight, or the state in which none is.
const (
	BranchCreating       BranchPhase = "Creating"
	BranchTagging        BranchPhase = "Tagging"
	BranchAssociating    BranchPhase = "Associating"
	BranchIdle           BranchPhase = "Idle"    // associated, no pod uses it
	BranchBinding        BranchPhase = "Binding" // its pod may already use it
	BranchBound          BranchPhase = "Bound"   // of a running pod
	BranchCooling        BranchPhase = "Cooling" // its pod has ended
	BranchDisassociating BranchPhase = "Disassociating"
	BranchDeleting       BranchPhase = "Deleting"
)

// BranchRecord is one branch, from the intent to create it until EC2 confirmed its deletion.
// +kubebuilder:validation:XValidation:rule="self.phase == 'Creating' || has(self.eniID)",message="eniID is required once the branch is created"
// +kubebuilder:validation:XValidation:rule="self.phase != 'Creating' || has(self.call)",message="a branch in creation has its call"
// +kubebuilder:validation:XValidation:rule="!(self.phase in ['Idle', 'Binding', 'Bound']) || has(self.associationID)",message="associationID is required once the branch is associated"
// +kubebuilder:validation:XValidation:rule="!(self.phase in ['Binding', 'Bound']) || has(self.pod)",message="a bound branch has a pod"
// +kubebuilder:validation:XValidation:rule="!(self.phase in ['Binding', 'Bound']) || has(self.vlanID)",message="a bound branch has a VLAN"
type BranchRecord struct {
	// ID is the client token of the call that created the branch, or its interface if the
	// controller found it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// VLANID on the trunk; absent before one is reserved, and after disassociation.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=120
	VLANID int32       `json:"vlanID,omitempty"`
	Phase  BranchPhase `json:"phase"`
	// Since is when the phase began; a cool-down counts from it.
	Since metav1.MicroTime `json:"since"`
	// Changed is when a call of the branch last began or ended.
	Changed metav1.MicroTime `json:"changed"`
	// Pod that the branch is of, or is made for.
	// +optional
	Pod *PodReference `json:"pod,omitempty"`
	// Used: a pod may have used it, and it has not cooled down since.
	// +optional
	Used bool `json:"used,omitempty"`
	// SecurityGroups that EC2 last confirmed, sorted. With a call that changes them in flight the
	// branch has these or those of the call.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=20
	// +kubebuilder:validation:items:Pattern=`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=21
	// +kubebuilder:validation:Pattern=`^eni-([0-9a-f]{8}|[0-9a-f]{17})$`
	ENIID string `json:"eniID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AssociationID string `json:"associationID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=17
	MAC string `json:"mac,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=15
	IPv4 string `json:"ipv4,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=45
	IPv6 string `json:"ipv6,omitempty"`
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID"`
	// +optional
	// +kubebuilder:validation:MaxLength=18
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=49
	SubnetV6CIDR string `json:"subnetV6CIDR,omitempty"`
	// Call without a known outcome.
	// +optional
	Call *CallRecord `json:"call,omitempty"`
}

// BackoffRecord delays actions after a failure.
type BackoffRecord struct {
	// Key is what is delayed: a subnet, a branch, a pod, the trunk or warm branches.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Key   string           `json:"key"`
	Since metav1.MicroTime `json:"since"`
	Until metav1.MicroTime `json:"until"`
	Tries int32            `json:"tries"`
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// RefusedRecord is a pod with groups that EC2 refused.
type RefusedRecord struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// UnownedRecord is a branch that EC2 showed, and when.
type UnownedRecord struct {
	// +kubebuilder:validation:MaxLength=21
	// +kubebuilder:validation:Pattern=`^eni-([0-9a-f]{8}|[0-9a-f]{17})$`
	ENIID string `json:"eniID"`
	// +optional
	// +kubebuilder:validation:MaxLength=16
	Type string `json:"type,omitempty"`
	// Intent is its tag trunkline.dev/intent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Intent string `json:"intent,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=24
	SubnetID string `json:"subnetID,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=17
	MAC string `json:"mac,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=15
	IPv4 string `json:"ipv4,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=45
	IPv6 string `json:"ipv6,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AssociationID string `json:"associationID,omitempty"`
	// +optional
	VLANID int32 `json:"vlanID,omitempty"`
	// First of the observations that showed it, and their number.
	First  metav1.MicroTime `json:"first"`
	Passes int32            `json:"passes"`
}

// PodReference is one pod: a later pod of the same name has another UID.
type PodReference struct {
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// BranchesOf returns the records of a pod that hold a branch for it: those in which it may have
// one soon or has one. A pod that requests several branches has several. There are none if the
// ledger is of another instance.
func (l *BranchLedger) BranchesOf(instanceID string, pod types.UID) (list []BranchRecord) {
	if l == nil || l.InstanceID != instanceID {
		return nil
	}
	for _, b := range l.Branches {
		switch b.Phase {
		case BranchCreating, BranchTagging, BranchAssociating, BranchIdle, BranchBinding, BranchBound:
			if b.Pod != nil && b.Pod.UID == pod {
				list = append(list, b)
			}
		case BranchCooling, BranchDisassociating, BranchDeleting:
		}
	}
	return list
}
