package daemon

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/lab/osimage"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

// Lab is the desired state of a lab, with all defaults applied and absolute paths. lab/cli
// creates it from lab.yaml; POST /v1/apply converges to it.
//
// World is the initial state of the account, read when the lab starts. A later apply may
// only change its instances, together with Nodes.
type Lab struct {
	Name string `json:"name"`
	// World is the account: VPC, subnets, groups, instances and hosts. Each of
	// Nodes is one of its instances, ControlPlane one of its hosts; their
	// Namespace fields are NetNS of their names.
	World cloud.Spec `json:"world"`
	// Roles are the account's IAM roles, with the policies of deploy/iam.
	Roles []iam.Role `json:"roles,omitempty"`
	// Faults at the start; the admin endpoint changes them later.
	Faults faults.Plan `json:"faults,omitzero"`
	// Latency of each answer of EC2 and STS, in addition to injected latency.
	Latency      faults.Duration `json:"latency,omitempty"`
	ControlPlane string          `json:"controlPlane"` // name of one of World.Hosts
	ServiceCIDR  netip.Prefix    `json:"serviceCIDR"`  // 172.20.0.0/16
	// NoCloud hides the account from the nodes: neither EC2 nor instance metadata
	// answers inside the VPC. PodCIDR is then the range of the nodes' pod CIDRs.
	NoCloud    bool         `json:"noCloud,omitempty"`
	PodCIDR    netip.Prefix `json:"podCIDR,omitzero"`
	ClusterDNS netip.Addr   `json:"clusterDNS"` // 172.20.0.10
	// APIPort is the forwarder's port on 127.0.0.1; 0 is any free one.
	APIPort int `json:"apiPort,omitempty"`
	// Proxy is the mode of kube-proxy; empty is nftables.
	Proxy string `json:"proxy,omitempty"`
	// APIProxy: nodes and pods reach the API server by a proxy that injects faults.
	APIProxy bool `json:"apiProxy,omitempty"`
	// PodGroups is how pods get security groups of their own: a value of lab/spec, or empty.
	PodGroups string `json:"securityGroupsForPods,omitempty"`
	Nodes     []Node `json:"nodes"`
	Parts     Parts  `json:"parts"`
	// Images are OCI or docker archives to import into every node.
	Images []Image `json:"images,omitempty"`
	// ImageStore is a directory with the unpacked Images, a copy of which new nodes start
	// with; see lab/imagestore. Without it every image is imported into every node.
	ImageStore string `json:"imageStore,omitempty"`
	// Deploy is a kustomize directory, applied once the control plane serves. Without it
	// the phase is skipped.
	Deploy string `json:"deploy,omitempty"`
}

// Node holds the options of a Kubernetes node that its instance does not have.
type Node struct {
	Name string `json:"name"` // of the instance in World.Instances
	// Cgroup is the node's cgroup version: "v1" (the machine's hierarchy) or "v2".
	Cgroup string `json:"cgroup,omitempty"`
	// Labels of the Node object beyond those of the instance.
	Labels map[string]string `json:"labels,omitempty"`
	// Image is the operating system that the node boots; empty is bare.
	Image osimage.Name `json:"image,omitempty"`
	// NoCNIPlugins: the node has none of CNI's reference plugins.
	NoCNIPlugins bool `json:"noCNIPlugins,omitempty"`
	// Files that the node has before its programs start, by their paths.
	Files map[string]string `json:"files,omitempty"`
	// Before is the network that the node starts with; empty is that of Deploy.
	Before string `json:"before,omitempty"`
	// OtherNetwork: the node's pods have addresses of the prefix of its primary interface,
	// and another network than that of Deploy.
	OtherNetwork bool `json:"otherNetwork,omitempty"`
}

// Parts are the lab's programs, built or unpacked by lab/cache. Every path is absolute.
type Parts struct {
	Kube       string `json:"kube"`       // trunkline-kube
	Lab        string `json:"lab"`        // trunkline-lab: PID 1 of every node
	Containerd string `json:"containerd"` // directory of containerd, ctr and containerd-shim-runc-v2
	Runc       string `json:"runc"`
	// CNI is a directory of CNI's reference plugins, including loopback. Nodes have them
	// in /opt/cni/bin, except those with NoCNIPlugins.
	CNI string `json:"cni"`
	// PauseImage is the reference of the sandbox image, which must be in Images.
	PauseImage string `json:"pauseImage"`
}

// Image is an archive and the references in it.
type Image struct {
	Path string   `json:"path"`
	Refs []string `json:"refs"`
}

// NetNS returns the name of the network namespace of a lab's member: a node's name, "cp",
// "vpc" or "net".
func NetNS(lab, member string) string { return "tl-" + lab + "-" + member }

// Validate returns an error if l is invalid.
func (l Lab) Validate() error {
	if !labName.MatchString(l.Name) {
		return fmt.Errorf("lab name %q: must be at most 24 lower-case letters, digits and dashes", l.Name)
	}
	instances := map[string]bool{}
	for _, i := range l.World.Instances {
		instances[i.Name] = true
	}
	for _, n := range l.Nodes {
		if !instances[n.Name] {
			return fmt.Errorf("node %q is not an instance of world.instances", n.Name)
		}
		if n.Cgroup != "" && n.Cgroup != "v1" && n.Cgroup != "v2" {
			return fmt.Errorf("node %s: cgroup %q: must be v1 or v2", n.Name, n.Cgroup)
		}
	}
	for name, path := range map[string]string{
		"kube": l.Parts.Kube, "lab": l.Parts.Lab, "containerd": l.Parts.Containerd, "runc": l.Parts.Runc,
		"cni": l.Parts.CNI,
	} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("parts.%s: %q must be an absolute path", name, path)
		}
	}
	return nil
}

// Issuer returns the issuer URL of the lab's service-account tokens, in the form of EKS's
// OIDC providers.
func (l Lab) Issuer() string {
	if l.NoCloud {
		return "https://kubernetes.default.svc.cluster.local"
	}
	return "https://oidc.eks." + l.World.Region + ".amazonaws.com/id/" + issuerID(l.Name)
}

// issuerID returns 32 hex digits that are unique to a lab.
func issuerID(name string) string {
	sum := sha256.Sum256([]byte("trunkline-lab/" + name))
	return strings.ToUpper(fmt.Sprintf("%x", sum[:16]))
}

// FixedIn returns the fields, by their names in lab.yaml, in which want differs from the
// running lab l and which cannot change while it runs: all except nodes, images, manifests
// and programs.
func (l Lab) FixedIn(want Lab) ([]string, error) {
	have, err := fixedParts(l)
	if err != nil {
		return nil, err
	}
	wanted, err := fixedParts(want)
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range wanted {
		if have[name] != wanted[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// fixedParts returns the JSON of each part of a lab that is fixed while it runs.
func fixedParts(l Lab) (map[string]string, error) {
	out := map[string]string{}
	for name, part := range map[string]any{
		"name": l.Name, "region": l.World.Region, "account": l.World.Account, "seed": l.World.Seed,
		"vpc": l.World.VPC, "subnets": l.World.Subnets, "routeTables": l.World.RouteTables,
		"securityGroups": l.World.Groups, "controlPlane": []any{l.World.Hosts, l.ControlPlane},
		"elasticAddresses": l.World.Addresses, "quotas": l.World.Quotas, "instanceTypes": l.World.Limits, "faults": l.Faults, "latency": l.Latency,
		"cloud":      l.NoCloud,
		"kubernetes": []any{l.ServiceCIDR, l.PodCIDR, l.ClusterDNS, l.APIPort, l.Proxy, l.APIProxy}, "securityGroupsForPods": l.PodGroups, "IAM roles (deploy/iam)": l.Roles,
	} {
		text, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("compare %s: %w", name, err)
		}
		out[name] = string(text)
	}
	return out, nil
}

var labName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?$`)
