package podadmission

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/podadmission"
)

type metrics struct {
	reviews    *prometheus.HistogramVec
	namespaces *prometheus.GaugeVec
	uncompiled prometheus.Gauge
	writes     prometheus.Counter
}

// register makes the metrics. AWS's webhook has none.
func (m *metrics) register(r prometheus.Registerer, c *Controller) error {
	m.reviews = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "trunkline_admission_review_seconds", Help: "Time to answer a request of the webhook, by its outcome.",
		Buckets: []float64{.0001, .001, .01, .1, 1, 5},
	}, []string{"outcome"})
	m.namespaces = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "trunkline_admission_namespaces", Help: "Namespaces with compiled SecurityGroupPolicies, by what decides on their pods.",
	}, []string{"by"})
	m.uncompiled = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "trunkline_admission_uncompiled", Help: "SecurityGroupPolicies that were too large to compile, and namespaces in which none are.",
	})
	m.writes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "trunkline_admission_object_writes_total", Help: "Admission objects created, replaced or deleted.",
	})
	ends := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trunkline_admission_certificate_expiry_timestamp_seconds", Help: "End of the certificate that the webhook serves; 0 without one.",
	}, func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ends.IsZero() {
			return 0
		}
		return float64(c.ends.Unix())
	})
	return errors.Join(r.Register(m.reviews), r.Register(m.namespaces), r.Register(m.uncompiled), r.Register(m.writes), r.Register(ends))
}

// wrote records a pass.
func (m *metrics) wrote(o podadmission.Objects, changed int) {
	m.namespaces.WithLabelValues("policy").Set(float64(len(o.Validating) - 1)) // one guards the annotation
	m.namespaces.WithLabelValues("webhook").Set(float64(len(o.Webhooks)))
	m.uncompiled.Set(float64(len(o.Why)))
	m.writes.Add(float64(changed))
}
