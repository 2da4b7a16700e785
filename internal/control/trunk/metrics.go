package trunk

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	core "github.com/trunkline/trunkline/internal/core/trunk"
)

type metrics struct{ bound prometheus.Histogram }

// register makes the metrics. AWS's controller has no histogram.
func (m *metrics) register(r prometheus.Registerer) error {
	m.bound = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "trunkline_trunk_bound_seconds", Help: "Time from when the controller finds that a pod on a node needs a branch until the pod's annotation names it.",
		Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	})
	if r == nil {
		return nil
	}
	if err := r.Register(m.bound); err != nil {
		return fmt.Errorf("register the metrics of branches: %w", err)
	}
	return nil
}

// waits records that a pod needs a branch, since when.
func (n *node) waits(uid core.PodUID, now time.Time) {
	if b, has := n.rec.state.Of(uid); has && b.Stage == core.Bound {
		return
	}
	if _, known := n.matched[uid]; !known {
		n.matched[uid] = now
	}
}

// boundNow counts how long a pod has waited for its branch.
func (n *node) boundNow(uid core.PodUID, now time.Time) {
	if since, known := n.matched[uid]; known {
		n.c.metrics.bound.Observe(now.Sub(since).Seconds())
		delete(n.matched, uid)
	}
}
