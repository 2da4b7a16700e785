package v1alpha1

// NodeNetworkState is what AWS's controller restarts from without calls of EC2.
type NodeNetworkState struct {
	// +required
	// +kubebuilder:validation:MaxLength=19
	// +kubebuilder:validation:Pattern=`^i-([0-9a-f]{8}|[0-9a-f]{17})$`
	InstanceID string `json:"instanceID"`
	// InstanceType determines the number of branches.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	InstanceType string `json:"instanceType,omitempty"`
	// SubnetID of new branches; with an ENIConfig it may differ from the trunk's.
	// +required
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID"`
	// +required
	SubnetCIDRBlock string `json:"subnetCIDRBlock"`
	// +optional
	SubnetV6CIDRBlock string `json:"subnetV6CIDRBlock,omitempty"`
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:MaxLength=20
	// +kubebuilder:validation:items:Pattern=`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`
	// +listType=atomic
	PrimaryNetworkInterfaceSecurityGroups []string `json:"primaryNetworkInterfaceSecurityGroups"`
	// ConnectionTracking of the primary interface, for new branches.
	// +optional
	ConnectionTracking *ConnectionTracking `json:"connectionTracking,omitempty"`
}

// ConnectionTracking is how long EC2 keeps idle connections of an interface, in seconds.
type ConnectionTracking struct {
	// +optional
	TCPEstablishedTimeout *int32 `json:"tcpEstablishedTimeout,omitempty"`
	// +optional
	UDPStreamTimeout *int32 `json:"udpStreamTimeout,omitempty"`
	// +optional
	UDPTimeout *int32 `json:"udpTimeout,omitempty"`
}

// TrunkInterface is a trunk and its branches as AWS's controller recorded them.
type TrunkInterface struct {
	// +kubebuilder:validation:MinLength=1
	ID string `json:"id"`
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// DeviceIndex of the trunk on its instance.
	// +optional
	DeviceIndex int32 `json:"deviceIndex,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`
	SubnetID string `json:"subnetID,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=id
	Branches []BranchInterface `json:"branches,omitempty"`
}

// BranchInterface is a branch as AWS's controller recorded it.
type BranchInterface struct {
	// +kubebuilder:validation:MinLength=1
	ID     string `json:"id"`
	VLANID int32  `json:"vlanID"`
	// +optional
	AssociationID string `json:"associationID,omitempty"`
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// +optional
	SubnetCIDR string `json:"subnetCIDR,omitempty"`
	// +optional
	SubnetV6CIDR string `json:"subnetV6CIDR,omitempty"`
	// +optional
	// +listType=atomic
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// IPv4CIDRs are addresses, as /32, and prefixes.
	// +optional
	// +listType=atomic
	IPv4CIDRs []string `json:"ipv4CIDRs,omitempty"`
	// IPv6CIDRs are addresses, as /128, and prefixes.
	// +optional
	// +listType=atomic
	IPv6CIDRs []string `json:"ipv6CIDRs,omitempty"`
}
