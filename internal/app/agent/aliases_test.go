package agent

//go:generate go test -run TestTheAliasesAreDocumented -update .

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

var update = flag.Bool("update", false, "write the metrics into docs/compat.md")

// awsMetrics are those of aws/amazon-vpc-cni-k8s, utils/prometheusmetrics and
// pkg/version at v1.23, with their labels.
func awsMetrics() map[string]string {
	return map[string]string{
		"awscni_ipamd_error_count": "fn", "awscni_ipamd_action_inprogress": "fn", "awscni_eni_max": "", "awscni_ip_max": "",
		"awscni_reconcile_count": "fn", "awscni_add_ip_req_count": "", "awscni_del_ip_req_count": "reason",
		"awscni_pod_eni_error_count": "fn", "awscni_aws_api_latency_ms": "api error status", "awscni_aws_api_error_count": "api error",
		"awscni_aws_utils_error_count": "fn error", "awscni_ec2api_req_count": "fn", "awscni_ec2api_error_count": "fn",
		"awscni_eni_allocated": "", "awscni_total_ip_addresses": "", "awscni_assigned_ip_addresses": "",
		"awscni_force_removed_enis": "", "awscni_force_removed_ips": "", "awscni_unrecovered_checkpoint_entries": "",
		"awscni_total_ipv4_prefixes": "", "awscni_assigned_ip_per_cidr": "cidr", "awscni_no_available_ip_addresses": "",
		"awscni_assigned_ip_per_eni": "eni", "awscni_ipamd_startup_duration_seconds": "success with_api_server failure_reason",
		"awscni_ipamd_node_initialization_duration_seconds": "success", "awscni_connmark_backend": "backend",
		"awscni_connmark_reconcile_total": "result", "awscni_build_info": "version goversion",
	}
}

func TestEveryMetricOfAWSIsServedOrLeftOutForAReason(t *testing.T) {
	known := awsMetrics()
	for _, a := range aliases() {
		labels, ok := known[a.name]
		if !ok {
			t.Errorf("%s is none of AWS's, or is in the table twice", a.name)
		}
		delete(known, a.name)
		if (a.without == "") == (a.ours == "") {
			t.Errorf("%s is neither served nor left out for a reason, or both", a.name)
		}
		for _, l := range a.labels {
			if !slices.Contains(strings.Fields(labels), l.name) {
				t.Errorf("%s has no label %s at AWS", a.name, l.name)
			}
		}
	}
	for name := range known {
		t.Errorf("%s is not in the table", name)
	}
}

// strict refuses the first call of its life.
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

// scraped is what an agent serves that wired a pod, failed another and unwired one,
// on a node whose EC2 refused one of two calls.
func scraped(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	a := withExecutor(t, &strict{})
	r := prometheus.NewRegistry()
	a.metrics = newMetrics(r, a)
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "trunkline_build_info", ConstLabels: prometheus.Labels{"program": "agent", "version": "v9"}})
	build.Set(1)
	r.MustRegister(build)
	executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: &strict{}}, Log: a.log, Registry: r})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []cloud.ActionID{"refused", "done"} {
		release := cloud.Action{ID: id, Kind: cloud.UnassignAddresses, ENI: "eni-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.8")}, Began: time.Now()}
		if _, err := executor.Do(t.Context(), release); (err != nil) != (id == "refused") {
			t.Fatalf("%s: %v", id, err)
		}
	}
	statetest.Ready(t, a.state, "one")
	a.decision.Numbers = ipam.Numbers{ENIs: 1, MaxENIs: 3, Capacity: 15, Have: 2, Assigned: 1}
	a.cni = cni.New(cni.Config{}, cni.Deps{State: a.state, Registry: r, Log: a.log})
	for _, call := range []cnirpc.Request{ // two ADDs without a namespace, the DEL of an unknown container
		{Command: "ADD", ContainerID: "c", Config: []byte("{}")}, {Command: "ADD", ContainerID: "c", Config: []byte("{}")}, {Command: "DEL", ContainerID: "c", Config: []byte("{}")},
	} {
		_, _ = a.cni.Handle(t.Context(), &call, nil)
	}
	a.metrics.looks.Inc()
	a.metrics.loopErrors.WithLabelValues("kernel").Inc()
	a.metrics.started.WithLabelValues("settled").Observe(0.5)
	a.metrics.started.WithLabelValues("serving").Observe(2)
	families, err := aliased{r}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

func TestTheAliasesSayWhatOursSay(t *testing.T) {
	families := scraped(t)
	for name, want := range map[string]string{
		"awscni_eni_max": "3", "awscni_ip_max": "15", "awscni_eni_allocated": "1", "awscni_total_ip_addresses": "2",
		"awscni_assigned_ip_addresses": "1", "awscni_total_ipv4_prefixes": "0", "awscni_assigned_ip_per_eni": "eni=eni-1 1",
		"awscni_no_available_ip_addresses": "0", "awscni_add_ip_req_count": "2", "awscni_del_ip_req_count": "reason=PodDeleted 1",
		"awscni_ipamd_error_count": "fn=kernel 1", "awscni_reconcile_count": "fn=nodeIPPoolReconcile 1",
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
	for _, a := range aliases() {
		if _, served := families[a.name]; served != (a.without == "") {
			t.Errorf("%s: served %v, and without it because %q", a.name, served, a.without)
		}
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

func TestTheAliasesAreDocumented(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| AWS's metric | labels | ours | |\n|---|---|---|---|\n")
	for _, a := range aliases() {
		var labels []string
		for _, l := range a.labels {
			labels = append(labels, "`"+l.name+"`")
		}
		if a.without == "" {
			fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", a.name, strings.Join(labels, ", "), a.ours, a.help)
		} else {
			fmt.Fprintf(&b, "| `%s` | | not served | %s |\n", a.name, a.without)
		}
	}
	b.WriteString("\n")
	const begin, end = "<!-- metrics: go generate ./internal/app/agent -->\n", "<!-- end of metrics -->"
	path := filepath.Join("..", "..", "..", "docs", "compat.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(raw), begin)
	have, after, closed := strings.Cut(rest, end)
	switch {
	case !found || !closed:
		t.Fatalf("docs/compat.md has no %q and %q", begin, end)
	case *update:
		if err := os.WriteFile(path, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case have != b.String():
		t.Error("docs/compat.md does not list the metrics as they are served: run `go generate ./internal/app/agent`")
	}
}
