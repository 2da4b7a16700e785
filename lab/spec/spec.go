// Package spec is lab.yaml, the file that describes a lab. It parses strictly, applies
// defaults, validates (a problem names field, value and reason), and resolves the file to
// the values that the embedded VPC and the lab's daemon start from.
//
// No I/O except Load: bytes in, values or problems out. lab/cli calls it.
package spec

import (
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/lab/osimage"
	"github.com/trunkline/trunkline/sim/faults"
)

// Spec is the content of lab.yaml. Every field is optional; see Default. Addresses are
// strings, so that Resolve can report an invalid one with its field.
type Spec struct {
	// Name of the lab, part of the names of its namespaces, state directory and cgroups.
	Name string `json:"name,omitempty"`
	// Region and Account of the embedded EC2.
	Region  string `json:"region,omitempty"`
	Account string `json:"account,omitempty"`
	// Cloud is aws or none. Nodes of a lab without a cloud reach neither EC2 nor instance
	// metadata, have no IAM role, and are named as in this file; Kubernetes gives each a
	// range for its pods. The embedded VPC is then only the network between them.
	Cloud string `json:"cloud,omitempty"`
	// Seed of IDs, MAC addresses and the choice of free addresses: the same file and the
	// same calls give the same ones.
	Seed uint64 `json:"seed,omitempty"`

	// SecurityGroupsForPods is how pods get the security groups of SecurityGroupPolicies: own
	// (Trunkline's controller makes branches, which needs quotas.trunkCalls), managed (a model of AWS's
	// VPC resource controller makes them, as on EKS), ebpf (nodes enforce them) or auto (own or ebpf, by
	// each node's instance type, and by quotas.trunkCalls). Empty: no pod gets groups of its own.
	SecurityGroupsForPods string `json:"securityGroupsForPods,omitempty"`

	Kubernetes     Kubernetes      `json:"kubernetes,omitempty"`
	VPC            VPC             `json:"vpc,omitempty"`
	Subnets        []Subnet        `json:"subnets,omitempty"`
	RouteTables    []RouteTable    `json:"routeTables,omitempty"`
	SecurityGroups []SecurityGroup `json:"securityGroups,omitempty"`
	ControlPlane   ControlPlane    `json:"controlPlane,omitempty"`
	Nodes          []Node          `json:"nodes,omitempty"`
	// ServiceInterfaces are those of AWS's services, and ElasticAddresses the account's.
	ServiceInterfaces []ServiceInterface `json:"serviceInterfaces,omitempty"`
	ElasticAddresses  []ElasticAddress   `json:"elasticAddresses,omitempty"`
	// InstanceTypes adds types to the built-in ones, or replaces them.
	InstanceTypes map[string]InstanceType `json:"instanceTypes,omitempty"`
	Quotas        Quotas                  `json:"quotas,omitempty"`
	// Roles of instances by name, in addition to DefaultRole, or in its place.
	Roles map[string]Role `json:"roles,omitempty"`
	// Images are container images to import into every node: archives in docker's or OCI's
	// layout, by paths relative to the directory of lab.yaml.
	Images []string `json:"images,omitempty"`
	// Latency of each answer of EC2 and STS, in addition to that of faults; default 5ms. At
	// 0, AWS's SDK for Go fails to read one in ten long answers.
	Latency *faults.Duration `json:"latency,omitempty"`
	// Faults of the embedded EC2 at its start; `trunkline-lab status` prints the URL
	// that changes them while it runs.
	Faults *faults.Plan `json:"faults,omitempty"`
}

// Kubernetes configures the cluster.
type Kubernetes struct {
	// Version must be KubernetesVersion.
	Version string `json:"version,omitempty"`
	// ServiceCIDR is the range of ClusterIPs; ClusterDNS is an address in it.
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	ClusterDNS  string `json:"clusterDNS,omitempty"`
	// PodCIDR is the range that the nodes of a lab without a cloud get theirs from, a
	// /24 each.
	PodCIDR string `json:"podCIDR,omitempty"`
	// Proxy is the mode of kube-proxy: nftables or iptables; default nftables.
	Proxy string `json:"proxy,omitempty"`
	// APIProxy: nodes and pods reach the API server by a proxy that injects faults, which
	// `trunkline-lab api-faults` sets.
	APIProxy bool `json:"apiProxy,omitempty"`
	// APIPort of the forwarder on 127.0.0.1; 0 is any free one.
	APIPort int `json:"apiPort,omitempty"`
}

// VPC is the network.
type VPC struct {
	CIDR string `json:"cidr,omitempty"`
	// CIDR6 is a /56; empty is a VPC without IPv6.
	CIDR6 string `json:"cidr6,omitempty"`
	// InternetGateway is attached unless false.
	InternetGateway *bool `json:"internetGateway,omitempty"`
}

// Subnet of one zone.
type Subnet struct {
	Name  string `json:"name"`
	Zone  string `json:"zone"`
	CIDR  string `json:"cidr,omitempty"`  // empty, with a cidr6: an IPv6-only subnet
	CIDR6 string `json:"cidr6,omitempty"` // a /64
	// RouteTable by name; empty is the main one.
	RouteTable string `json:"routeTable,omitempty"`
	// Public: instances have a public address at the internet gateway, unless false.
	Public *bool `json:"public,omitempty"`
}

// RouteTable without the local routes, which every table has.
type RouteTable struct {
	Name   string  `json:"name"`
	Main   bool    `json:"main,omitempty"`
	Routes []Route `json:"routes,omitempty"`
}

// Route of a table. Target is "igw".
type Route struct {
	Destination string `json:"destination"`
	Target      string `json:"target"`
}

// SecurityGroup allows what its rules match.
type SecurityGroup struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Ingress     []Rule `json:"ingress,omitempty"`
	// Egress: without it everything is allowed, as in a new group on EC2; an empty list
	// allows nothing.
	Egress *[]Rule `json:"egress,omitempty"`
}

// Rule allows a protocol and ports from or to the peers.
type Rule struct {
	// Protocol: tcp, udp, icmp, icmpv6, a number, or all.
	Protocol string `json:"protocol"`
	// Ports: one (443) or a range ("30000-32767"); omitted is all ports.
	Ports  intstr.IntOrString `json:"ports,omitzero"`
	CIDRs  []string           `json:"cidrs,omitempty"`
	Groups []string           `json:"groups,omitempty"` // by name
	Note   string             `json:"note,omitempty"`
}

// ControlPlane is the interface of the API server, as on EKS.
type ControlPlane struct {
	Subnet  string   `json:"subnet,omitempty"` // by name; empty is the first
	Groups  []string `json:"groups,omitempty"`
	Address string   `json:"address,omitempty"` // empty: EC2 chooses
}

// Node is an EC2 instance and a Kubernetes node.
type Node struct {
	Name    string   `json:"name,omitempty"`   // default node1, node2, …
	Type    string   `json:"type,omitempty"`   // default m5.xlarge
	Subnet  string   `json:"subnet,omitempty"` // default: the subnets in turn
	Groups  []string `json:"groups,omitempty"` // default nodes
	Address string   `json:"address,omitempty"`
	// PrimaryType is interface or efa; default interface. Interfaces are those that the
	// instance is launched with beside the primary one.
	PrimaryType string      `json:"primaryType,omitempty"`
	Interfaces  []Interface `json:"interfaces,omitempty"`
	// Role of the instance profile: one of Roles; default DefaultRole, which has
	// deploy/iam/node-policy.json.
	Role string `json:"role,omitempty"`
	// Image is the operating system that the node boots: bare (the default), al2023,
	// bottlerocket or ubuntu; see lab/osimage.
	Image osimage.Name `json:"image,omitempty"`
	// Cgroup is the node's cgroup version: v1 (the machine's own hierarchy) or v2; default
	// that of the image, and v1 of bare.
	Cgroup string `json:"cgroup,omitempty"`
	// CNIPlugins: the node has CNI's reference plugins in /opt/cni/bin; default whether its
	// image has them.
	CNIPlugins *bool `json:"cniPlugins,omitempty"`
	// Files by their paths, below /etc, /opt, /root or /var, which the node has before its
	// programs start, as cloud-init writes those of an instance's user data. One that exists
	// since an earlier boot stays as it is.
	Files map[string]string `json:"files,omitempty"`
	// Before is the network that the node starts with, in place of Trunkline: see
	// BeforeAWSNode.
	Before string `json:"before,omitempty"`
	// Network is that of the node's pods; empty is Trunkline. See NetworkOther.
	Network string            `json:"network,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// IMDS is the instance's metadata service.
	IMDS *IMDS `json:"imds,omitempty"`
}

// Interface is an interface of an instance beside the primary one.
type Interface struct {
	Card   int    `json:"card,omitempty"` // network card
	Device int    `json:"device"`         // index on the card
	Type   string `json:"type,omitempty"` // interface, efa or efa-only; default interface
	// Addresses are secondary IPv4 addresses, Prefixes delegated IPv4 ones: how many.
	Addresses int               `json:"addresses,omitempty"`
	Prefixes  int               `json:"prefixes,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// IMDS are an instance's metadata options.
type IMDS struct {
	// V1 also answers requests without a token.
	V1 bool `json:"v1,omitempty"`
	// HopLimit of token replies, 1 to 64; 0 is 1.
	HopLimit int `json:"hopLimit,omitempty"`
	// IPv6 also listens on fd00:ec2::254, unless false.
	IPv6 *bool `json:"ipv6,omitempty"`
}

// InstanceType holds the network limits of an instance type.
type InstanceType struct {
	ENIs     int `json:"enis"`
	IPv4     int `json:"ipv4"` // per interface, the primary included
	IPv6     int `json:"ipv6,omitempty"`
	Branches int `json:"branches,omitempty"`
}

// Quotas of the account; 0 is EC2's default.
type Quotas struct {
	RoutesPerTable     int `json:"routesPerTable,omitempty"`
	RulesPerGroup      int `json:"rulesPerGroup,omitempty"`
	GroupsPerInterface int `json:"groupsPerInterface,omitempty"`
	Interfaces         int `json:"interfaces,omitempty"`
	// TrunkCalls: AWS allows the account AssociateTrunkInterface, DisassociateTrunkInterface
	// and DescribeTrunkInterfaceAssociations, which it refuses to ordinary accounts with
	// OperationNotPermitted. AWS's own services make them on all accounts.
	TrunkCalls bool `json:"trunkCalls,omitempty"`
}

// KubernetesVersion is the release lab/kube is built from.
const KubernetesVersion = "v1.37.1"

// ClusterName is the name of the lab's cluster in AWS tags and descriptions.
const ClusterName = "trunkline-lab"

// Names and addresses of the default lab.
const (
	DefaultName         = "lab"
	DefaultRegion       = "us-west-2"
	DefaultAccount      = "111122223333"
	DefaultSeed         = 1
	DefaultCIDR         = "10.0.0.0/16"
	DefaultServiceCIDR  = "172.20.0.0/16"
	DefaultPodCIDR      = "10.244.0.0/16" // of a lab without a cloud
	DefaultInstanceType = "m5.xlarge"
	DefaultRole         = "trunkline-node"
	DefaultNodes        = 3
	DefaultLatency      = 5 * time.Millisecond
	MaxNodes            = 64 // a node uses 0.5 GiB of memory and about 300 PIDs of the machine
	defaultZones        = 3
	groupCluster        = "cluster"
)

// Clouds.
const (
	CloudAWS  = "aws"
	CloudNone = "none"
)

// nodePodBits is the length of the pod CIDRs of nodes without a cloud, the default of the
// kube-controller-manager.
const nodePodBits = 24

// Modes of kube-proxy.
const (
	ProxyNftables = "nftables"
	ProxyIptables = "iptables"
)

// Cgroup versions.
const (
	CgroupV1 = "v1"
	CgroupV2 = "v2"
)
