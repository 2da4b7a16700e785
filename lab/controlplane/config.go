// Package controlplane runs the lab's real Kubernetes control plane: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler as processes in a
// network namespace of their own that holds an interface of the VPC, as EKS does.
//
// It makes the certificates, renders the flags, waits until pods can be created,
// and forwards one port of the machine's loopback to the API server. It creates
// neither the namespace nor the interface. Only lab/daemon calls it.
package controlplane

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// Config is what a control plane needs to know.
type Config struct {
	Lab      string // its name; every process is marked with it
	StateDir string // certificates (0600), etcd's data and logs go below it
	Kube     string // path of trunkline-kube
	NetNS    string // path of the namespace that holds Address
	// Address of the API server inside the VPC.
	Address     netip.Addr
	ServiceCIDR netip.Prefix
	// Issuer is the URL service-account tokens name as theirs, as EKS's OIDC
	// provider: https://oidc.eks.<region>.amazonaws.com/id/<hex>.
	Issuer string
	// Port of the forwarder on 127.0.0.1; 0 picks a free one.
	Port int
	// Deadline for the whole start; 0 is three minutes.
	Deadline time.Duration
}

// SecurePort is where the API server listens inside the VPC, as on EKS.
const SecurePort = 443

// paths of everything the control plane keeps on disk.
type paths struct{ dir string }

func (p paths) pki(name string) string  { return filepath.Join(p.dir, "pki", name) }
func (p paths) conf(name string) string { return filepath.Join(p.dir, name+".kubeconfig") }
func (p paths) log(name string) string  { return filepath.Join(p.dir, "log", name+".log") }
func (p paths) etcd() string            { return filepath.Join(p.dir, "etcd") }
func (p paths) auditPolicy() string     { return filepath.Join(p.dir, "audit-policy.yaml") }
func (p paths) auditLog() string        { return filepath.Join(p.dir, "log", "audit.log") }

// etcdClient and etcdPeer are unix sockets in the data directory. etcd makes the
// file of "unix://localhost:7" relative to its working directory, so the names
// carry the whole path.
func (p paths) etcdClient() string { return "unix://" + filepath.Join(p.dir, "etcd.sock") }
func (p paths) etcdPeer() string   { return "unix://" + filepath.Join(p.dir, "peer.sock") }

// Server is the API server's URL inside the VPC.
func (c Config) Server() string {
	return "https://" + netip.AddrPortFrom(c.Address, SecurePort).String()
}

// kubernetesService is the first address of the service range, which the API
// server takes for its own service.
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
		return fmt.Errorf("control plane config: missing or wrong: %s", strings.Join(missing, ", "))
	}
	return nil
}
