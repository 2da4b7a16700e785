package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// reasonFamily is the reason of a cluster that is not served because of its address family.
const reasonFamily = "IPv6Cluster"

// refusedEvery is how often a refusal is reported again: a report that is older than a few
// minutes counts as one of an agent that is down.
const refusedEvery = 30 * time.Second

// refusedFamily is why the cluster's address family is not served; empty if it is.
func (a *agent) refusedFamily() string {
	node, _ := a.cluster.Node()
	return config.RefuseFamily(a.deps.Service, node.Addresses)
}

// refuse reports why the node is not served, until ctx ends: in the log, in an event, in the
// NodeNetwork and at the readiness probe. It changes nothing on the node. The Node's condition
// NetworkUnavailable is not set, because it would keep pods from a node that another CNI serves; the
// reason of one that an earlier agent wrote is corrected.
func (a *agent) refuse(ctx context.Context, why string) error {
	a.log.Error("the node is not served", "reason", reasonFamily, "why", why)
	a.events.NodeWarning(reasonFamily, why)
	l := loop.New(func(ctx context.Context, _ bool) (time.Time, error) {
		return time.Time{}, errors.Join(a.cluster.Refuse(ctx, why), a.cluster.WriteNetwork(ctx, trunkline.NodeNetworkStatus{
			ObservedAt: metav1.Now(),
			Why:        why,
			Versions:   trunkline.Versions{Agent: a.deps.Version},
			Conditions: []metav1.Condition{{
				Type: trunkline.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonFamily, Message: why, LastTransitionTime: metav1.Now(),
			}},
		}))
	})
	l.Every, l.MaxBackoff = refusedEvery, refusedEvery
	l.Report = func(err error, pause time.Duration) {
		a.log.Warn("the refusal cannot be reported, will be retried", "error", err, "pause", pause)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return report.ServeRefusal(ctx, a.cfg.IntrospectionAddress, a.log, why) })
	group.Go(func() error { return l.Run(ctx) })
	return group.Wait()
}
