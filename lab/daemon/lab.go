package daemon

import (
	"net/netip"
)

// Lab is a resolved lab: every default filled in, every path absolute. lab/spec
// makes it from lab.yaml; POST /v1/apply converges to it.
type Lab struct {
	Name        string       `json:"name"`
	Region      string       `json:"region"`
	Account     string       `json:"account"`
	VPC         VPC          `json:"vpc"`
	ServiceCIDR netip.Prefix `json:"serviceCIDR"` // 172.20.0.0/16
	ClusterDNS  netip.Addr   `json:"clusterDNS"`  // 172.20.0.10
	// APIPort is the forwarder's port on 127.0.0.1; 0 picks a free one.
	APIPort int    `json:"apiPort,omitempty"`
	Nodes   []Node `json:"nodes"`
	Parts   Parts  `json:"parts"`
	// Images are OCI or docker archives to import into every node.
	Images []Image `json:"images,omitempty"`
	// Deploy is a kustomize directory that is applied when the control plane
	// serves; empty skips the phase.
	Deploy string `json:"deploy,omitempty"`
}

// VPC is the network the lab starts with.
type VPC struct {
	CIDR    netip.Prefix `json:"cidr"`
	Subnets []Subnet     `json:"subnets"`
}

// Subnet of the VPC, one zone each.
type Subnet struct {
	Name string       `json:"name"`
	Zone string       `json:"zone"`
	CIDR netip.Prefix `json:"cidr"`
}

// Node is an instance to run.
type Node struct {
	Name   string `json:"name"`
	Type   string `json:"type"`   // m5.xlarge
	Subnet string `json:"subnet"` // by name
	// Cgroup is the view the node gets: "v1" (the machine's) or "v2".
	Cgroup string `json:"cgroup,omitempty"`
	// Labels of the Node object beyond those of the instance.
	Labels map[string]string `json:"labels,omitempty"`
}

// Parts are the programs the lab runs, as lab/cache unpacked or built them.
type Parts struct {
	Kube       string `json:"kube"`       // trunkline-kube
	Lab        string `json:"lab"`        // trunkline-lab: PID 1 of every node
	Containerd string `json:"containerd"` // directory of containerd, ctr and shims
	Runc       string `json:"runc"`
	// PauseImage is the sandbox image's reference; it must be among Images.
	PauseImage string `json:"pauseImage"`
}

// Image is an archive and the references in it.
type Image struct {
	Path string   `json:"path"`
	Refs []string `json:"refs"`
}
