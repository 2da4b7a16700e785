package ec2

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/cloud"
)

// metrics of the executor. Labels are bounded: actions are API's methods, codes those
// of knownCodes.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	waited  *prometheus.HistogramVec
	hedged  *prometheus.CounterVec
	open    prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trunkline_ec2_calls_total", Help: "Calls to EC2 by action and error code (OK, none for no reply).",
		}, []string{"action", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trunkline_ec2_call_duration_seconds", Help: "Time of one call to EC2 by action and whether it succeeded.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"action", "ok"}),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trunkline_ec2_budget_wait_seconds", Help: "Time that calls waited for this node's own budget.",
			Buckets: []float64{.001, .01, .1, .5, 1, 2.5, 5, 10, 30},
		}, []string{"action"}),
		hedged: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trunkline_ec2_hedged_reads_total", Help: "Reads sent again on a fresh connection, by action.",
		}, []string{"action"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trunkline_ec2_intents_open", Help: "Actions being carried out.",
		}),
	}
}

func (m *metrics) register(r prometheus.Registerer, b *brakes) error {
	if r == nil {
		return nil
	}
	braked := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trunkline_ec2_brake", Help: "0: none, 1: no releases, 2: no changes.",
	}, func() float64 {
		switch v, _ := b.inForce(time.Now()); v {
		case cloud.FreezeAll, cloud.Unobserved: // the pool has Unobserved, not the executor
			return 2
		case cloud.FreezeRelease, cloud.AllocateOnly:
			return 1
		case cloud.BrakeOff:
		}
		return 0
	})
	for _, c := range []prometheus.Collector{m.calls, m.seconds, m.waited, m.hedged, m.open, braked} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) called(action string, err error, took time.Duration) {
	code, ok := "OK", "true"
	if err != nil {
		ok = "false"
		switch code = Code(err); {
		case code == "":
			code = "none"
		case !slices.Contains(knownCodes(), code):
			code = "other"
		}
	}
	m.calls.WithLabelValues(action, code).Inc()
	m.seconds.WithLabelValues(action, ok).Observe(took.Seconds())
}

// knownCodes are the error codes of API's methods; others are counted as "other", so
// that the label is bounded.
func knownCodes() []string {
	return []string{
		"AttachmentLimitExceeded", "InvalidAssociationID.NotFound", "InvalidVlanId.Duplicate", "OperationNotPermitted", "SecurityGroupsPerInterfaceLimitExceeded", "AuthFailure", "DryRunOperation", "ExpiredToken", "IdempotentParameterMismatch",
		"IncorrectState", "InsufficientCapacity", "InsufficientCidrBlocks", "InsufficientFreeAddressesInSubnet",
		"InternalError", "InvalidAttachmentID.NotFound", "InvalidGroup.NotFound", "InvalidInstanceID.NotFound",
		"InvalidInterface.IpAddressLimitExceeded", "InvalidNetworkInterface.InUse", "InvalidNetworkInterfaceID.NotFound", "InvalidParameterCombination",
		"InvalidParameterValue", "InvalidSecurityGroupID.NotFound", "InvalidSubnetID.NotFound",
		"NetworkInterfaceLimitExceeded", "PrivateIpAddressLimitExceeded", "RequestExpired", "RequestLimitExceeded",
		"SignatureDoesNotMatch", "Throttling", "Unavailable", "UnauthorizedOperation",
	}
}
