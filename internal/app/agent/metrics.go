package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// metrics of the agent. Labels are bounded: verbs, steps, loops and places are
// named in this package, codes are those of CNI and ours.
type metrics struct {
	drift      *prometheus.CounterVec
	loopErrors *prometheus.CounterVec
	actions    *prometheus.CounterVec
	kernelPass prometheus.Histogram
	looks      prometheus.Counter
	started    *prometheus.HistogramVec
}

// buckets from half a millisecond, a step, to a minute and a half, an ADD that
// waited for EC2; in seconds.
func buckets() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 90}
}

func newMetrics(r prometheus.Registerer, a *Agent) *metrics {
	m := &metrics{
		drift:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_drift_total", Help: "Things that were not as they should be."}, []string{"where"}),
		loopErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_loop_errors_total", Help: "Passes of a loop that failed."}, []string{"loop"}),
		actions:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_pool_actions_total", Help: "Actions of the plan that ended."}, []string{"result"}),
		kernelPass: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "trunkline_kernel_pass_seconds", Help: "Time to compare and repair links, routes, rules and nftables.", Buckets: buckets()}),
		looks:      prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_pool_looks_total", Help: "Comparisons of the node's record with EC2."}),
		started:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "trunkline_start_seconds", Help: "Time from the agent's start until the kernel and EC2 agree with its record (settled), and until it serves.", Buckets: buckets()}, []string{"until"}),
	}
	r.MustRegister(m.drift, m.loopErrors, m.actions, m.kernelPass, m.looks, m.started, bookMetrics{a})
	for _, g := range gauges() {
		read := func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return g.value(a.decision.Numbers)
		}
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, read))
	}
	return m
}

// gauge is a number of the plan.
type gauge struct {
	name, help string
	value      func(ipam.Numbers) float64
}

func gauges() []gauge {
	return []gauge{
		{"trunkline_pool_enis", "Interfaces of the node.", func(n ipam.Numbers) float64 { return float64(n.ENIs) }},
		{"trunkline_pool_enis_limit", "Interfaces the node can have.", func(n ipam.Numbers) float64 { return float64(n.MaxENIs) }},
		{"trunkline_pool_addresses_limit", "Pod addresses the node can have.", func(n ipam.Numbers) float64 { return float64(n.Capacity) }},
		{"trunkline_pool_addresses", "Pod addresses the node has or is getting.", func(n ipam.Numbers) float64 { return float64(n.Have) }},
		{"trunkline_pool_assigned_addresses", "Addresses pods have.", func(n ipam.Numbers) float64 { return float64(n.Assigned) }},
		{"trunkline_pool_cooling_addresses", "Addresses waiting out their cool-down.", func(n ipam.Numbers) float64 { return float64(n.Cooling) }},
		{"trunkline_pool_quarantined_addresses", "Addresses whose pod's link may still be there.", func(n ipam.Numbers) float64 { return float64(n.Quarantined) }},
		{"trunkline_pool_free_addresses", "Addresses that can be given to a pod now.", func(n ipam.Numbers) float64 { return float64(n.Free) }},
		{"trunkline_pool_unmet_demand", "Pods that neither the pool nor the plan serves.", func(n ipam.Numbers) float64 { return float64(n.Unmet) }},
	}
}

// bookMetrics reads the book when it is asked. Labels are bounded: a node has a few
// interfaces, and kinds of actions are those of ipam.
type bookMetrics struct{ a *Agent }

func (bookMetrics) perENI() *prometheus.Desc {
	return prometheus.NewDesc("trunkline_eni_assigned_addresses", "Addresses pods have, by interface.", []string{"eni"}, nil)
}

func (bookMetrics) prefixes() *prometheus.Desc {
	return prometheus.NewDesc("trunkline_pool_prefixes", "Prefixes on the node's interfaces.", nil, nil)
}

func (bookMetrics) inFlight() *prometheus.Desc {
	return prometheus.NewDesc("trunkline_pool_actions_in_flight", "Actions of the plan under way, by kind.", []string{"kind"}, nil)
}

// Describe implements prometheus.Collector.
func (b bookMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- b.perENI()
	to <- b.prefixes()
	to <- b.inFlight()
}

// Collect implements prometheus.Collector.
func (b bookMetrics) Collect(to chan<- prometheus.Metric) {
	view, _ := b.a.state.View(time.Now())
	prefixes := 0
	for _, e := range view.ENIs {
		prefixes += len(e.Prefixes)
		if !e.Unmanaged {
			to <- prometheus.MustNewConstMetric(b.perENI(), prometheus.GaugeValue, float64(e.Count(ipam.Assigned)), string(e.ID))
		}
	}
	to <- prometheus.MustNewConstMetric(b.prefixes(), prometheus.GaugeValue, float64(prefixes))
	kinds := map[cloud.Kind]int{
		cloud.CreateENI: 0, cloud.Attach: 0, cloud.SetUp: 0, cloud.AssignAddresses: 0, cloud.RestoreAddresses: 0,
		cloud.UnassignAddresses: 0, cloud.Detach: 0, cloud.DeleteENI: 0,
	}
	for _, action := range view.InFlight {
		kinds[action.Kind]++
	}
	for kind, n := range kinds {
		to <- prometheus.MustNewConstMetric(b.inFlight(), prometheus.GaugeValue, float64(n), string(kind))
	}
}
