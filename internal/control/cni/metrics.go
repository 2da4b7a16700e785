package cni

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of calls. Labels are bounded: commands and steps are named in this package,
// codes are those of CNI and ours.
type metrics struct {
	calls   *prometheus.HistogramVec
	phases  *prometheus.HistogramVec
	results *prometheus.CounterVec
	waited  prometheus.Counter
	spooled prometheus.Counter
	stale   prometheus.Counter
}

// buckets from half a millisecond, a step, to a minute and a half, an ADD that
// waited for EC2; in seconds.
func buckets() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 90}
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		calls:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "trunkline_cni_call_seconds", Help: "Time to answer a call of the plugin, waiting included.", Buckets: buckets()}, []string{"command"}),
		phases:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "trunkline_cni_phase_seconds", Help: "Time of one step of an ADD or DEL.", Buckets: buckets()}, []string{"command", "phase"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_cni_results_total", Help: "Answers to the plugin, by CNI error code (0: success)."}, []string{"command", "code"}),
		waited:  prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_pool_empty_total", Help: "Times an ADD found no free address."}),
		spooled: prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_cni_spooled_dels_total", Help: "DELs that plugins spooled while no agent answered."}),
	}
	m.stale = prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_cni_stale_endpoints_total", Help: "Endpoints removed without a DEL, because their pods were gone."})
	r.MustRegister(m.calls, m.phases, m.results, m.waited, m.spooled, m.stale)
	return m
}

// call counts one call of the plugin.
func (m metrics) call(command string, err error, took time.Duration) {
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
