// Package daemon is the long-lived process of one lab: it owns the embedded VPC, the
// control plane and the nodes, converges them to a desired state, and serves an API on a
// unix socket in the lab's state directory.
//
// It decides only the order of the work, which sim/world, lab/controlplane and lab/node
// do. cmd/trunkline-lab starts it (serve), and lab/cli calls it through Client. All
// processes it starts end with it.
package daemon

import (
	"net/netip"
	"path/filepath"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// StateRoot is the directory of the labs' state directories. Each is removed with its
// lab.
const StateRoot = "/var/lib/trunkline-lab"

// StateDir returns the state directory of a lab.
func StateDir(name string) string { return filepath.Join(StateRoot, name) }

// SocketPath returns the daemon's socket in a state directory. Only root may
// connect (0600).
func SocketPath(stateDir string) string { return filepath.Join(stateDir, "daemon.sock") }

// LogPath returns the daemon's own log in a state directory.
func LogPath(stateDir string) string { return filepath.Join(stateDir, "log", "daemon.log") }

// Phase is a step of bringing a lab up.
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

// PhaseStatus is the progress of a phase.
type PhaseStatus struct {
	Phase   Phase         `json:"phase"`
	State   State         `json:"state"`
	Elapsed time.Duration `json:"elapsedNs"` // until now, or until its end
	Detail  string        `json:"detail,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Event is a change of a phase, for progress lines. The last event of an apply has no
// phase: its state is done or failed, Elapsed is the duration of the apply, and Error is
// why it failed.
type Event struct {
	Time time.Time `json:"time"`
	PhaseStatus
}

// NodeState is the state of a node's instance.
type NodeState string

// Node states, as EC2 names them.
const (
	NodePending    NodeState = "pending"
	NodeRunning    NodeState = "running"
	NodeStopped    NodeState = "stopped"
	NodeTerminated NodeState = "terminated"
)

// NodeStatus is the state of one node.
type NodeStatus struct {
	Name       string         `json:"name"`      // in lab.yaml: node1
	KubeName   string         `json:"kubeName"`  // of the Node object: the private DNS name
	Namespace  string         `json:"namespace"` // network namespace: tl-<lab>-<node>
	InstanceID vpc.InstanceID `json:"instanceID"`
	Type       string         `json:"type"`
	Zone       string         `json:"zone"`
	Address    netip.Addr     `json:"address"` // primary private address
	State      NodeState      `json:"state"`
	// PID of the node's PID 1 in the machine's PID namespace; 0 if the node is down.
	// node.EnterArgs returns the command that enters the node.
	PID      int    `json:"pid,omitempty"`
	BootID   string `json:"bootID,omitempty"`
	StateDir string `json:"stateDir"` // disk and logs of the node
	Error    string `json:"error,omitempty"`
}

// Endpoints are the lab's endpoints and credentials for clients on the machine.
type Endpoints struct {
	Kubernetes string `json:"kubernetes,omitempty"` // https://127.0.0.1:port
	EC2        string `json:"ec2,omitempty"`        // http://127.0.0.1:port
	Admin      string `json:"admin,omitempty"`      // faults and call log of the VPC
	Kubeconfig string `json:"kubeconfig,omitempty"` // path, cluster-admin
	// Credentials is the path of an AWS shared credentials file with the key of the
	// account's operator, which has all permissions.
	Credentials string `json:"credentials,omitempty"`
}

// Status is the state of a lab.
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

// Power actions. Stop is a power cut, without an orderly shutdown.
const (
	PowerStop      Power = "stop"
	PowerStart     Power = "start"
	PowerReboot    Power = "reboot"
	PowerTerminate Power = "terminate"
)
