// Package controlplane runs the lab's real Kubernetes control plane: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler as processes in a network
// namespace with an interface of the VPC, as EKS does.
//
// It creates the certificates, renders the flags, waits until pods can be created, and
// forwards a port of the machine's loopback to the API server. The caller creates the
// namespace and the interface. Only lab/daemon calls it.
package controlplane

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// Config is the configuration of a control plane.
type Config struct {
	Lab      string // name of the lab; every process is marked with it
	StateDir string // directory of certificates (0600), etcd's data and logs
	Kube     string // path of trunkline-kube
	NetNS    string // path of the namespace that holds Address
	// Address of the API server inside the VPC.
	Address     netip.Addr
	ServiceCIDR netip.Prefix
	// PodCIDR is the range that the controller manager gives nodes theirs from; invalid
	// where pods get addresses of interfaces, as on EKS.
	PodCIDR netip.Prefix
	// Issuer is the issuer URL of service-account tokens, in the form of EKS's OIDC
	// providers: https://oidc.eks.<region>.amazonaws.com/id/<hex>.
	Issuer string
	// Port of the forwarder on 127.0.0.1; 0 is any free one.
	Port int
	// APIProxy: clients inside the VPC reach the API server by a proxy that injects faults.
	APIProxy bool
	// Deadline for the whole start; 0 is three minutes.
	Deadline time.Duration
}

// SecurePort is the API server's port inside the VPC, as on EKS.
const SecurePort = 443

// paths returns the paths of the control plane's files.
type paths struct{ dir string }

func (p paths) pki(name string) string  { return filepath.Join(p.dir, "pki", name) }
func (p paths) conf(name string) string { return filepath.Join(p.dir, name+".kubeconfig") }
func (p paths) log(name string) string  { return filepath.Join(p.dir, "log", name+".log") }
func (p paths) etcd() string            { return filepath.Join(p.dir, "etcd") }
func (p paths) auditPolicy() string     { return filepath.Join(p.dir, "audit-policy.yaml") }
func (p paths) auditLog() string        { return filepath.Join(p.dir, "log", "audit.log") }

// etcdClient and etcdPeer return the URLs of unix sockets in the state directory. They
// have absolute paths, because etcd creates the socket of a URL such as
// "unix://localhost:7" in its working directory.
func (p paths) etcdClient() string { return "unix://" + filepath.Join(p.dir, "etcd.sock") }
func (p paths) etcdPeer() string   { return "unix://" + filepath.Join(p.dir, "peer.sock") }

// Server returns the API server's URL inside the VPC.
func (c Config) Server() string {
	return "https://" + netip.AddrPortFrom(c.Address, SecurePort).String()
}

// kubernetesService returns the first address of the service range, which is that of the
// API server's own Service.
func (c Config) kubernetesService() netip.Addr {
	return c.ServiceCIDR.Masked().Addr().Next()
}

func (c Config) validate() error {
	var missing []string
	for name, ok := range map[string]bool{
		"Lab": c.Lab != "", "StateDir": filepath.IsAbs(c.StateDir), "Kube": filepath.IsAbs(c.Kube),
		"NetNS": c.NetNS != "", "Address": c.Address.IsValid(), "ServiceCIDR": c.ServiceCIDR.IsValid(),
		"Issuer": strings.HasPrefix(c.Issuer, "https://"),
	} {
		if !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("control plane config: missing or invalid: %s", strings.Join(missing, ", "))
	}
	return nil
}
