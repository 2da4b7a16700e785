package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeNetwork is the report of one node's agent about the node's network. Its name
// is the node's. Only that node's agent may write it (an admission policy checks
// the node named in the agent's token); it is deleted with the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nn
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="ENIs",type=integer,JSONPath=`.status.addresses.interfaces`
// +kubebuilder:printcolumn:name="Assigned",type=integer,JSONPath=`.status.addresses.assigned`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.addresses.free`
// +kubebuilder:printcolumn:name="Cooling",type=integer,JSONPath=`.status.addresses.cooling`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.addresses.total`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.versions.agent`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.why`,priority=1
// +kubebuilder:printcolumn:name="Pod Groups",type=string,JSONPath=`.status.podGroups.mode`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is written by the node's agent through the status sub-resource.
	// +optional
	Status NodeNetworkStatus `json:"status,omitempty"`
}

// NodeNetworkStatus is the agent's report. Everything in it is derived from the
// agent's plan and ledger, never from separate counters.
type NodeNetworkStatus struct {
	// ObservedAt is when the agent last compared its record with EC2 and the
	// kernel and wrote this report. The leak collector takes an interface's absence
	// from it as evidence only when the report is newer than the interface.
	// +optional
	ObservedAt metav1.Time `json:"observedAt,omitzero"`

	// InstanceID of the EC2 instance behind the node.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// InstanceType such as m5.xlarge; it determines the limits.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// Zone is the availability zone.
	// +optional
	Zone string `json:"zone,omitempty"`

	// Mode is how pods get their addresses.
	// +optional
	Mode AddressMode `json:"mode,omitempty"`
	// Why is the plan's explanation of the pool's state in one sentence.
	// +optional
	Why string `json:"why,omitempty"`

	// Addresses counts the pod addresses of the node.
	// +optional
	Addresses AddressCounts `json:"addresses,omitempty"`
	// Interfaces are the ENIs that belong to the node in the agent's ledger: the
	// primary, and also those being created or released.
	// +optional
	// +listType=map
	// +listMapKey=id
	Interfaces []Interface `json:"interfaces,omitempty"`
	// NotUsed are objects that EC2 describes and that the agent cannot use, each with
	// the reason: "subnet subnet-0a1b2c3d: it has no IPv4 range: it is IPv6-only".
	// +optional
	// +listType=atomic
	NotUsed []string `json:"notUsed,omitempty"`
	// Versions of the programs on the node.
	// +optional
	Versions Versions `json:"versions,omitempty"`
	// LastError is the latest error from EC2, kept until a call of the same
	// action succeeds.
	// +optional
	LastError *CallError `json:"lastError,omitempty"`
	// Brake is the brake in force on the node.
	// +optional
	Brake Freeze `json:"brake,omitempty"`
	// PodGroups is how security groups of the node's pods are enforced; absent from agents that
	// do not report it.
	// +optional
	PodGroups *PodGroups `json:"podGroups,omitempty"`
	// Warnings are what the node does without, and what would help; they are no errors.
	// +optional
	// +listType=atomic
	Warnings []string `json:"warnings,omitempty"`

	// Conditions: Ready (an ADD can be served now), SufficientAddresses (the
	// node can still grow to what its pods need), EC2Reachable (Unknown with the
	// reason EC2NotUsed where the node does not use EC2), MetadataReachable and
	// CredentialsValid (on nodes that use EC2), Drift, CNIConfigured (the container runtime
	// wires new pods by the plugin), JournalWritable (the agent's disk has space; False: no pod
	// is added, and pods can end), PoliciesEnforced (network policies are in force on the pods that
	// Trunkline wired; False with the reason PolicyOff where they are off).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AddressMode is how pods of a node get their addresses.
// +kubebuilder:validation:Enum=secondary-ip;prefix;pod-cidr
type AddressMode string

// Address modes.
const (
	ModeSecondaryIP AddressMode = "secondary-ip"
	ModePrefix      AddressMode = "prefix"
	// ModePodCIDR: out of node.spec.podCIDR, without EC2.
	ModePodCIDR AddressMode = "pod-cidr"
)

// PodGroups is how security groups of pods are treated, and what the node judges groups by.
type PodGroups struct {
	// Mode is the setting security-groups-for-pods or, if that is auto, what was chosen for the node.
	Mode GroupMode `json:"mode"`
	// Reason is why the mode was chosen, in CamelCase; absent if the setting is not auto.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says what the choice is from and, where pods wait, what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// NodeEnforces: the node enforces groups of pods without a branch: of all with ebpf, of those
	// that were wired before a policy selected them with pod-security-group-late-match: enforce, of
	// both if the mode was chosen.
	// +optional
	NodeEnforces bool `json:"nodeEnforces,omitempty"`
	// VPCID is the node's VPC; empty while EC2 has not shown it. Groups of others are refused.
	// +optional
	VPCID string `json:"vpcID,omitempty"`
	// GroupLimit is how many groups a pod may have.
	GroupLimit int32 `json:"groupLimit"`
}

// GroupMode is who enforces the security groups of a node's pods.
// +kubebuilder:validation:Enum=off;managed;own;ebpf;undecided
type GroupMode string

// Group modes.
const (
	// GroupsOff: nothing does.
	GroupsOff GroupMode = "off"
	// GroupsManaged: the VPC, at branches that AWS's controller makes.
	GroupsManaged GroupMode = "managed"
	// GroupsOwn: the VPC, at branches that Trunkline's controller makes.
	GroupsOwn GroupMode = "own"
	// GroupsEBPF: the node.
	GroupsEBPF GroupMode = "ebpf"
	// GroupsUndecided: with the setting auto no mode is chosen yet, and selected pods wait.
	GroupsUndecided GroupMode = "undecided"
)

// AddressCounts counts pod addresses; primary addresses of ENIs are not among
// them. Total = Assigned + Cooling + Free.
type AddressCounts struct {
	// Total pod addresses attached to the node.
	Total int32 `json:"total"`
	// Assigned to a pod.
	Assigned int32 `json:"assigned"`
	// Cooling: released by a pod and not yet usable for another.
	Cooling int32 `json:"cooling"`
	// Free: can be assigned to a pod now.
	Free int32 `json:"free"`
	// WarmTarget is how many free addresses the plan wants beyond demand.
	WarmTarget int32 `json:"warmTarget"`
	// Waiting: pods bound to the node that have no address yet.
	Waiting int32 `json:"waiting"`
	// Limit is the maximum number of pod addresses of the instance type.
	Limit int32 `json:"limit"`
	// Interfaces is the number of ENIs on network card 0, the primary included.
	Interfaces int32 `json:"interfaces"`
	// InterfaceLimit is the maximum number of ENIs on network card 0.
	InterfaceLimit int32 `json:"interfaceLimit"`
}

// InterfaceState is the stage of an ENI's life cycle on the node.
// +kubebuilder:validation:Enum=creating;attaching;ready;releasing
type InterfaceState string

// States of an ENI.
const (
	InterfaceCreating  InterfaceState = "creating"
	InterfaceAttaching InterfaceState = "attaching"
	InterfaceReady     InterfaceState = "ready"
	InterfaceReleasing InterfaceState = "releasing"
)

// Interface is one ENI of the node.
type Interface struct {
	// ID such as eni-0a1b2c3d4e5f67890.
	ID string `json:"id"`
	// MAC of the interface.
	// +optional
	MAC string `json:"mac,omitempty"`
	// SubnetID the interface is in.
	// +optional
	SubnetID string `json:"subnetID,omitempty"`
	// NetworkCard of the instance; pods get addresses on card 0 only.
	// +optional
	NetworkCard int32 `json:"networkCard,omitempty"`
	// DeviceIndex on the network card; 0 on card 0 is the primary.
	DeviceIndex int32 `json:"deviceIndex"`
	// PrimaryAddress of the interface; never assigned to a pod.
	// +optional
	PrimaryAddress string `json:"primaryAddress,omitempty"`
	// State is the stage of the interface's life cycle.
	State InterfaceState `json:"state"`
	// Total, Assigned, Cooling and Free count the pod addresses on it.
	Total int32 `json:"total"`
	// Assigned to a pod.
	Assigned int32 `json:"assigned"`
	// Cooling down.
	Cooling int32 `json:"cooling"`
	// Free: can be assigned to a pod now.
	Free int32 `json:"free"`
	// Why the interface is in this state or is not used, where State alone does not
	// say it.
	// +optional
	Why string `json:"why,omitempty"`
}

// Versions of the components on the node.
type Versions struct {
	// Agent is the build version of the agent.
	// +optional
	Agent string `json:"agent,omitempty"`
	// Plugin is the build version of the CNI plugin that made the latest request;
	// empty until the first request.
	// +optional
	Plugin string `json:"plugin,omitempty"`
	// CNI is the cniVersion of the conflist that the container runtime reads.
	// +optional
	CNI string `json:"cni,omitempty"`
	// Kernel release.
	// +optional
	Kernel string `json:"kernel,omitempty"`
}

// CallError is an error response from EC2.
type CallError struct {
	// Action such as AssignPrivateIpAddresses.
	Action string `json:"action"`
	// Code such as InsufficientFreeAddressesInSubnet.
	Code string `json:"code"`
	// Message as EC2 wrote it.
	// +optional
	Message string `json:"message,omitempty"`
	// RequestID for a support case.
	// +optional
	RequestID string `json:"requestID,omitempty"`
	// Time of the answer.
	Time metav1.Time `json:"time"`
	// Count of consecutive errors of this action with this code.
	Count int32 `json:"count"`
}

// Condition types of a NodeNetwork.
const (
	ConditionReady               = "Ready"
	ConditionSufficientAddresses = "SufficientAddresses"
	ConditionEC2Reachable        = "EC2Reachable"
	ConditionMetadataReachable   = "MetadataReachable"
	ConditionCredentialsValid    = "CredentialsValid"
	ConditionDrift               = "Drift"
	ConditionCNIConfigured       = "CNIConfigured"
	ConditionJournalWritable     = "JournalWritable"
	ConditionPoliciesEnforced    = "PoliciesEnforced"
)

// ReasonPolicyOff is the reason of PoliciesEnforced, with the status False, on a node with the
// setting network-policy off. It is no error.
const ReasonPolicyOff = "PolicyOff"

// ReasonPolicyFaults is the reason of PoliciesEnforced, with the status True, on a node where nothing
// passes that policies deny, but a pod is cut off, an interface of the node has no program of the
// second barrier, the table of connections is nearly full, or a part of a policy cannot be honoured;
// the message names them.
const ReasonPolicyFaults = "EnforcedWithFaults"

// ReasonEC2NotUsed is the reason of EC2Reachable, with the status Unknown, on a node with
// the backend podcidr. It is no error; the message names what the node lacks.
const ReasonEC2NotUsed = "EC2NotUsed"

// NodeNetworkList is a list of NodeNetworks.
//
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeNetwork `json:"items"`
}
