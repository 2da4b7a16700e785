package connectivity

import (
	"regexp"
	"time"
)

// Options of a run. The zero value of a field means what its comment says.
type Options struct {
	// Namespace the test makes and removes.
	Namespace string
	// Filter picks cases by name; nil picks all.
	Filter *regexp.Regexp
	// MTU of the pod network in bytes.
	MTU int
	// Outside is the address of a host outside the VPC that runs the workload's
	// serve; empty: there is none.
	Outside                 string
	OutsideHTTP, OutsideUDP int
	// ExternalName is a DNS name outside the cluster.
	ExternalName string
	// CaseTimeout bounds one command in a pod, SetupTimeout the set-up.
	CaseTimeout, SetupTimeout time.Duration
	// SettleTime is how long service proxies and DNS get to learn of the Services.
	SettleTime time.Duration
	// Concurrency is how many cases run at once.
	Concurrency int
	// Keep leaves the namespace for a look.
	Keep bool
}

// Picks reports whether the filter lets a case run.
func (o Options) Picks(c Case) bool { return o.Filter == nil || o.Filter.MatchString(c.Name) }

// Names of what the set-up makes.
const (
	nodePortCluster = "node-port-cluster"
	nodePortLocal   = "node-port-local"
	hostPort        = 28090
)

// podPorts and hostPorts are where serve listens in a pod and on a node.
func podPorts() ports  { return ports{HTTP: 8080, TCP: 8081, UDP: 8082} }
func hostPorts() ports { return ports{HTTP: 28080, TCP: 28081, UDP: 28082} }

// Ports are where serve listens in a pod, or on the host's network.
func Ports(host bool) (http, tcp, udp int) {
	p := podPorts()
	if host {
		p = hostPorts()
	}
	return p.HTTP, p.TCP, p.UDP
}

// ServiceName is the Service in front of one pod.
func ServiceName(pod string) string { return "to-" + pod }

// PluginConfigMount is where host pods see the node's CNI configuration.
const PluginConfigMount = "/host-cni"
