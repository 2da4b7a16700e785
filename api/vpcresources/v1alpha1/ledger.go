package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BranchLedger is the record of a node's trunk and branches where Trunkline's controller owns
// them. Each record is written before the EC2 call that it announces, so that a restarted
// controller knows every VLAN, interface and call in flight without a describe.
//
// The records are of one instance, and each is of one pod by its UID or of none: a node of the
// same name on another instance, and a pod of the same name, use none of them.
type BranchLedger struct {
	// InstanceID of the node's instance, as EC2 prints it.
	// +kubebuilder:validation:MaxLength=19
	// +kubebuilder:validation:Pattern=`^i-([0-9a-f]{8}|[0-9a-f]{17})$`
	InstanceID string `json:"instanceID"`
	// Trunk of the instance; absent before its creation is planned.
	// +optional
	Trunk *TrunkRecord `json:"trunk,omitempty"`
	// LastVLAN is the VLAN that was assigned last; the search for a free one starts after it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=120
	LastVLAN int32 `json:"lastVLAN,omitempty"`
	// Branches by VLAN: the list's key keeps a VLAN from having two holders. A record is
	// removed after EC2 confirmed that the branch is disassociated and deleted.
	// +optional
	// +kubebuilder:validation:MaxItems=120
	// +listType=map
	// +listMapKey=vlanID
	Branches []BranchRecord `json:"branches,omitempty"`
}

// TrunkPhase is the stage of a trunk.
// +kubebuilder:validation:Enum=Creating;Attaching;Ready
type TrunkPhase string

// Phases of a trunk: the call in flight, or Ready.
const (
	TrunkCreating  TrunkPhase = "Creating"
	TrunkAttaching TrunkPhase = "Attaching"
	TrunkReady     TrunkPhase = "Ready"
)

// TrunkRecord is the trunk of an instance.
// +kubebuilder:validation:XValidation:rule="self.phase == 'Creating' || has(self.eniID)",message="eniID is required once the trunk is created"
type TrunkRecord struct {
	Phase TrunkPhase `json:"phase"`
	// ClientToken of CreateNetworkInterface.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ClientToken string `json:"clientToken"`
	// +optional
	// +kubebuilder:validation:MaxLength=21
	// +kubebuilder:validation:Pattern=`^eni-([0-9a-f]{8}|[0-9a-f]{17})$`
	ENIID string `json:"eniID,omitempty"`
	// DeviceIndex that the trunk is attached at.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DeviceIndex int32 `json:"deviceIndex,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID,omitempty"`
}

// BranchPhase is the stage of a branch.
// +kubebuilder:validation:Enum=Creating;Associating;Quarantined;Bound;Cooling;Disassociating;Deleting
type BranchPhase string

// Phases of a branch: the call in flight, or the state in which none is.
const (
	BranchCreating       BranchPhase = "Creating"
	BranchAssociating    BranchPhase = "Associating"
	BranchQuarantined    BranchPhase = "Quarantined" // warm, with the deny-all group
	BranchBound          BranchPhase = "Bound"       // of a running pod
	BranchCooling        BranchPhase = "Cooling"     // its pod has ended
	BranchDisassociating BranchPhase = "Disassociating"
	BranchDeleting       BranchPhase = "Deleting"
)

// BranchRecord is one branch, from the intent to create it until EC2 confirmed its deletion.
// +kubebuilder:validation:XValidation:rule="self.phase == 'Creating' || has(self.eniID)",message="eniID is required once the branch is created"
// +kubebuilder:validation:XValidation:rule="!(self.phase in ['Bound', 'Quarantined', 'Cooling']) || has(self.associationID)",message="associationID is required once the branch is associated"
// +kubebuilder:validation:XValidation:rule="self.phase != 'Bound' || has(self.pod)",message="a bound branch has a pod"
// +kubebuilder:validation:XValidation:rule="self.phase != 'Quarantined' || !has(self.pod)",message="a quarantined branch has no pod"
type BranchRecord struct {
	// VLANID on the trunk.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=120
	VLANID int32       `json:"vlanID"`
	Phase  BranchPhase `json:"phase"`
	// Since is when the phase began; a cool-down counts from it.
	Since metav1.Time `json:"since"`
	// Pod that the branch is of, or was of while it cools down.
	// +optional
	Pod *PodReference `json:"pod,omitempty"`
	// ClientToken of CreateNetworkInterface and of AssociateTrunkInterface.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ClientToken string `json:"clientToken"`
	// SecurityGroups that the branch has or gets by the call in flight, sorted.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=20
	// +kubebuilder:validation:items:Pattern=`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`
	// +listType=set
	SecurityGroups []string `json:"securityGroups"`
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
	// +optional
	// +kubebuilder:validation:MaxLength=18
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=49
	SubnetV6CIDR string `json:"subnetV6CIDR,omitempty"`
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
		case BranchCreating, BranchAssociating, BranchBound:
			if b.Pod != nil && b.Pod.UID == pod {
				list = append(list, b)
			}
		case BranchQuarantined, BranchCooling, BranchDisassociating, BranchDeleting:
		}
	}
	return list
}
