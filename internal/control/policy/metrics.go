package policy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	enforcement prometheus.Histogram
	received    time.Time // of the first change that is not in force yet; zero: all are
	commit      prometheus.Histogram
	operations  prometheus.Counter
	reattached  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		enforcement: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trunkline_policy_enforcement_seconds", Help: "Time from when the agent receives a change of policies, namespaces or pods of the API server until what it means for the node's pods is in force.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .25, 1, 5, 30},
		}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trunkline_policy_commit_seconds", Help: "Time to compile a change of policies, pods or endpoints and to write it to the kernel.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}),
		operations: prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_policy_writes_total", Help: "Entries of the kernel's policy maps that were written or deleted."}),
		reattached: prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_policy_reattached_total", Help: "Links on which policy programs were missing and were attached again."}),
	}
	r.MustRegister(m.enforcement, m.commit, m.operations, m.reattached)
	return m
}

// taken notes changes that are to be put in force, and when the first of them was received; zero if
// none was.
func (m *metrics) taken(received time.Time) {
	if m.received.IsZero() {
		m.received = received
	}
}

// inForce notes that all changes are in force.
func (m *metrics) inForce() {
	if !m.received.IsZero() {
		m.enforcement.Observe(time.Since(m.received).Seconds())
	}
	m.received = time.Time{}
}
