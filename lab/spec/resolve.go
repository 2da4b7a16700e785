package spec

import (
	"fmt"
	"net/netip"

	"github.com/trunkline/trunkline/lab/osimage"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

// Resolved is a validated lab with all defaults applied.
type Resolved struct {
	Name        string
	Cloud       cloud.Spec // initial state of the embedded EC2
	NoCloud     bool       // nodes reach neither EC2 nor instance metadata
	ServiceCIDR netip.Prefix
	// PodCIDR is the range of the nodes' pod CIDRs; invalid in a lab with a cloud.
	PodCIDR    netip.Prefix
	ClusterDNS netip.Addr
	APIPort    int    // 0: any free port
	Proxy      string // mode of kube-proxy
	APIProxy   bool   // faults can be injected before the API server
	Nodes      []ResolvedNode
	Faults     faults.Plan
	Latency    faults.Duration // of each answer of EC2 and STS
	Roles      []iam.Role      // of the file, for instances
	Images     []string        // paths of image archives
	// PodGroups is how pods get security groups of their own; see podGroups.
	PodGroups string
}

// ResolvedNode is the Kubernetes node of the instance with the same name in Cloud.
type ResolvedNode struct {
	Name      string
	Namespace string // network namespace
	Type      string
	Subnet    string
	Cgroup    string // v1 or v2
	Labels    map[string]string
	MaxPods   int
	Image     osimage.Name
	// NoCNIPlugins: the node has none of CNI's reference plugins.
	NoCNIPlugins bool
	// Files that the node has before its programs start, by their paths.
	Files map[string]string
	// Before is the network that the node starts with; empty is Trunkline.
	Before string
	// Network is that of the node's pods; empty is Trunkline.
	Network string
}

// Resolve applies defaults and validates s. It returns the lab, or all problems joined;
// each is a Problem.
func (s Spec) Resolve() (Resolved, error) {
	s = s.withDefaults()
	p := &problems{}
	out := Resolved{Name: s.Name, NoCloud: s.Cloud == CloudNone, APIPort: s.Kubernetes.APIPort, Proxy: s.Kubernetes.Proxy, APIProxy: s.Kubernetes.APIProxy, Latency: *s.Latency}
	out.Cloud = account(p, s)
	out.Roles = roles(p, s)
	out.PodGroups = podGroups(p, s)
	out.Images = archives(p, s.Images)

	n := resolveNetwork(p, s)
	out.Cloud.VPC, out.Cloud.Subnets, out.Cloud.RouteTables = n.vpc, n.subnets, n.tables
	g := resolveGroups(p, s.SecurityGroups, s.Quotas)
	out.Cloud.Groups = g.resolved

	cluster(p, s.Kubernetes)
	out.PodCIDR = podCIDR(p, s, n.cidr())
	out.ServiceCIDR, out.ClusterDNS = services(p, s.Kubernetes, n.cidr())

	m := resolveMembers(p, s, n, g, out.Cloud.Limits)
	out.Cloud.Hosts, out.Cloud.Instances, out.Nodes = m.hosts, m.instances, m.nodes
	out.Cloud.Addresses = m.elasticAddresses(s.ElasticAddresses, s.ServiceInterfaces)
	if s.Faults != nil {
		checkFaults(p, *s.Faults)
		out.Faults = *s.Faults
	}
	if err := p.err(); err != nil {
		return Resolved{}, err
	}
	if _, err := cloud.New(out.Cloud, cloud.Options{}); err != nil {
		return Resolved{}, fmt.Errorf("create the embedded EC2 for this lab: %w", err)
	}
	return out, nil
}
