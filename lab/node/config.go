// Package node runs one node of the lab: a network namespace that is an EC2
// instance, with processes, mounts, host name, cgroups and a disk of its own, in
// which containerd, kubelet and kube-proxy run as they do on a machine.
//
// On the machine it makes the cgroups and starts PID 1; inside, InitMain builds
// the root file system, configures the primary interface as cloud-init does, and
// keeps the three programs running. It neither creates the network namespace nor
// plugs interfaces: the embedded VPC does. Only lab/daemon calls it, and
// cmd/trunkline-lab calls InitMain.
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
)

// CgroupView is which cgroup hierarchy a node sees.
type CgroupView string

// Cgroup views. On a machine whose cgroups are version 2 there is only V2, in
// full. On a version 1 machine V2 has no controllers: the kubelet then sets no
// limits, and what runs is the version 2 code of agents and programs.
const (
	CgroupV1 CgroupView = "v1"
	CgroupV2 CgroupView = "v2"
)

// Config is everything a node is made of. It is written to the node's state
// directory, where PID 1 reads it.
type Config struct {
	Lab      string `json:"lab"`
	Name     string `json:"name"`     // of the node in its lab: node1
	StateDir string `json:"stateDir"` // its disk, logs and keys, on the machine
	NetNS    string `json:"netns"`    // path of the instance's network namespace

	Instance   Instance   `json:"instance"`
	Kubernetes Kubernetes `json:"kubernetes"`
	Parts      Parts      `json:"parts"`
	Cgroup     CgroupView `json:"cgroup"`
	// FullV2 says that the machine has version 2 only, with its controllers.
	// Start sets it.
	FullV2 bool `json:"fullV2,omitempty"`
	// BootID differs at each boot. Start sets it.
	BootID string `json:"bootID,omitempty"`
	// PlugTimeout is how long the boot waits for the primary interface; 0 is a minute.
	PlugTimeout time.Duration `json:"plugTimeout,omitempty"`
	// Labels of the Node object beyond those of the instance.
	Labels map[string]string `json:"labels,omitempty"`
}

// Instance is what cloud-init would learn from the metadata service.
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
}

// Hostname is the instance's private DNS name, which is also the Node's name.
func (i Instance) Hostname() string { return vpc.PrivateDNSName(i.Address, i.Region) }

// Kubernetes is what a node is told when it joins.
type Kubernetes struct {
	Server     string     `json:"server"` // URL of the API server inside the VPC
	ClusterDNS netip.Addr `json:"clusterDNS"`
	Keys       Keys       `json:"-"` // written below StateDir, not into the config
}

// Keys are a node's identities, PEM encoded.
type Keys struct {
	CA                []byte // the cluster's authority
	KubeletCert       []byte // serving certificate for the node's name and address
	KubeletKey        []byte
	KubeletKubeconfig []byte // client system:node:<name>
	ProxyKubeconfig   []byte // client system:kube-proxy
}

// Parts are the programs a node runs.
type Parts struct {
	Kube       string `json:"kube"`       // trunkline-kube
	Lab        string `json:"lab"`        // trunkline-lab
	Containerd string `json:"containerd"` // directory of containerd and its shim
	Runc       string `json:"runc"`
	// CNI is a directory of plugins that the node's image ships in /opt/cni/bin,
	// as EKS's does. "loopback" must be among them: containerd 1.6 calls it for
	// every pod.
	CNI        string `json:"cni"`
	PauseImage string `json:"pauseImage"`
	// Images is the store whose images a new disk begins with; see
	// lab/imagestore. Empty begins without.
	Images string `json:"images,omitempty"`
}

// Paths on the machine, below the node's state directory.
func (c Config) configPath() string { return filepath.Join(c.StateDir, "node.json") }
func (c Config) rootPath() string   { return filepath.Join(c.StateDir, "root") }
func (c Config) keysPath() string   { return filepath.Join(c.StateDir, "keys") }
func (c Config) logPath() string    { return filepath.Join(c.StateDir, "log") }
func (c Config) bootPath() string   { return filepath.Join(c.StateDir, "boot") }

// disk is a directory that a reboot keeps, as the root volume of an instance.
func (c Config) disk(path string) string { return filepath.Join(c.StateDir, "disk", path) }

// Paths inside the node.
const (
	labDir     = "/lab"           // programs, configuration and logs of the lab's own
	binDir     = labDir + "/bin"  // on the PATH of every component
	confDir    = labDir + "/conf" // rendered configuration
	keysDir    = labDir + "/keys"
	logDir     = labDir + "/log"
	nodeConfig = confDir + "/node.json"
)

func (c Config) validate() error {
	var wrong []string
	for what, ok := range map[string]bool{
		"lab": c.Lab != "", "name": c.Name != "", "stateDir": filepath.IsAbs(c.StateDir),
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
		"parts.cni":          filepath.IsAbs(c.Parts.CNI),
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
		return fmt.Errorf("node %s: missing or wrong: %s", c.Name, strings.Join(wrong, ", "))
	}
	return nil
}

// readConfig reads what save wrote.
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

// save writes the config and the keys where PID 1 finds them.
func (c Config) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	k := c.Kubernetes.Keys
	files := map[string][]byte{
		c.configPath():                                 b,
		filepath.Join(c.keysPath(), "ca.crt"):          k.CA,
		filepath.Join(c.keysPath(), "kubelet.crt"):     k.KubeletCert,
		filepath.Join(c.keysPath(), "kubelet.key"):     k.KubeletKey,
		filepath.Join(c.keysPath(), "kubelet.conf"):    k.KubeletKubeconfig,
		filepath.Join(c.keysPath(), "kube-proxy.conf"): k.ProxyKubeconfig,
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
