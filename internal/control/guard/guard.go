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
	PodsKnown() bool
	Pods() []kube.Pod
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
	// Changed is called when the pod of AWS's daemon has come or gone, and when the pods
	// of the node became known.
	Changed func()
	Log     *slog.Logger
}

// Guard is a cni.Component; an ADD costs one atomic load. Its methods may be called from any
// goroutine.
type Guard struct {
	Deps
	// Loop checks the pods; it is marked when pods change.
	Loop *loop.Loop
	// reported is the pod of AWS's daemon at the last Check, nil without one. It is for ADDs; the
	// other methods read the pods, which may have changed since.
	reported atomic.Pointer[kube.PodRef]
	known    atomic.Bool // the pods, at the last Check
}

// New returns the guard of a node. It knows no pod of AWS's daemon before Check.
func New(d Deps) *Guard {
	g := &Guard{Deps: d}
	g.known.Store(d.Cluster.PodsKnown())
	g.Loop = loop.New(func(context.Context, bool) (time.Time, error) { g.Check(); return time.Time{}, nil })
	g.Loop.MinInterval, g.Loop.Every = 20*time.Millisecond, time.Minute
	return g
}

// ofAWSsDaemon reports whether a pod is one of AWS's daemon and has not ended. One that is
// being deleted runs until it is gone. Any user can give a pod the label, but not make one on the
// host's network. AWS's chart can be installed in any namespace.
func ofAWSsDaemon(p kube.Pod) bool {
	return p.HostNetwork && p.Labels["k8s-app"] == "aws-node" && !p.Done
}

// beside returns the pod of AWS's daemon, nil if none is on the node.
func (g *Guard) beside() *kube.PodRef {
	pods := g.Cluster.Pods()
	if i := slices.IndexFunc(pods, ofAWSsDaemon); i >= 0 {
		return &pods[i].PodRef
	}
	return nil
}

// Check reads the pods, and reports each pod of AWS's daemon that has come.
func (g *Guard) Check() {
	now := g.beside()
	before := g.reported.Swap(now)
	known := g.Cluster.PodsKnown()
	learned := g.known.Swap(known) != known
	switch {
	case now == nil && before == nil, now != nil && before != nil && *now == *before:
		if !learned {
			return
		}
	case now == nil:
		g.Log.Info("the pod of AWS's daemon is gone: the agent serves the node")
	default:
		g.Log.Warn("frozen", "why", why(now))
		g.Events.NodeWarning(reason, why(now))
	}
	g.Changed()
}

// Beside reports whether a pod of AWS's daemon is known to be on the node.
func (g *Guard) Beside() bool { return g.beside() != nil }

// Refuses is why no pod is wired; empty if pods are.
func (g *Guard) Refuses() string {
	if pod := g.beside(); pod != nil {
		return why(pod)
	}
	return ""
}

// MayBeBeside reports whether AWS's daemon runs on the node, or may: while the API server has
// not answered, that is not known.
func (g *Guard) MayBeBeside() bool { return !g.Cluster.Synced() || g.beside() != nil }

// Yields reports whether the node is AWS's daemon's as far as is known: by the API server, or
// by its snapshot on disk. Without either it may be.
func (g *Guard) Yields() bool { return !g.Cluster.PodsKnown() || g.beside() != nil }

// why is what the guard prevents beside a pod, and what to do.
func why(pod *kube.PodRef) string {
	return fmt.Sprintf("pod %s of AWS's CNI is on the node: both would assign the same addresses, so Trunkline changes nothing at EC2 and wires no pod until it is gone. Move the node by its label trunkline.dev/cni (docs/migrate.md)", pod)
}

// Problems are those for the node's status: one while a pod of AWS's daemon is there.
func (g *Guard) Problems() []cniconf.Problem {
	if pod := g.beside(); pod != nil {
		return []cniconf.Problem{{Reason: reason, Message: why(pod)}}
	}
	return nil
}

// Freeze returns the strictest brake: the cluster's, or the guard's. While nothing is known of
// the node's pods, neither from the API server nor from a snapshot, one of AWS's daemon may be
// among them.
func (g *Guard) Freeze() (trunkline.Freeze, string) {
	if pod := g.beside(); pod != nil {
		return trunkline.FreezeAll, why(pod)
	}
	if !g.Cluster.PodsKnown() {
		return trunkline.FreezeAll, "the API server has not shown the node's pods yet"
	}
	return g.Cluster.Freeze()
}

// Admit implements cni.Component.
func (g *Guard) Admit(context.Context, kube.Pod) error {
	if pod := g.reported.Load(); pod != nil {
		return errors.New(why(pod))
	}
	return nil
}

// Ready implements cni.Component: the guard has no rules in the kernel.
func (g *Guard) Ready(context.Context, endpoint.Endpoint, int) error { return nil }
