package policy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/edge/bpf"
)

type metrics struct {
	enforcement prometheus.Histogram
	fromAPI     prometheus.Histogram
	received    time.Time // of the first change that is not in force yet; zero: all are
	written     time.Time // the oldest of these changes, in the API; zero: not known of any
	commit      prometheus.Histogram
	operations  prometheus.Counter
	reattached  prometheus.Counter
	connections prometheus.Gauge
	size        prometheus.Gauge // of the table of connections
	dropped     *prometheus.CounterVec
	drops       map[bpf.Reason]uint64 // as they were read last
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
	m.connections = prometheus.NewGauge(prometheus.GaugeOpts{Name: "trunkline_policy_connections", Help: "Valid entries of the table of connections of isolated pods, a minute ago at most; 0 while no policies are enforced."})
	m.size = prometheus.NewGauge(prometheus.GaugeOpts{Name: "trunkline_policy_connections_max", Help: "Size of the table of connections in entries; 0 while no policies are enforced."})
	m.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_policy_dropped_packets_total", Help: "Packets that the policy programs have dropped, by the reason."}, []string{"reason"})
	m.drops = map[bpf.Reason]uint64{}
	m.fromAPI = newFromAPI()
	r.MustRegister(m.fromAPI, m.enforcement, m.commit, m.operations, m.reattached, m.connections, m.size, m.dropped)
	return m
}

// newFromAPI is like the network programming latency of Kubernetes' SLIs
// (sig-scalability/slos/network_programming_latency.md of kubernetes/community): it ends when the
// node has the change and begins at a time that was stamped at the API server; of changes that are put in force
// together the oldest counts; deletions and what was changed before the node began to watch do not, as in
// kube-proxy (EndpointsChangeTracker in pkg/proxy/endpointschangetracker.go). The API has times in whole seconds
// (metav1.Time is encoded as RFC 3339), so a value is too long by up to a second, and no bucket is
// smaller than one.
func newFromAPI() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "trunkline_policy_enforcement_from_api_seconds",
		Help: "Time from when the API server wrote a NetworkPolicy (creationTimestamp or managedFields) until the change is in force on the node, of changes seen by watch, without deletions. " +
			"The API has whole seconds: values are up to 1 s too long. It compares the clocks of two machines, and their difference is part of each value; negative values count as 0.",
		Buckets: []float64{1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600},
	})
}

// taken notes changes that are to be put in force, and when the first of them was received; zero if
// none was. It also notes when the oldest of them was written in the API; zero if that is not known.
func (m *metrics) taken(received, written time.Time) {
	if m.received.IsZero() {
		m.received = received
	}
	if m.written.IsZero() || !written.IsZero() && written.Before(m.written) {
		m.written = written
	}
}

// inForce notes that all changes are in force.
func (m *metrics) inForce() {
	if !m.received.IsZero() {
		m.enforcement.Observe(time.Since(m.received).Seconds())
	}
	if !m.written.IsZero() {
		m.fromAPI.Observe(max(0, time.Since(m.written).Seconds()))
	}
	m.forget()
}

// forget notes that no change waits to be put in force: the cluster has no policies.
func (m *metrics) forget() { m.received, m.written = time.Time{}, time.Time{} }

// count adds the packets that were dropped since the last call. The programs count from the creation
// of their maps on.
func (m *metrics) count(drops map[bpf.Reason]uint64) {
	for reason, packets := range drops {
		before := m.drops[reason]
		if packets < before { // other maps
			before = 0
		}
		m.dropped.WithLabelValues(reason.String()).Add(float64(packets - before))
	}
	m.drops = drops
}
