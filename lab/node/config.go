// Package node runs one node of the lab: the network namespace of an EC2 instance with
// its own processes, mounts, host name, cgroups and disk, in which containerd, kubelet and
// kube-proxy run as on a machine.
//
// On the machine it creates the cgroups and starts PID 1. In the node, InitMain builds the
// root file system, configures the primary interface as cloud-init does, and keeps the
// three programs running. lab/daemon creates the network namespace, and the embedded VPC
// plugs interfaces into it. lab/daemon calls this package, and cmd/trunkline-lab calls
// InitMain.
package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/osimage"
)

// CgroupView is the cgroup version that a node has.
type CgroupView string

// Cgroup views. A machine with only cgroup version 2 has only V2, with all controllers. On
// a machine with version 1, V2 has no controllers: the kubelet sets no limits, but
// programs run their code for version 2.
const (
	CgroupV1 CgroupView = "v1"
	CgroupV2 CgroupView = "v2"
)

// Config is the configuration of a node. It is written to the node's state directory,
// from which PID 1 reads it.
type Config struct {
	Lab      string `json:"lab"`
	Name     string `json:"name"`     // of the node in its lab: node1
	StateDir string `json:"stateDir"` // its disk, logs and keys, on the machine
	NetNS    string `json:"netns"`    // path of the instance's network namespace

	Instance   Instance   `json:"instance"`
	Kubernetes Kubernetes `json:"kubernetes"`
	Parts      Parts      `json:"parts"`
	Cgroup     CgroupView `json:"cgroup"`
	// Image is the operating system that the node boots; empty is osimage.Bare.
	Image osimage.Name `json:"image,omitempty"`
	// FullV2: the machine has only cgroup version 2, with controllers. Start sets it.
	FullV2 bool `json:"fullV2,omitempty"`
	// BootID is new at each boot. Start sets it.
	BootID string `json:"bootID,omitempty"`
	// PlugTimeout is how long the boot waits for the primary interface; 0 is a minute.
	PlugTimeout time.Duration `json:"plugTimeout,omitempty"`
	// Labels of the Node object beyond those of the instance.
	Labels map[string]string `json:"labels,omitempty"`
	// Authorities are certificates (PEM) that the node trusts in addition to those of its
	// image; empty is none. Pods that mount its /etc/ssl/certs trust them too.
	Authorities []byte `json:"authorities,omitempty"`
	// Files of lab.yaml by their paths: written before the node's programs start, unless they
	// exist since an earlier boot.
	Files map[string]string `json:"files,omitempty"`
	// Before is the network that the node starts with, of lab.yaml; see before.go.
	Before string `json:"before,omitempty"`
	// PodRange are the addresses of the node's pods if another product than Trunkline
	// connects them; see network.go.
	PodRange netip.Prefix `json:"podRange,omitzero"`
}

// Instance is the instance's data that cloud-init reads from the metadata service.
type Instance struct {
	ID       vpc.InstanceID `json:"id"`
	Type     string         `json:"type"`
	Zone     string         `json:"zone"`
	Region   string         `json:"region"`
	MAC      vpc.MAC        `json:"mac"`     // of the primary interface
	Address  netip.Addr     `json:"address"` // primary private address
	Subnet   netip.Prefix   `json:"subnet"`
	Resolver netip.Addr     `json:"resolver"`
	MaxPods  int            `json:"maxPods"`
	// Name of a machine without a cloud, which is also the Node's; empty on an instance.
	Name string `json:"name,omitempty"`
}

// MaxPodsWithoutCloud is the number of pods of a node without a cloud: the kubelet's
// default, which fits in a pod CIDR of /24.
const MaxPodsWithoutCloud = 110

// InCloud reports whether the node is an EC2 instance.
func (i Instance) InCloud() bool { return i.Name == "" }

// Hostname returns the machine's name, which is also the Node's: on an instance its
// private DNS name.
func (i Instance) Hostname() string {
	if !i.InCloud() {
		return i.Name
	}
	return vpc.PrivateDNSName(i.Address, i.Region)
}

// providerID returns spec.providerID of the Node, in the form of the machine's provider.
func (i Instance) providerID(lab string) string {
	if !i.InCloud() {
		return "trunkline-lab://" + lab + "/" + i.Name
	}
	return vpc.ProviderID(i.Zone, i.ID)
}

// Kubernetes is the cluster's configuration for a node that joins.
type Kubernetes struct {
	Server     string     `json:"server"` // URL of the API server inside the VPC
	ClusterDNS netip.Addr `json:"clusterDNS"`
	Proxy      string     `json:"proxy,omitempty"` // mode of kube-proxy; empty is nftables
	Keys       Keys       `json:"-"`               // written below StateDir, not into the config
}

// Keys are a node's keys and certificates, PEM encoded, and its kubeconfigs.
type Keys struct {
	CA                []byte // certificate of the cluster's CA
	KubeletCert       []byte // serving certificate for the node's name and address
	KubeletKey        []byte
	KubeletKubeconfig []byte // client system:node:<name>
	ProxyKubeconfig   []byte // client system:kube-proxy
}

// Parts are the programs of a node.
type Parts struct {
	Kube       string `json:"kube"`       // trunkline-kube
	Lab        string `json:"lab"`        // trunkline-lab
	Containerd string `json:"containerd"` // directory of containerd and its shim
	Runc       string `json:"runc"`
	// CNI is a directory of the plugins that the node has in /opt/cni/bin. Without loopback,
	// which containerd 1.6 calls for every pod, none starts. Empty: the node has no plugins.
	CNI string `json:"cni"`
	// AWSPlugins is a directory of the plugins that AWS's daemon installs on a node that
	// starts with it.
	AWSPlugins string `json:"awsPlugins,omitempty"`
	PauseImage string `json:"pauseImage"`
	// Images is the image store that is copied to a new disk; see lab/imagestore. Empty
	// is none.
	Images string `json:"images,omitempty"`
}

// dir returns the node's state directory.
func (c Config) dir() stateDir { return stateDir(c.StateDir) }

// Paths inside the node.
const (
	labDir     = "/lab"           // the lab's own programs, configuration and logs
	binDir     = labDir + "/bin"  // on the PATH of every component
	confDir    = labDir + "/conf" // rendered configuration
	keysDir    = labDir + "/keys"
	logDir     = labDir + "/log"
	awsDir     = labDir + "/aws" // plugins in the image of AWS's init container
	nodeConfig = confDir + "/node.json"
)

func (c Config) validate() error {
	var wrong []string
	_, known := osimage.Lookup(c.Image)
	for what, ok := range map[string]bool{
		"image": known, "lab": c.Lab != "", "name": c.Name != "", "stateDir": filepath.IsAbs(c.StateDir),
		"netns": filepath.IsAbs(c.NetNS), "instance.id": c.Instance.ID != "",
		"instance.address":   c.Instance.Subnet.Contains(c.Instance.Address),
		"instance.mac":       c.Instance.MAC != vpc.MAC{},
		"instance.resolver":  c.Instance.Resolver.IsValid(),
		"instance.maxPods":   c.Instance.MaxPods > 0,
		"kubernetes.server":  strings.HasPrefix(c.Kubernetes.Server, "https://"),
		"cgroup":             c.Cgroup == CgroupV1 || c.Cgroup == CgroupV2,
		"parts.kube":         filepath.IsAbs(c.Parts.Kube),
		"parts.lab":          filepath.IsAbs(c.Parts.Lab),
		"parts.containerd":   filepath.IsAbs(c.Parts.Containerd),
		"parts.runc":         filepath.IsAbs(c.Parts.Runc),
		"parts.cni":          c.Parts.CNI == "" || filepath.IsAbs(c.Parts.CNI),
		"parts.awsPlugins":   c.Before == "" || filepath.IsAbs(c.Parts.AWSPlugins),
		"parts.pauseImage":   c.Parts.PauseImage != "",
		"kubernetes.dns":     c.Kubernetes.ClusterDNS.IsValid(),
		"instance.zone/type": c.Instance.Zone != "" && c.Instance.Type != "" && c.Instance.Region != "",
	} {
		if !ok {
			wrong = append(wrong, what)
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return fmt.Errorf("node %s: missing or invalid: %s", c.Name, strings.Join(wrong, ", "))
	}
	return nil
}

// Erase removes the node's disk, keys and logs. The node must be down.
func (c Config) Erase() error { return os.RemoveAll(c.StateDir) }

// readConfig reads the file written by save.
func readConfig(path string) (Config, error) {
	var c Config
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// save writes the config and the keys for PID 1.
func (c Config) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	k := c.Kubernetes.Keys
	files := map[string][]byte{
		c.dir().config():                                 b,
		filepath.Join(c.dir().keys(), "ca.crt"):          k.CA,
		filepath.Join(c.dir().keys(), "kubelet.crt"):     k.KubeletCert,
		filepath.Join(c.dir().keys(), "kubelet.key"):     k.KubeletKey,
		filepath.Join(c.dir().keys(), "kubelet.conf"):    k.KubeletKubeconfig,
		filepath.Join(c.dir().keys(), "kube-proxy.conf"): k.ProxyKubeconfig,
	}
	for path, content := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
