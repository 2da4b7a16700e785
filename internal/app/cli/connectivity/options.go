package connectivity

import (
	"regexp"
	"time"
)

// Options of a run.
type Options struct {
	// Namespace that the test creates and deletes.
	Namespace string
	// Filter selects cases by name; nil selects all.
	Filter *regexp.Regexp
	// MTU of the pod network, in bytes.
	MTU int
	// Outside is the address of a host outside the VPC that runs `workload serve`;
	// empty: none. OutsideHTTP and OutsideUDP are its ports.
	Outside                 string
	OutsideHTTP, OutsideUDP int
	// ClientGroup and ServerGroup are ids of security groups for pods: ServerGroup accepts the HTTP
	// port from ClientGroup, and nothing else from pods; empty: none.
	ClientGroup, ServerGroup string
	// ExternalName is a DNS name outside the cluster.
	ExternalName string
	// CaseTimeout bounds one command in a pod, SetupTimeout the set-up.
	CaseTimeout, SetupTimeout time.Duration
	// SettleTime bounds the wait until service proxies and DNS serve the new Services.
	SettleTime time.Duration
	// Concurrency is the number of cases that run at the same time.
	Concurrency int
	// Keep leaves the namespace and its pods in the cluster after the run.
	Keep bool
}

// Selects reports whether the filter selects a case.
func (o Options) Selects(c Case) bool { return o.Filter == nil || o.Filter.MatchString(c.Name) }

// Names and ports of the set-up.
const (
	nodePortCluster = "node-port-cluster"
	nodePortLocal   = "node-port-local"
	hostPort        = 28090
)

// podPorts and hostPorts are the ports of serve in a pod and on the host's network.
func podPorts() ports  { return ports{HTTP: 8080, TCP: 8081, UDP: 8082} }
func hostPorts() ports { return ports{HTTP: 28080, TCP: 28081, UDP: 28082} }

// Ports returns the ports of serve in a pod, or on the host's network.
func Ports(host bool) (http, tcp, udp int) {
	p := podPorts()
	if host {
		p = hostPorts()
	}
	return p.HTTP, p.TCP, p.UDP
}

// ServiceName returns the name of the Service with one pod as its backend.
func ServiceName(pod string) string { return "to-" + pod }

// PluginConfigMount is the mount point of the node's CNI configuration in host pods.
const PluginConfigMount = "/host-cni"
