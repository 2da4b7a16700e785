package report

//go:generate go test -run TestTheAliasesAreDocumented -update .

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	const begin, end = "<!-- metrics: go generate ./internal/control/report -->\n", "<!-- end of metrics -->"
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
		t.Error("docs/compat.md does not list the metrics as they are served: run `go generate ./internal/control/report`")
	}
}
