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

// waiting are pods that need a branch, since when.
type waiting map[core.PodUID]time.Time

// add records a pod that has no branch in s.
func (w waiting) add(uid core.PodUID, s core.State, now time.Time) {
	if b, has := s.Of(uid); has && b.Stage == core.Bound {
		return
	}
	if _, known := w[uid]; !known {
		w[uid] = now
	}
}

// end counts how long a pod has waited for its branch.
func (w waiting) end(uid core.PodUID, m metrics, now time.Time) {
	if since, known := w[uid]; known {
		m.bound.Observe(now.Sub(since).Seconds())
		delete(w, uid)
	}
}
