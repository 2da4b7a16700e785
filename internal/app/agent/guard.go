package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// reasonAWSDaemon is the reason of the event, and of the condition CNIConfigured, while a pod
// of AWS's daemon is on the node.
const reasonAWSDaemon = "AWSDaemonOnNode"

// guard is the cluster of a node on which AWS's daemon may run as well: both daemons assign
// addresses of the same interfaces, and neither learns which the other has assigned. While
// the API server, or its snapshot on disk, has a pod of aws-node on the node that has not
// ended, nothing is changed at EC2, and every ADD is refused. Manifests keep the daemons
// apart (deploy/overlays/eks-migration); this is for those that do not.
//
// It is a cni.Component. An ADD costs one atomic load.
type guard struct {
	Cluster
	// Loop checks the pods; it is marked when pods change.
	Loop   *loop.Loop
	events Events
	// changed is called when the pod has come or gone.
	changed func()
	beside  atomic.Pointer[kube.PodRef] // a pod of AWS's daemon; nil: none is on the node
}

// newGuard returns the guard of a cluster.
func newGuard(c Cluster, e Events, changed func()) *guard {
	g := &guard{Cluster: c, events: e, changed: changed}
	g.Loop = loop.New(func(context.Context, bool) (time.Time, error) { g.check(); return time.Time{}, nil })
	g.Loop.MinInterval, g.Loop.Every = 20*time.Millisecond, time.Minute
	return g
}

// ofAWSsDaemon reports whether a pod is one of AWS's daemon and has not ended. One that is
// being deleted runs until it is gone.
func ofAWSsDaemon(p kube.Pod) bool { return p.Labels["k8s-app"] == "aws-node" && !p.Done }

// check reads the pods, and reports each pod of AWS's daemon that has come.
func (g *guard) check() {
	pods := g.Pods()
	i := slices.IndexFunc(pods, ofAWSsDaemon)
	if i < 0 {
		if g.beside.Swap(nil) != nil {
			g.changed()
		}
		return
	}
	if before := g.beside.Swap(&pods[i].PodRef); before == nil || *before != pods[i].PodRef {
		g.events.NodeWarning(reasonAWSDaemon, g.why())
		g.changed()
	}
}

// why is what the guard prevents, and what to do; empty if no pod of AWS's daemon is there.
func (g *guard) why() string {
	pod := g.beside.Load()
	if pod == nil {
		return ""
	}
	return fmt.Sprintf("pod %s of AWS's CNI is on the node: both would assign the same addresses, so Trunkline changes nothing at EC2 and wires no pod until it is gone. Move the node by its label trunkline.dev/cni (docs/migrate.md)", pod)
}

// Freeze implements Cluster: the strictest brake, with the guard's. A node of which nothing
// is known yet, neither from the API server nor from a snapshot, may have the pod.
func (g *guard) Freeze() (trunkline.Freeze, string) {
	if why := g.why(); why != "" {
		return trunkline.FreezeAll, why
	}
	if _, known := g.Node(); !known && !g.Synced() {
		return trunkline.FreezeAll, "the API server has not shown the node's pods yet"
	}
	return g.Cluster.Freeze()
}

// Admit implements cni.Component.
func (g *guard) Admit(context.Context, kube.Pod) error {
	if why := g.why(); why != "" {
		return errors.New(why)
	}
	return nil
}

// Ready implements cni.Component: the guard has no rules in the kernel.
func (g *guard) Ready(context.Context, endpoint.Endpoint) error { return nil }

// problems are those of the conflist, after the guard's.
func (a *agent) problems() []cniconf.Problem {
	problems := a.conflist.Problems()
	if why := a.guard.why(); why != "" {
		problems = slices.Insert(problems, 0, cniconf.Problem{Reason: reasonAWSDaemon, Message: why})
	}
	return problems
}

// awsDaemonMayRun reports whether AWS's daemon runs on the node, or may: while the API server
// has not answered, that is not known.
func (a *agent) awsDaemonMayRun() bool {
	return !a.cluster.Synced() || a.guard.why() != ""
}

// guardChanged has the backend plan and the status written by what the guard now says.
func (a *agent) guardChanged() {
	if why := a.guard.why(); why != "" {
		a.log.Warn("frozen", "why", why)
	} else {
		a.log.Info("the pod of AWS's daemon is gone: the agent serves the node")
	}
	if plan := a.planned.Load(); plan != nil {
		plan.Mark()
	}
	a.reporter.Loop.Mark()
}

// keepConflist compares the conflist with its desired content. Beside AWS's daemon, a node
// without pods of ours is left to it. With such pods it is not: AWS's daemon does not know
// their addresses and would give them to other pods.
func (a *agent) keepConflist(ctx context.Context) error {
	if a.guard.why() != "" && len(a.state.Endpoints()) == 0 {
		return nil
	}
	return a.conflist.Write(ctx)
}

// conflistEvery is how often the conflist is compared with its desired content. That
// needs no answer from the API server.
const conflistEvery = 5 * time.Second
