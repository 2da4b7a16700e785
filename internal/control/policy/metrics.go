package policy

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	commit     prometheus.Histogram
	operations prometheus.Counter
	reattached prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trunkline_policy_commit_seconds", Help: "Time to compile a change of policies, pods or endpoints and to write it to the kernel.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}),
		operations: prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_policy_writes_total", Help: "Entries of the kernel's policy maps that were written or deleted."}),
		reattached: prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_policy_reattached_total", Help: "Links on which policy programs were missing and were attached again."}),
	}
	r.MustRegister(m.commit, m.operations, m.reattached)
	return m
}
