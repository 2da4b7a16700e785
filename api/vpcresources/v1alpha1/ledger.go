package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
)

// BranchLedger is the record of a node's trunk and branches where Trunkline's controller owns
// them. Each call is recorded before it is made, so that a restarted controller knows every VLAN,
// interface and call in flight without a describe.
//
// The records are of one instance, and each is of one pod by its UID or of none: a node of the
// same name on another instance, and a pod of the same name, use none of them.
//
// The definition has no schema of it, because validating 50 branches by one takes the API server five times
// as long as everything else of a write. Check is what readers and the writer validate it by.
type BranchLedger struct {
	// Unreadable is why the ledger of an object cannot be decoded, as after an edit by hand; all other fields are
	// empty then. It is no error of the decoder: an error of one object would keep a client from reading all.
	Unreadable string `json:"-"`
	// InstanceID of the node's instance, as EC2 prints it.
	InstanceID string `json:"instanceID"`
	// Mode is how selected pods of the node get their groups, where security-groups-for-pods is auto;
	// absent with another value.
	Mode *ModeRecord `json:"mode,omitempty"`
	// Host is where interfaces of the node are created; absent before EC2 was read.
	Host *HostRecord `json:"host,omitempty"`
	// CustomNetworking is where interfaces are created in the place of Host; absent on a node
	// without custom networking.
	CustomNetworking *CustomNetworkingRecord `json:"customNetworking,omitempty"`
	// Trunk of the instance; absent before its creation is planned.
	Trunk *TrunkRecord `json:"trunk,omitempty"`
	// LastVLAN is the VLAN that was assigned last; the search for a free one starts after it.
	LastVLAN int32 `json:"lastVLAN,omitempty"`
	// VLANs that have an owner or cool down, each once.
	VLANs []VLANRecord `json:"vlans,omitempty"`
	// Branches by id. A record is removed after EC2 confirmed that the branch is disassociated
	// and deleted.
	Branches []BranchRecord `json:"branches,omitempty"`
	// Backoffs delay what EC2 refused.
	Backoffs []BackoffRecord `json:"backoffs,omitempty"`
	// Refused are pods with groups that EC2 refused; they are not tried again.
	Refused []RefusedRecord `json:"refused,omitempty"`
	// Unowned are branches that EC2 showed and that are in no record.
	Unowned []UnownedRecord `json:"unowned,omitempty"`
	// ObservedAt is when the interfaces were last read from EC2.
	ObservedAt *metav1.MicroTime `json:"observedAt,omitempty"`
}

// GroupMode is how selected pods of a node get their security groups.
type GroupMode string

// Known reports whether m is a mode of this version, or empty: none is chosen.
func (m GroupMode) Known() bool {
	return slices.Contains([]GroupMode{"", "managed", "own", "ebpf"}, m)
}

// ModeRecord is the controller's decision on a node. The node refuses selected pods while it has none.
type ModeRecord struct {
	// Mode; absent while none is chosen.
	Mode GroupMode `json:"mode,omitempty"`
	// Reason in CamelCase.
	Reason string `json:"reason"`
	// Message says what the decision is from and, where pods wait, what to do.
	Message string `json:"message,omitempty"`
}

// HostRecord is the primary interface of an instance, and what its type has. It never changes.
type HostRecord struct {
	VPCID          string   `json:"vpcID"`
	SubnetID       string   `json:"subnetID"`
	SubnetCIDR     string   `json:"subnetCIDR,omitempty"`
	SubnetV6CIDR   string   `json:"subnetV6CIDR,omitempty"`
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Interfaces is the number of device indexes of the default network card.
	Interfaces int32 `json:"interfaces"`
}

// CustomNetworkingRecord is what became of the ENIConfig of a node. With a refusal no interface is
// created, and the subnet is the one that was used last.
type CustomNetworkingRecord struct {
	// ENIConfig is its name; empty if neither the Node nor the CNINode names one.
	ENIConfig string `json:"eniConfig,omitempty"`
	// SubnetID of new interfaces, which EC2 has in the zone and the VPC of the node.
	SubnetID     string `json:"subnetID,omitempty"`
	SubnetCIDR   string `json:"subnetCIDR,omitempty"`
	SubnetV6CIDR string `json:"subnetV6CIDR,omitempty"`
	// SecurityGroups of a new trunk.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Reason is why no interface is created, in CamelCase; empty if interfaces are.
	Reason string `json:"reason,omitempty"`
	// Message says what is wrong and what to do.
	Message string `json:"message,omitempty"`
}

// VLANRecord is a VLAN that is not free.
type VLANRecord struct {
	VLANID int32 `json:"vlanID"`
	// Owner is the id of its branch; empty if EC2 refused the VLAN because of a branch that is in
	// no record.
	Owner string `json:"owner,omitempty"`
	// Until is the end of its cool-down; absent while its branch may be associated.
	Until *metav1.MicroTime `json:"until,omitempty"`
}

// CallRecord is a call of EC2, or a binding, without a known outcome.
type CallRecord struct {
	// ID is EC2's client token, and of a created interface its tag trunkline.dev/intent.
	ID string `json:"id"`
	// Kind such as CreateBranch.
	Kind string `json:"kind"`
	// Began is when the first try began; it is in the tags of a created interface.
	Began          metav1.MicroTime `json:"began"`
	Why            string           `json:"why,omitempty"`
	PodUID         string           `json:"podUID,omitempty"`
	TrunkENIID     string           `json:"trunkENIID,omitempty"`
	ENIID          string           `json:"eniID,omitempty"`
	SubnetID       string           `json:"subnetID,omitempty"`
	SecurityGroups []string         `json:"securityGroups,omitempty"`
	VLANID         int32            `json:"vlanID,omitempty"`
	AssociationID  string           `json:"associationID,omitempty"`
	DeviceIndex    int32            `json:"deviceIndex,omitempty"`
	// Tries that were begun.
	Tries int32 `json:"tries"`
	// Unknown: the outcome of an earlier try is not known.
	Unknown bool `json:"unknown,omitempty"`
	// Lost: no try is in flight. The call is repeated from Retry on.
	Lost bool `json:"lost,omitempty"`
	// At is when the last try began or ended.
	At    metav1.MicroTime  `json:"at"`
	Retry *metav1.MicroTime `json:"retry,omitempty"`
}

// TrunkPhase is the stage of a trunk.
type TrunkPhase string

// Phases of a trunk: the step that is pending or in flight, or Ready.
const (
	TrunkCreating  TrunkPhase = "Creating"
	TrunkAttaching TrunkPhase = "Attaching"
	TrunkReady     TrunkPhase = "Ready"
	TrunkDeleting  TrunkPhase = "Deleting"
)

// TrunkRecord is the trunk of an instance.
type TrunkRecord struct {
	Phase TrunkPhase `json:"phase"`
	ENIID string     `json:"eniID,omitempty"`
	MAC   string     `json:"mac,omitempty"`
	// DeviceIndex that the trunk is attached at.
	DeviceIndex    int32    `json:"deviceIndex,omitempty"`
	SubnetID       string   `json:"subnetID,omitempty"`
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// MissingSince is when EC2 first did not show it attached.
	MissingSince *metav1.MicroTime `json:"missingSince,omitempty"`
	Call         *CallRecord       `json:"call,omitempty"`
}

// BranchPhase is the stage of a branch.
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
type BranchRecord struct {
	// ID is the client token of the call that created the branch, or its interface if the
	// controller found it.
	ID string `json:"id"`
	// VLANID on the trunk; absent before one is reserved, and after disassociation.
	VLANID int32       `json:"vlanID,omitempty"`
	Phase  BranchPhase `json:"phase"`
	// Since is when the phase began; a cool-down counts from it.
	Since metav1.MicroTime `json:"since"`
	// Changed is when a call of the branch last began or ended.
	Changed metav1.MicroTime `json:"changed"`
	// Pod that the branch is of, or is made for.
	Pod *PodReference `json:"pod,omitempty"`
	// Used: a pod may have used it, and it has not cooled down since.
	Used bool `json:"used,omitempty"`
	// SecurityGroups that EC2 last confirmed, sorted. With a call that changes them in flight the
	// branch has these or those of the call.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	ENIID          string   `json:"eniID,omitempty"`
	AssociationID  string   `json:"associationID,omitempty"`
	MAC            string   `json:"mac,omitempty"`
	IPv4           string   `json:"ipv4,omitempty"`
	IPv6           string   `json:"ipv6,omitempty"`
	SubnetID       string   `json:"subnetID"`
	SubnetCIDR     string   `json:"subnetCIDR,omitempty"`
	SubnetV6CIDR   string   `json:"subnetV6CIDR,omitempty"`
	// Call without a known outcome.
	Call *CallRecord `json:"call,omitempty"`
}

// BackoffRecord delays actions after a failure.
type BackoffRecord struct {
	// Key is what is delayed: a subnet, a branch, a pod, the trunk or warm branches.
	Key     string           `json:"key"`
	Since   metav1.MicroTime `json:"since"`
	Until   metav1.MicroTime `json:"until"`
	Tries   int32            `json:"tries"`
	Reason  string           `json:"reason"`
	Message string           `json:"message,omitempty"`
}

// RefusedRecord is a pod with groups that EC2 refused.
type RefusedRecord struct {
	PodUID         string   `json:"podUID"`
	SecurityGroups []string `json:"securityGroups,omitempty"`
	Message        string   `json:"message,omitempty"`
}

// UnownedRecord is a branch that EC2 showed, and when.
type UnownedRecord struct {
	ENIID string `json:"eniID"`
	Type  string `json:"type,omitempty"`
	// Intent is its tag trunkline.dev/intent.
	Intent         string   `json:"intent,omitempty"`
	SubnetID       string   `json:"subnetID,omitempty"`
	MAC            string   `json:"mac,omitempty"`
	IPv4           string   `json:"ipv4,omitempty"`
	IPv6           string   `json:"ipv6,omitempty"`
	SecurityGroups []string `json:"securityGroups,omitempty"`
	AssociationID  string   `json:"associationID,omitempty"`
	VLANID         int32    `json:"vlanID,omitempty"`
	// First of the observations that showed it, and their number.
	First  metav1.MicroTime `json:"first"`
	Passes int32            `json:"passes"`
}

// PodReference is one pod: a later pod of the same name has another UID.
type PodReference struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
}

// UnmarshalJSON decodes a ledger. One that cannot be decoded has Unreadable set.
func (l *BranchLedger) UnmarshalJSON(text []byte) error {
	type plain BranchLedger
	var p plain
	if err := json.Unmarshal(text, &p); err != nil {
		p = plain{Unreadable: err.Error()}
	}
	*l = BranchLedger(p)
	return nil
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
