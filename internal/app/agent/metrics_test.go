package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/guard"
	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func defaults(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Flags: map[string]string{"state-dir": t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// strict is EC2 that refuses its first call.
type strict struct {
	ec2.API
	calls int
}

func (s *strict) UnassignPrivateIpAddresses(context.Context, *sdk.UnassignPrivateIpAddressesInput, ...func(*sdk.Options)) (*sdk.UnassignPrivateIpAddressesOutput, error) {
	if s.calls++; s.calls == 1 {
		return nil, &smithy.GenericAPIError{Code: "UnauthorizedOperation", Message: "no"}
	}
	return &sdk.UnassignPrivateIpAddressesOutput{}, nil
}

// quiet is a cluster without objects, and a reader of events that drops them.
type quiet struct{}

func (quiet) Run(context.Context) error { return nil }
func (quiet) Synced() bool              { return true }
func (quiet) PodsKnown() bool           { return true }
func (quiet) Pods() []kube.Pod          { return nil }
func (quiet) Pod(context.Context, kube.PodRef, string) (kube.Pod, error) {
	return kube.Pod{}, kube.ErrNoPod
}
func (quiet) Node() (kube.Node, bool)            { return kube.Node{}, false }
func (quiet) Freeze() (trunkline.Freeze, string) { return trunkline.FreezeNone, "" }
func (quiet) WriteNetwork(context.Context, trunkline.NodeNetworkStatus) error {
	return nil
}
func (quiet) SetNetworkUnavailable(context.Context, bool, string, string) error { return nil }
func (quiet) Confirm(string)                                                    {}

func (quiet) Policies(context.Context) ([]string, error)       { return nil, nil }
func (quiet) Refuse(context.Context, string) error             { return nil }
func (quiet) Leave(context.Context) error                      { return nil }
func (quiet) PodWarning(kube.PodRef, string, string, string)   {}
func (quiet) NodeWarning(string, string)                       {}
func (quiet) PolicyWarning(policy.Ref, string, string, string) {}

// scraped is what an agent serves that wired a pod, failed another and unwired one,
// on a node of which EC2 refused one of two calls.
func scraped(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	r, log := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	a := &agent{cfg: defaults(t), deps: Deps{Registry: r, Log: log}, log: log, metrics: newMetrics(r), events: quiet{}}
	a.cluster = guarded{quiet{}, guard.New(guard.Deps{Cluster: quiet{}, Events: quiet{}, Log: log}), modes{}}
	a.state = statetest.Open(t, t.TempDir())
	statetest.Observe(t, a.state)
	executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: &strict{}}, Log: log, Registry: r})
	if err != nil {
		t.Fatal(err)
	}
	a.reporter = report.New(a.cfg, report.Deps{State: a.state, Cluster: quiet{}, Registry: r, Log: log})
	a.backend = a.eniBackend(executor, nil)
	a.assemble()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "trunkline_build_info", ConstLabels: prometheus.Labels{"program": "agent", "version": "v9"}})
	build.Set(1)
	r.MustRegister(build)
	for _, id := range []cloud.ActionID{"refused", "done"} {
		release := cloud.Action{ID: id, Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.8")}, Began: time.Now()}
		if _, err := executor.Do(t.Context(), release); (err != nil) != (id == "refused") {
			t.Fatalf("%s: %v", id, err)
		}
	}
	statetest.Ready(t, a.state, "one")
	state.Set(a.state, a.state.BackendTables().Pool, state.Pool{Decision: ipam.Decision{Numbers: ipam.Numbers{ENIs: 1, MaxENIs: 3, Capacity: 15, Have: 2, Assigned: 1}}})
	for _, call := range []cnirpc.Request{ // two ADDs without a namespace, the DEL of an unknown container
		{Command: "ADD", ContainerID: "c", Config: []byte("{}")}, {Command: "ADD", ContainerID: "c", Config: []byte("{}")}, {Command: "DEL", ContainerID: "c", Config: []byte("{}")},
	} {
		a.cni.Handle(t.Context(), &call, nil, func(json.RawMessage, *cnirpc.Error) {})
	}
	a.metrics.loopErrors.WithLabelValues("kernel").Inc()
	a.metrics.started.WithLabelValues("settled").Observe(0.5)
	a.metrics.started.WithLabelValues("serving").Observe(2)
	families, err := report.Aliased{Gatherer: r}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

func TestMetricsUnderAWSsNamesHaveTheValuesOfOurs(t *testing.T) {
	families := scraped(t)
	for name, want := range map[string]string{
		"awscni_eni_max": "3", "awscni_ip_max": "15", "awscni_eni_allocated": "1", "awscni_total_ip_addresses": "2",
		"awscni_assigned_ip_addresses": "1", "awscni_total_ipv4_prefixes": "0", "awscni_assigned_ip_per_eni": "eni=eni-1 1",
		"awscni_no_available_ip_addresses": "0", "awscni_add_ip_req_count": "2", "awscni_del_ip_req_count": "reason=PodDeleted 1",
		"awscni_ipamd_error_count": "fn=kernel 1", "awscni_reconcile_count": "fn=nodeIPPoolReconcile 0",
		"awscni_aws_api_error_count": "api=UnassignPrivateIpAddresses error=UnauthorizedOperation 1",
		"awscni_ec2api_req_count":    "fn=UnassignPrivateIpAddresses 2", "awscni_ec2api_error_count": "fn=UnassignPrivateIpAddresses 1",
		"awscni_ipamd_startup_duration_seconds":             "success=true 2s of 1",
		"awscni_ipamd_node_initialization_duration_seconds": "success=true 0.5s of 1",
		"awscni_build_info":                                 "version=v9 1",
	} {
		if got := said(families[name]); got != want {
			t.Errorf("%s says %q, want %q", name, got, want)
		}
	}
	latency := families["awscni_aws_api_latency_ms"].GetMetric()
	if len(latency) != 2 || latency[0].GetSummary().GetSampleCount() != 1 || latency[0].GetLabel()[0].GetValue() != "UnassignPrivateIpAddresses" {
		t.Errorf("latency of calls: %v", latency)
	}
	if got := len(families["awscni_ipamd_action_inprogress"].GetMetric()); got != 8 {
		t.Errorf("%d kinds of actions", got)
	}
}

// said is the samples of a family in a line.
func said(f *dto.MetricFamily) string {
	var samples []string
	for _, m := range f.GetMetric() {
		var words []string
		for _, l := range m.GetLabel() {
			words = append(words, l.GetName()+"="+l.GetValue())
		}
		switch h := m.GetHistogram(); {
		case h != nil:
			words = append(words, fmt.Sprintf("%gs of %d", h.GetSampleSum(), h.GetSampleCount()))
		case m.Counter != nil:
			words = append(words, fmt.Sprint(m.GetCounter().GetValue()))
		default:
			words = append(words, fmt.Sprint(m.GetGauge().GetValue()))
		}
		samples = append(samples, strings.Join(words, " "))
	}
	return strings.Join(samples, "; ")
}
