package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// metrics of the pool.
type metrics struct {
	actions      *prometheus.CounterVec
	observations prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *state.Store) metrics {
	m := metrics{
		actions:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "trunkline_pool_actions_total", Help: "Actions of the plan that ended."}, []string{"result"}),
		observations: prometheus.NewCounter(prometheus.CounterOpts{Name: "trunkline_pool_looks_total", Help: "Comparisons of the node's record with EC2."}),
	}
	r.MustRegister(m.actions, m.observations, ledgerMetrics{s})
	for _, g := range gauges() {
		read := func() float64 { return g.value(s.Pool().Decision.Numbers) }
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
		{"trunkline_pool_quarantined_addresses", "Addresses of removed pods with a link that may still exist.", func(n ipam.Numbers) float64 { return float64(n.Quarantined) }},
		{"trunkline_pool_free_addresses", "Addresses that can be assigned to a pod now.", func(n ipam.Numbers) float64 { return float64(n.Free) }},
		{"trunkline_pool_unmet_demand", "Pods that neither the pool nor the plan serves.", func(n ipam.Numbers) float64 { return float64(n.Unmet) }},
	}
}

// ledgerMetrics reads the ledger when it is collected. Labels are bounded: a node has a few
// interfaces, and kinds of actions are those of ipam.
type ledgerMetrics struct{ state *state.Store }

func (ledgerMetrics) perENI() *prometheus.Desc {
	return prometheus.NewDesc("trunkline_eni_assigned_addresses", "Addresses pods have, by interface.", []string{"eni"}, nil)
}

func (ledgerMetrics) prefixes() *prometheus.Desc {
	return prometheus.NewDesc("trunkline_pool_prefixes", "Prefixes on the node's interfaces.", nil, nil)
}

func (ledgerMetrics) inFlight() *prometheus.Desc {
	return prometheus.NewDesc("trunkline_pool_actions_in_flight", "Actions of the plan under way, by kind.", []string{"kind"}, nil)
}

// Describe implements prometheus.Collector.
func (l ledgerMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- l.perENI()
	to <- l.prefixes()
	to <- l.inFlight()
}

// Collect implements prometheus.Collector.
func (l ledgerMetrics) Collect(to chan<- prometheus.Metric) {
	view, _ := l.state.View(time.Now())
	prefixes := 0
	for _, e := range view.ENIs {
		prefixes += len(e.Prefixes)
		if !e.Unmanaged {
			to <- prometheus.MustNewConstMetric(l.perENI(), prometheus.GaugeValue, float64(e.Count(ipam.Assigned)), string(e.ID))
		}
	}
	to <- prometheus.MustNewConstMetric(l.prefixes(), prometheus.GaugeValue, float64(prefixes))
	kinds := map[cloud.Kind]int{
		cloud.CreateENI: 0, cloud.Attach: 0, cloud.SetUp: 0, cloud.AssignAddresses: 0, cloud.RestoreAddresses: 0,
		cloud.UnassignAddresses: 0, cloud.Detach: 0, cloud.DeleteENI: 0,
	}
	for _, action := range view.InFlight {
		kinds[action.Kind]++
	}
	for kind, n := range kinds {
		to <- prometheus.MustNewConstMetric(l.inFlight(), prometheus.GaugeValue, float64(n), string(kind))
	}
}
