package trunk

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	core "github.com/trunkline/trunkline/internal/core/trunk"
)

type metrics struct{ bound prometheus.Histogram }

// register makes the metrics. AWS's controller has no histogram.
func (m *metrics) register(r prometheus.Registerer, c *Controller) error {
	m.bound = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "trunkline_trunk_bound_seconds", Help: "Time from when the controller finds that a pod on a node needs a branch until the pod's annotation names it.",
		Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	})
	if r == nil {
		return nil
	}
	for _, of := range []prometheus.Collector{m.bound, newCounts(c)} {
		if err := r.Register(of); err != nil {
			return fmt.Errorf("register the metrics of branches: %w", err)
		}
	}
	return nil
}

// counts are the gauges of branches and of pods that wait for one, counted at a scrape over all nodes.
type counts struct {
	c                 *Controller
	branches, waiting *prometheus.Desc
}

func newCounts(c *Controller) counts {
	return counts{
		c:        c,
		branches: prometheus.NewDesc("trunkline_trunk_branches", "Branch interfaces that the controller owns on all nodes, by state; unowned are those at EC2 that no record has.", []string{"state"}, nil),
		waiting:  prometheus.NewDesc("trunkline_trunk_pods_waiting", "Pods that need a branch interface and for which none is being made yet.", nil, nil),
	}
}

// Describe sends the descriptions of the gauges.
func (m counts) Describe(out chan<- *prometheus.Desc) { out <- m.branches; out <- m.waiting }

// Collect sends the gauges.
func (m counts) Collect(out chan<- prometheus.Metric) {
	v, _, _ := m.c.views()
	n := v.numbers
	for state, count := range map[string]int{
		"bound": n.Bound, "reserved": n.Reserved, "warm": n.Warm, "cooling": n.Cooling, "incoming": n.Incoming, "leaving": n.Leaving, "unowned": n.Unowned,
	} {
		out <- prometheus.MustNewConstMetric(m.branches, prometheus.GaugeValue, float64(count), state)
	}
	out <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(n.Unserved))
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
