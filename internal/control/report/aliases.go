package report

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// alias is a metric of AWS's CNI, served from one of ours, so that dashboards and
// alarms go on working. Source of the names and labels: utils/prometheusmetrics of
// aws/amazon-vpc-cni-k8s v1.23.
type alias struct {
	name string
	// Left out: why there is nothing to serve.
	without string

	kind   dto.MetricType
	ours   string
	help   string
	labels []aliasLabel
	only   map[string]string // samples that count: those with these labels,
	not    map[string]string // and none of these
}

// aliasLabel is a label of AWS's: the value of one of ours, perhaps in other words,
// or always the same.
type aliasLabel struct {
	name, of string
	words    map[string]string
	always   string
}

// aliases are all of AWS's metrics.
func aliases() []alias {
	const counter, gauge, histogram = dto.MetricType_COUNTER, dto.MetricType_GAUGE, dto.MetricType_HISTOGRAM
	as := func(name, of string) []aliasLabel { return []aliasLabel{{name: name, of: of}} }
	failed := map[string]string{"code": "OK"}
	return []alias{
		{name: "awscni_eni_max", kind: gauge, ours: "trunkline_pool_enis_limit", help: "Interfaces the node can have."},
		{name: "awscni_ip_max", kind: gauge, ours: "trunkline_pool_addresses_limit", help: "Pod addresses the node can have."},
		{name: "awscni_eni_allocated", kind: gauge, ours: "trunkline_pool_enis", help: "Interfaces of the node."},
		{name: "awscni_total_ip_addresses", kind: gauge, ours: "trunkline_pool_addresses", help: "Pod addresses the node has or is getting."},
		{name: "awscni_assigned_ip_addresses", kind: gauge, ours: "trunkline_pool_assigned_addresses", help: "Addresses pods have."},
		{name: "awscni_total_ipv4_prefixes", kind: gauge, ours: "trunkline_pool_prefixes", help: "Prefixes on the node's interfaces."},
		{name: "awscni_assigned_ip_per_eni", kind: gauge, ours: "trunkline_eni_assigned_addresses", labels: as("eni", "eni"), help: "Addresses pods have, by interface."},
		{name: "awscni_no_available_ip_addresses", kind: counter, ours: "trunkline_pool_empty_total", help: "Times an ADD found no free address; unlike AWS's, it waits for one."},
		{
			name: "awscni_add_ip_req_count", kind: counter, ours: "trunkline_cni_results_total", only: map[string]string{"command": "ADD"},
			help: "ADDs answered.",
		},
		{
			name: "awscni_del_ip_req_count", kind: counter, ours: "trunkline_cni_results_total", only: map[string]string{"command": "DEL"},
			labels: []aliasLabel{{name: "reason", always: "PodDeleted"}}, help: "DELs answered.",
		},
		{name: "awscni_ipamd_error_count", kind: counter, ours: "trunkline_loop_errors_total", labels: as("fn", "loop"), help: "Passes of a loop that failed, by loop."},
		{name: "awscni_ipamd_action_inprogress", kind: gauge, ours: "trunkline_pool_actions_in_flight", labels: as("fn", "kind"), help: "Actions under way, by kind."},
		{
			name: "awscni_reconcile_count", kind: counter, ours: "trunkline_pool_looks_total", labels: []aliasLabel{{name: "fn", always: "nodeIPPoolReconcile"}},
			help: "Comparisons of the node's record with EC2.",
		},
		{
			name: "awscni_aws_api_latency_ms", kind: dto.MetricType_SUMMARY, ours: "trunkline_ec2_call_duration_seconds", help: "Time of calls to EC2, in milliseconds; count and sum.",
			labels: []aliasLabel{{name: "api", of: "action"}, {name: "error", of: "ok", words: map[string]string{"true": "false", "false": "true"}}},
		},
		{
			name: "awscni_aws_api_error_count", kind: counter, ours: "trunkline_ec2_calls_total", not: failed, help: "Failed calls to EC2, by action and code.",
			labels: []aliasLabel{{name: "api", of: "action"}, {name: "error", of: "code"}},
		},
		{name: "awscni_ec2api_req_count", kind: counter, ours: "trunkline_ec2_calls_total", labels: as("fn", "action"), help: "Calls to EC2, by action."},
		{name: "awscni_ec2api_error_count", kind: counter, ours: "trunkline_ec2_calls_total", not: failed, labels: as("fn", "action"), help: "Failed calls to EC2, by action."},
		{
			name: "awscni_ipamd_startup_duration_seconds", kind: histogram, ours: "trunkline_start_seconds", only: map[string]string{"until": "serving"},
			labels: []aliasLabel{{name: "success", always: "true"}}, help: "Time from the agent's start until it serves.",
		},
		{
			name: "awscni_ipamd_node_initialization_duration_seconds", kind: histogram, ours: "trunkline_start_seconds", only: map[string]string{"until": "settled"},
			labels: []aliasLabel{{name: "success", always: "true"}}, help: "Time from the agent's start until node, EC2 and kernel are known and agree.",
		},
		{name: "awscni_build_info", kind: gauge, ours: "trunkline_build_info", labels: as("version", "version"), help: "1, with the build version."},

		{name: "awscni_assigned_ip_per_cidr", without: "addresses are single ones: it would be a series of its own for each"},
		{name: "awscni_pod_eni_error_count", without: "the agent makes no branches; see trunkline_branch_audit_violations and the events of pods"},
		{name: "awscni_aws_utils_error_count", without: "counts errors inside AWS's own library; those of calls are in awscni_aws_api_error_count"},
		{name: "awscni_force_removed_enis", without: "an interface that pods use is never taken from them; see trunkline_drift_total"},
		{name: "awscni_force_removed_ips", without: "an address that a pod uses is never taken from it; see trunkline_drift_total"},
		{name: "awscni_unrecovered_checkpoint_entries", without: "the journal is replayed whole or set aside whole"},
		{name: "awscni_connmark_backend", without: "there is one backend, nftables"},
		{name: "awscni_connmark_reconcile_total", without: "connmark rules are compared with all the others; see trunkline_kernel_pass_seconds and trunkline_drift_total"},
	}
}

// Aliased gathers the metrics of a registry, and those that AWS's CNI has other names
// for under these too.
type Aliased struct{ prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g Aliased) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.Gatherer.Gather()
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	for _, a := range aliases() {
		if f := a.from(byName[a.ours]); f != nil {
			families = append(families, f)
		}
	}
	slices.SortFunc(families, func(x, y *dto.MetricFamily) int { return cmp.Compare(x.GetName(), y.GetName()) })
	return families, err
}

// from makes the alias of a family of ours; nil if it is left out, or if it has labels
// and no sample yet that gives them values.
func (a alias) from(ours *dto.MetricFamily) *dto.MetricFamily {
	if a.without != "" {
		return nil
	}
	help := a.help + " As AWS's CNI; see " + a.ours + "."
	out := &dto.MetricFamily{Name: &a.name, Help: &help, Type: &a.kind}
	sums := map[string]*dto.Metric{}
	if a.kind == dto.MetricType_COUNTER && len(a.labels) == 0 {
		out.Metric = []*dto.Metric{a.sample(nil)}
		sums[""] = out.Metric[0]
	}
	for _, m := range ours.GetMetric() {
		if !a.counts(m) {
			continue
		}
		labels, key := a.relabel(m)
		sum, there := sums[key]
		if !there {
			sum = a.sample(labels)
			sums[key] = sum
			out.Metric = append(out.Metric, sum)
		}
		add(sum, m)
	}
	if len(out.Metric) == 0 {
		return nil
	}
	return out
}

func (a alias) counts(m *dto.Metric) bool {
	have := map[string]string{}
	for _, l := range m.GetLabel() {
		have[l.GetName()] = l.GetValue()
	}
	for k, v := range a.only {
		if have[k] != v {
			return false
		}
	}
	for k, v := range a.not {
		if have[k] == v {
			return false
		}
	}
	return true
}

// relabel translates m's labels to AWS's; samples with the same key are added up.
func (a alias) relabel(m *dto.Metric) (labels []*dto.LabelPair, key string) {
	var all []string
	for _, l := range a.labels {
		value := l.always
		for _, have := range m.GetLabel() {
			if have.GetName() == l.of {
				value = cmp.Or(l.words[have.GetValue()], have.GetValue())
			}
		}
		labels = append(labels, &dto.LabelPair{Name: &l.name, Value: &value})
		all = append(all, value)
	}
	return labels, strings.Join(all, "\xff")
}

// sample is an empty one of the alias's kind.
func (a alias) sample(labels []*dto.LabelPair) *dto.Metric {
	m := &dto.Metric{Label: labels}
	switch a.kind {
	case dto.MetricType_COUNTER:
		m.Counter = &dto.Counter{Value: new(float64)}
	case dto.MetricType_GAUGE:
		m.Gauge = &dto.Gauge{Value: new(float64)}
	case dto.MetricType_SUMMARY:
		m.Summary = &dto.Summary{SampleCount: new(uint64), SampleSum: new(float64)}
	case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM, dto.MetricType_UNTYPED:
		// A histogram is passed on as it is.
	}
	return m
}

// add adds a sample of ours.
func add(sum, m *dto.Metric) {
	const milliseconds = 1000
	switch h := m.GetHistogram(); {
	case sum.Counter != nil:
		*sum.Counter.Value += m.GetCounter().GetValue()
	case sum.Gauge != nil:
		*sum.Gauge.Value += m.GetGauge().GetValue()
	case sum.Summary != nil:
		*sum.Summary.SampleCount += h.GetSampleCount()
		*sum.Summary.SampleSum += milliseconds * h.GetSampleSum()
	default:
		sum.Histogram = h
	}
}
