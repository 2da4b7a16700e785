package connectivity

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Cluster is the part of a cluster that the test uses. app/cli implements it with the
// API server, tests with a model of a network.
type Cluster interface {
	// Nodes returns the schedulable, Ready nodes, sorted by name.
	Nodes(ctx context.Context) ([]Node, error)
	// Claim creates the namespace for this run, after deleting what an earlier run left
	// behind; it calls step before anything that takes long. claimed reports whether the
	// caller must Remove the namespace, also when Claim returns an error. While another
	// run is active, Claim returns ErrBusy and changes nothing.
	Claim(ctx context.Context, namespace string, step func(string)) (claimed bool, err error)
	// Hold renews the claim, which shows other runs that this one is active, until ctx
	// ends. It returns ErrTaken when the run no longer owns the namespace.
	Hold(ctx context.Context, namespace string) error
	// Create creates the objects of s. It returns the pods' addresses once every pod is
	// Ready.
	Create(ctx context.Context, namespace string, s Setup) (map[string]netip.Addr, error)
	// Remove deletes the claimed namespace and waits until it is deleted.
	Remove(ctx context.Context, namespace string) error
	// Service returns the cluster address and node port of a Service, such as
	// "kubernetes" in the namespace "default".
	Service(ctx context.Context, namespace, name string) (Service, error)
	// Exec runs a command in a pod's first container. A status other than 0 is
	// an error that wraps ErrExit, with the output.
	Exec(ctx context.Context, namespace, pod string, argv []string) (Output, error)
	// Logs returns a pod's log, or the last lines of it (0: all).
	Logs(ctx context.Context, namespace, pod string, lines int64) (string, error)
	// Pods returns the pods of the test's namespace.
	Pods(ctx context.Context, namespace string) ([]corev1.Pod, error)
	// Interfaces returns the ENIs of a node, or an error if they cannot be determined,
	// for instance without Trunkline. The error wraps ErrNoENIs where pods are not on
	// ENIs.
	Interfaces(ctx context.Context, node string) ([]ENI, error)
	// Health returns the errors of Trunkline's components; empty is healthy. It returns
	// an error if the state cannot be read.
	Health(ctx context.Context) ([]string, error)
	// ErrorLines returns the error lines in the logs of Trunkline's pods since a time,
	// each with the name of its pod.
	ErrorLines(ctx context.Context, since time.Time) ([]string, error)
}

// Sentinels of Cluster.
var (
	// ErrBusy: another run is active.
	ErrBusy = errors.New("another connectivity test is running")
	// ErrTaken: the run no longer owns its namespace.
	ErrTaken = errors.New("this run cannot continue")
	// ErrNoENIs: the node's pods have addresses, and no ENIs.
	ErrNoENIs = errors.New("pods are on no ENI")
	// ErrExit: a command ran and exited with a status other than 0.
	ErrExit = errors.New("command ended with an error status")
)

// Node is a node of the cluster.
type Node struct {
	Name string
	// Internal addresses; the first is the primary one. External ones are public.
	Internal []netip.Addr
	External []netip.Addr
	// Unrouted: pods of other nodes cannot be reached from the node's pods, as with the
	// backend podcidr, which makes no routes between nodes.
	Unrouted bool
	// Unenforced says why no network policies are enforced on the node; empty if they are.
	Unenforced string
	// FreePods is how many more pods the node can run, and FreeBranches how many of them with
	// security groups of their own.
	FreePods, FreeBranches int
	// EnforcesGroups: the node enforces the security groups of its pods, which need no branches.
	EnforcesGroups bool
}

// has reports whether a is one of the node's addresses.
func (n Node) has(a netip.Addr) bool {
	return slices.Contains(n.Internal, a) || slices.Contains(n.External, a)
}

// ENI is an interface of a node.
type ENI struct {
	ID     string
	Device int // index on the instance; 0 is the primary
	// Primary is the interface's own address. The kernel masquerades to it what leaves
	// through the interface.
	Primary netip.Addr
	Pods    []netip.Addr // addresses for pods
}

// Service holds the addresses that the API server assigned to a Service.
type Service struct {
	Address  netip.Addr
	NodePort int // of its HTTP port; 0 is none
	// LoadBalancer is the address of its load balancer; zero is none.
	LoadBalancer netip.Addr
}

// Setup is a set of objects to create.
type Setup struct {
	Pods     []PodSpec
	Services []ServiceSpec
	Policies []*networkingv1.NetworkPolicy // created first
}

// PodSpec is one pod to create.
type PodSpec struct {
	Name     string
	Node     string
	Host     bool // on the host's network
	HostPort int  // of its HTTP port; 0 is none
	// Group is the id of the pod's own security group; empty: the pod has those of its node. Such a
	// pod has no probe, because its group may not admit its node.
	Group string
	// ByNode: its node enforces Group, and the pod requests no branch.
	ByNode bool
	// Stream, if set, makes the pod hold a long-lived stream open instead of serving;
	// it holds the arguments of dial.
	Stream []string
}

// ServiceSpec is one Service to create, with the ports of serve.
type ServiceSpec struct {
	Name     string
	Pods     []string // its backends, by name
	Headless bool
	NodePort bool
	Local    bool // externalTrafficPolicy: Local
	// LoadBalancer is an address that its status gets; zero is none.
	LoadBalancer netip.Addr
}

// Output is the output of a command in a pod.
type Output struct{ Stdout, Stderr string }
