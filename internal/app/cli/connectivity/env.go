package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Cluster is what the test needs of a cluster; app/cli implements it by the API
// server, tests by a model of a network.
type Cluster interface {
	// Nodes are the schedulable, Ready nodes by name.
	Nodes(ctx context.Context) ([]Node, error)
	// Claim makes the namespace for this run, after removing what an earlier one left
	// there; say hears of what takes long. It reports whether something there is this
	// run's to remove, also when it returns an error. Another run that goes on is
	// ErrBusy, and is not disturbed. Hold shows other runs that this one goes on, until
	// ctx ends; it returns ErrTaken as soon as the namespace is not this run's any more.
	Claim(ctx context.Context, namespace string, say func(string)) (mine bool, err error)
	Hold(ctx context.Context, namespace string) error
	// Create makes what is in s and returns once every pod is Ready, with the
	// pods' addresses. Remove removes the claimed namespace and waits for it to go.
	Create(ctx context.Context, namespace string, s Setup) (map[string]netip.Addr, error)
	Remove(ctx context.Context, namespace string) error
	// Service returns the cluster address and node port of a Service. The
	// namespace "default" has "kubernetes".
	Service(ctx context.Context, namespace, name string) (Service, error)
	// Exec runs a command in a pod's first container. A status other than 0 is
	// an error that wraps ErrExit, with the output.
	Exec(ctx context.Context, namespace, pod string, argv []string) (Output, error)
	// Logs returns a pod's log, or the last lines of it (0: all).
	Logs(ctx context.Context, namespace, pod string, lines int64) (string, error)
	// Pods are those of the test's namespace.
	Pods(ctx context.Context, namespace string) ([]corev1.Pod, error)
	// Interfaces returns the ENI of each pod address on a node. The error is the
	// reason why that cannot be known.
	Interfaces(ctx context.Context, node string) (map[netip.Addr]ENI, error)
	// Health returns what is wrong with Trunkline's own parts; empty is healthy.
	// The error is the reason why that cannot be known.
	Health(ctx context.Context) ([]string, error)
	// ErrorLines returns lines that should not be in the logs of Trunkline's
	// pods, since a time, each with its pod.
	ErrorLines(ctx context.Context, since time.Time) ([]string, error)
}

// Sentinels of Cluster.
var (
	// ErrBusy: another run is not over.
	ErrBusy = errors.New("another connectivity test is running")
	// ErrTaken: the run has lost its namespace.
	ErrTaken = errors.New("this run cannot go on")
)

// Node is a node of the cluster.
type Node struct {
	Name string
	// Internal addresses; the first is the primary one. External are public.
	Internal []netip.Addr
	External []netip.Addr
	// Room is how many more pods the node takes.
	Room int
}

// has reports whether a is one of the node's addresses.
func (n Node) has(a netip.Addr) bool {
	return slices.Contains(n.Internal, a) || slices.Contains(n.External, a)
}

// ENI is the interface an address is on.
type ENI struct {
	ID     string
	Device int // index on the instance; 0 is the primary
}

// Service is a Service as the API server made it.
type Service struct {
	Address  netip.Addr
	NodePort int // of its HTTP port; 0 where it has none
}

// Setup is what is put into the cluster.
type Setup struct {
	Pods     []PodSpec
	Services []ServiceSpec
}

// PodSpec is one pod to run.
type PodSpec struct {
	Name     string
	Node     string
	Host     bool // on the host's network
	HostPort int  // of its HTTP port; 0 is none
	// Stream, when set, is a long-lived stream the pod keeps open instead of
	// serving: the arguments of dial.
	Stream []string
}

// ServiceSpec is one Service to make, with the ports of serve.
type ServiceSpec struct {
	Name     string
	Pods     []string // that back it, by name
	Headless bool
	NodePort bool
	Local    bool // externalTrafficPolicy: Local
}

// Peer is one end of a path.
type Peer struct {
	Pod  string
	Addr netip.Addr
	Node Node
	ENI  ENI // the zero value where not known
	Host bool
	ports
}

func (p Peer) String() string {
	s := fmt.Sprintf("%s (%s on %s", p.Pod, p.Addr, p.Node.Name)
	if p.ENI.ID != "" {
		s += ", " + p.ENI.ID
	}
	return s + ")"
}

// Env is the prepared world a case runs in.
type Env struct {
	Cluster Cluster
	Options Options
	Nodes   []Node // those used: one or two

	// Client and Server are pods on each used node, Host pods on its network.
	Client, Server, Host []Peer
	// SameENI and OtherENI are two pods on the first node whose addresses are on
	// one ENI, and on two. FarENI is a pair on secondary ENIs of two nodes.
	SameENI, OtherENI, FarENI *[2]Peer
	// Services by the name of the pod behind them.
	Services map[string]Service
	NodePort map[string]Service // "cluster" and "local"; both in front of Server[0]
	// PluginConfig is the CNI configuration of the first node; empty when it
	// could not be read.
	PluginConfig string

	// headless is the Service in front of every server, by the name of this run.
	headless string
	// lacking holds why a need is not met.
	lacking map[Need]string
}

// Need is something a case needs of the cluster.
type Need string

// Needs. Each has a reason when it is missing.
const (
	TwoNodes    Need = "two nodes"
	SameENI     Need = "two pods on one ENI"
	OtherENI    Need = "two pods on two ENIs of a node"
	FarENI      Need = "pods on secondary ENIs of two nodes"
	OutsideHost Need = "a host outside the VPC"
	Larger      Need = "packets larger than the internet's"
	Portmap     Need = "the portmap plugin"
	Metadata    Need = "instance metadata"
	Trunkline   Need = "Trunkline"
)

// lack records why a need is not met.
func (e *Env) lack(n Need, format string, args ...any) {
	if e.lacking == nil {
		e.lacking = map[Need]string{}
	}
	e.lacking[n] = fmt.Sprintf(format, args...)
}

// missing returns the reason for the first of needs that is not met.
func (e *Env) missing(needs []Need) (string, bool) {
	for _, n := range needs {
		if why, ok := e.lacking[n]; ok {
			return why, true
		}
	}
	return "", false
}

// far is the index of the other node: 1, or 0 where there is but one.
func (e *Env) far() int { return len(e.Nodes) - 1 }

// lookAt are the commands that show a path between two peers.
func lookAt(from, to Peer) []string {
	look := []string{fmt.Sprintf("on %s: ip route get %s from %s iif any; ip rule; nft list table inet trunkline (counters)", from.Node.Name, to.Addr, from.Addr)}
	for _, p := range []Peer{from, to} {
		if !p.Host {
			look = append(look, fmt.Sprintf("trunkline show addresses --node %s --why | grep %s", p.Node.Name, p.Addr))
		}
	}
	return look
}
