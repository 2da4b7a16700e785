// Package daemon is the long-lived process behind one lab: it owns the embedded
// VPC, the control plane and the nodes, converges them to the spec it is given,
// and answers on a unix socket in the lab's state directory.
//
// It decides the order of things and nothing else: sim/world, lab/controlplane
// and lab/node do the work. cmd/trunkline-lab starts it (serve) and lab/cli
// speaks to it through Client. Whatever it starts dies with it.
package daemon

import (
	"net/netip"
	"path/filepath"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// StateRoot holds one directory per lab; it is gone when the lab is.
const StateRoot = "/var/lib/trunkline-lab"

// StateDir returns the state directory of a lab.
func StateDir(name string) string { return filepath.Join(StateRoot, name) }

// SocketPath returns the daemon's socket in a state directory. Only root may
// connect (0600).
func SocketPath(stateDir string) string { return filepath.Join(stateDir, "daemon.sock") }

// LogPath returns the daemon's own log in a state directory.
func LogPath(stateDir string) string { return filepath.Join(stateDir, "log", "daemon.log") }

// Phase is one step on the way to a ready lab.
type Phase string

// Phases in the order they are shown. Some overlap in time.
const (
	PhaseWorld        Phase = "world"         // VPC, fabric, EC2 API, IMDS, resolver
	PhaseControlPlane Phase = "control-plane" // etcd, API server, controllers, scheduler
	PhaseNodes        Phase = "nodes"         // boot, containerd, kubelet registered
	PhaseImages       Phase = "images"        // import into every node
	PhaseDeploy       Phase = "deploy"        // apply the manifests
	PhaseReady        Phase = "ready"         // every node Ready
)

// Phases returns every phase in order.
func Phases() []Phase {
	return []Phase{PhaseWorld, PhaseControlPlane, PhaseNodes, PhaseImages, PhaseDeploy, PhaseReady}
}

// State of a phase or of a lab.
type State string

// States.
const (
	StatePending State = "pending"
	StateRunning State = "running"
	StateDone    State = "done"
	StateFailed  State = "failed"
	StateSkipped State = "skipped" // nothing to do, such as no manifests given
)

// PhaseStatus is how far a phase is.
type PhaseStatus struct {
	Phase   Phase         `json:"phase"`
	State   State         `json:"state"`
	Elapsed time.Duration `json:"elapsedNs"` // so far, or in all
	Detail  string        `json:"detail,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Event is a change of a phase, for progress lines. The last event of an apply
// has no phase: its state is done or failed, Elapsed is the whole apply and
// Error says why it failed.
type Event struct {
	Time time.Time `json:"time"`
	PhaseStatus
}

// NodeState is whether an instance runs.
type NodeState string

// Node states, as EC2 names them.
const (
	NodePending    NodeState = "pending"
	NodeRunning    NodeState = "running"
	NodeStopped    NodeState = "stopped"
	NodeTerminated NodeState = "terminated"
)

// NodeStatus is one node as it is now.
type NodeStatus struct {
	Name       string         `json:"name"`      // in lab.yaml: node1
	KubeName   string         `json:"kubeName"`  // of the Node object: the private DNS name
	Namespace  string         `json:"namespace"` // network namespace: tl-<lab>-<node>
	InstanceID vpc.InstanceID `json:"instanceID"`
	Type       string         `json:"type"`
	Zone       string         `json:"zone"`
	Address    netip.Addr     `json:"address"` // primary private address
	State      NodeState      `json:"state"`
	// PID of the node's PID 1 as the machine sees it; 0 when it does not run.
	// node.EnterArgs(pid) is the command that enters the node.
	PID      int    `json:"pid,omitempty"`
	BootID   string `json:"bootID,omitempty"`
	StateDir string `json:"stateDir"` // disk and logs of the node
	Error    string `json:"error,omitempty"`
}

// Endpoints are what a user can reach from the machine.
type Endpoints struct {
	Kubernetes string `json:"kubernetes,omitempty"` // https://127.0.0.1:port
	EC2        string `json:"ec2,omitempty"`        // http://127.0.0.1:port
	Admin      string `json:"admin,omitempty"`      // faults and call log of the VPC
	Kubeconfig string `json:"kubeconfig,omitempty"` // path, cluster-admin
	// Credentials is the path of an AWS shared credentials file: the account's
	// operator, who may do everything.
	Credentials string `json:"credentials,omitempty"`
}

// Status is everything the daemon knows about its lab.
type Status struct {
	Name      string        `json:"name"`
	Version   string        `json:"version"`
	PID       int           `json:"pid"`
	StateDir  string        `json:"stateDir"`
	State     State         `json:"state"` // pending until the first apply
	Error     string        `json:"error,omitempty"`
	Elapsed   time.Duration `json:"elapsedNs"` // of the last apply
	Phases    []PhaseStatus `json:"phases"`
	Nodes     []NodeStatus  `json:"nodes"`
	Endpoints Endpoints     `json:"endpoints"`
}

// Power is an action on a node's instance.
type Power string

// Power actions. Stop is a power cut: nothing is shut down in order.
const (
	PowerStop      Power = "stop"
	PowerStart     Power = "start"
	PowerReboot    Power = "reboot"
	PowerTerminate Power = "terminate"
)
