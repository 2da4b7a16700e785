// Package guard keeps the agent from working beside AWS's daemon: both assign addresses of
// the same interfaces, and neither learns which the other has assigned. While the API server,
// or its snapshot on disk, has a pod of aws-node on the node that has not ended, nothing is
// changed at EC2, and every ADD is refused. Manifests keep the daemons apart
// (deploy/overlays/eks-migration); this is for those that do not.
//
// It reads no table and writes none. It drives no edge, and reads the node's pods by edge/kube.
// app/agent constructs it and has the other controllers ask it.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// reason is that of the event, and of the condition CNIConfigured, while a pod of AWS's daemon
// is on the node.
const reason = "AWSDaemonOnNode"

// Cluster is what the guard reads of Kubernetes; *kube.Cluster is one.
type Cluster interface {
	Synced() bool
	Pods() []kube.Pod
	Node() (kube.Node, bool)
	Freeze() (trunkline.Freeze, string)
}

// Events creates Kubernetes events; *kube.Events is one.
type Events interface {
	NodeWarning(reason, message string)
}

// Deps is what a guard works with.
type Deps struct {
	Cluster Cluster
	Events  Events
	// Changed is called when the pod of AWS's daemon has come or gone.
	Changed func()
	Log     *slog.Logger
}

// Guard is a cni.Component; an ADD costs one atomic load. Its methods may be called from any
// goroutine.
type Guard struct {
	Deps
	// Loop checks the pods; it is marked when pods change.
	Loop   *loop.Loop
	beside atomic.Pointer[kube.PodRef] // a pod of AWS's daemon; nil: none is on the node
}

// New returns the guard of a node. It knows nothing before Check.
func New(d Deps) *Guard {
	g := &Guard{Deps: d}
	g.Loop = loop.New(func(context.Context, bool) (time.Time, error) { g.Check(); return time.Time{}, nil })
	g.Loop.MinInterval, g.Loop.Every = 20*time.Millisecond, time.Minute
	return g
}

// ofAWSsDaemon reports whether a pod is one of AWS's daemon and has not ended. One that is
// being deleted runs until it is gone.
func ofAWSsDaemon(p kube.Pod) bool { return p.Labels["k8s-app"] == "aws-node" && !p.Done }

// Check reads the pods, and reports each pod of AWS's daemon that has come.
func (g *Guard) Check() {
	pods := g.Cluster.Pods()
	i := slices.IndexFunc(pods, ofAWSsDaemon)
	if i < 0 {
		if g.beside.Swap(nil) != nil {
			g.Log.Info("the pod of AWS's daemon is gone: the agent serves the node")
			g.Changed()
		}
		return
	}
	if before := g.beside.Swap(&pods[i].PodRef); before == nil || *before != pods[i].PodRef {
		g.Log.Warn("frozen", "why", g.why())
		g.Events.NodeWarning(reason, g.why())
		g.Changed()
	}
}

// Beside reports whether a pod of AWS's daemon is on the node.
func (g *Guard) Beside() bool { return g.beside.Load() != nil }

// MayBeBeside reports whether AWS's daemon runs on the node, or may: while the API server has
// not answered, that is not known.
func (g *Guard) MayBeBeside() bool { return !g.Cluster.Synced() || g.Beside() }

// why is what the guard prevents, and what to do; empty if no pod of AWS's daemon is there.
func (g *Guard) why() string {
	pod := g.beside.Load()
	if pod == nil {
		return ""
	}
	return fmt.Sprintf("pod %s of AWS's CNI is on the node: both would assign the same addresses, so Trunkline changes nothing at EC2 and wires no pod until it is gone. Move the node by its label trunkline.dev/cni (docs/migrate.md)", pod)
}

// Problems are those for the node's status: one while a pod of AWS's daemon is there.
func (g *Guard) Problems() []cniconf.Problem {
	if why := g.why(); why != "" {
		return []cniconf.Problem{{Reason: reason, Message: why}}
	}
	return nil
}

// Freeze returns the strictest brake: the cluster's, or the guard's. A node of which nothing
// is known yet, neither from the API server nor from a snapshot, may have the pod.
func (g *Guard) Freeze() (trunkline.Freeze, string) {
	if why := g.why(); why != "" {
		return trunkline.FreezeAll, why
	}
	if _, known := g.Cluster.Node(); !known && !g.Cluster.Synced() {
		return trunkline.FreezeAll, "the API server has not shown the node's pods yet"
	}
	return g.Cluster.Freeze()
}

// Admit implements cni.Component.
func (g *Guard) Admit(context.Context, kube.Pod) error {
	if why := g.why(); why != "" {
		return errors.New(why)
	}
	return nil
}

// Ready implements cni.Component: the guard has no rules in the kernel.
func (g *Guard) Ready(context.Context, endpoint.Endpoint) error { return nil }
