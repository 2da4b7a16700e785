package agent

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/ipam"
)

// metrics of the agent. Labels are bounded: verbs, steps, loops and places are
// named in this package, codes are those of CNI and ours.
type metrics struct {
	calls      *prometheus.HistogramVec
	phases     *prometheus.HistogramVec
	results    *prometheus.CounterVec
	waited     prometheus.Counter
	spooled    prometheus.Counter
	drift      *prometheus.CounterVec
	loopErrors *prometheus.CounterVec
	actions    *prometheus.CounterVec
	kernelPass prometheus.Histogram
}

// buckets from half a millisecond, a step, to a minute and a half, an ADD that
// waited for EC2; in seconds.
func buckets() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 90}
}

func newMetrics(r prometheus.Registerer, a *Agent) *metrics {
	m := &metrics{
		calls:      prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "trunkline_cni_call_seconds", Help: "Time to answer a call of the plugin, waiting included.", Buckets: buckets()}, []string{"command"}),
		phases:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "trunkline_cni_phase_seconds", Help: "Time of one step of an ADD or DEL.", Buckets: buckets()}, []string{"command", "phase"}),
		results:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_cni_results_total", Help: "Answers to the plugin, by CNI error code (0: done)."}, []string{"command", "code"}),
		waited:     prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_pool_empty_total", Help: "Times an ADD found no free address."}),
		spooled:    prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_cni_spooled_dels_total", Help: "DELs that were written down while no agent answered."}),
		drift:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_drift_total", Help: "Things that were not as they should be."}, []string{"where"}),
		loopErrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_loop_errors_total", Help: "Passes of a loop that failed."}, []string{"loop"}),
		actions:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_pool_actions_total", Help: "Actions of the plan that ended."}, []string{"result"}),
		kernelPass: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "trunkline_kernel_pass_seconds", Help: "Time to compare and repair links, routes, rules and nftables.", Buckets: buckets()}),
	}
	r.MustRegister(m.calls, m.phases, m.results, m.waited, m.spooled, m.drift, m.loopErrors, m.actions, m.kernelPass)
	for _, g := range gauges() {
		read := func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return g.value(a.decision.Numbers)
		}
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, read))
		if g.aws != "" {
			r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.aws, Help: "As AWS's CNI; see " + g.name + "."}, read))
		}
	}
	return m
}

// gauge is a number of the plan, with AWS's name where AWS has one.
type gauge struct {
	name, aws, help string
	value           func(ipam.Numbers) float64
}

func gauges() []gauge {
	return []gauge{
		{"trunkline_pool_enis", "awscni_eni_allocated", "Interfaces of the node.", func(n ipam.Numbers) float64 { return float64(n.ENIs) }},
		{"trunkline_pool_enis_limit", "awscni_eni_max", "Interfaces the node can have.", func(n ipam.Numbers) float64 { return float64(n.MaxENIs) }},
		{"trunkline_pool_addresses_limit", "awscni_ip_max", "Pod addresses the node can have.", func(n ipam.Numbers) float64 { return float64(n.Capacity) }},
		{"trunkline_pool_addresses", "awscni_total_ip_addresses", "Pod addresses the node has or is getting.", func(n ipam.Numbers) float64 { return float64(n.Have) }},
		{"trunkline_pool_assigned_addresses", "awscni_assigned_ip_addresses", "Addresses pods have.", func(n ipam.Numbers) float64 { return float64(n.Assigned) }},
		{"trunkline_pool_cooling_addresses", "", "Addresses waiting out their cool-down.", func(n ipam.Numbers) float64 { return float64(n.Cooling) }},
		{"trunkline_pool_quarantined_addresses", "", "Addresses whose pod's link may still be there.", func(n ipam.Numbers) float64 { return float64(n.Quarantined) }},
		{"trunkline_pool_free_addresses", "", "Addresses that can be given to a pod now.", func(n ipam.Numbers) float64 { return float64(n.Free) }},
		{"trunkline_pool_unmet_demand", "", "Pods that neither the pool nor the plan serves.", func(n ipam.Numbers) float64 { return float64(n.Unmet) }},
	}
}

// call counts one call of the plugin.
func (m *metrics) call(command string, err error, took time.Duration) {
	switch command {
	case "ADD", "DEL", "CHECK", "STATUS", "GC":
	default:
		command = "other"
	}
	code := "0"
	if err != nil {
		code = strconv.Itoa(int(asError(err).Code))
	}
	m.calls.WithLabelValues(command).Observe(took.Seconds())
	m.results.WithLabelValues(command, code).Inc()
}
