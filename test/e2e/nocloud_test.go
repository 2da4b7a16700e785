//go:build lab

package e2e

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestNoCloud is a lab of one node to which neither EC2 nor instance metadata answers.
func TestNoCloud(t *testing.T) {
	drawn(t)
	l := lab{name: uniqueName("nc"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/no-cloud.yaml")
	for _, s := range []step{
		{"the connectivity test passes on one node", connectivityPassesWithoutACloud},
		{"status and show say what needs EC2", statusSaysWhatNeedsEC2},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// casesWithoutACloud are the cases that must pass on a single node without a cloud.
func casesWithoutACloud() []string {
	return []string{
		"pod-to-pod/same-node/1B", "pod-to-pod/same-node/8900B-df", "pod-to-pod/same-node/1MB",
		"pod-to-node/same-node", "node-to-pod/same-node", "node-to-pod/kubelet-probes",
		"pod-to-service/same-node/1B", "pod-to-service/same-node/8900B-df", "pod-to-service/same-node/1MB",
		"pod-to-service/hairpin", "node-to-service", "pod-to-api-server",
		"dns/service", "dns/headless", "dns/external",
		"outside/source", "outside/path-mtu",
		"spoof/source-same-node", "spoof/source-node", "spoof/mac",
		"policy/ingress-labels/same-node", "policy/egress-labels/service", "policy/node-port/same-node",
		"policy/load-balancer/same-node", "policy/hairpin/cluster-ip",
		"health", "operation/error-logs", "operation/interrupted-connections", "operation/unexpected-drops",
	}
}

// skipReason is why a case cannot run there; empty: it must run.
func skipReason(name string) string {
	switch {
	case strings.Contains(name, "/same-eni/"), strings.Contains(name, "/other-eni/"):
		return "does not use EC2"
	case strings.HasPrefix(name, "metadata/"):
		return "has no instance metadata"
	case strings.Contains(name, "other-node"), strings.HasPrefix(name, "node-port/"),
		slices.Contains([]string{"backends-node", "own-node", "from-a-node"}, path.Base(name)):
		return "the cluster has one ready node"
	case strings.HasPrefix(name, "security-group/"):
		return "no security groups for pods were given"
	}
	return ""
}

func connectivityPassesWithoutACloud(t *testing.T, l lab) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	junit := filepath.Join(t.TempDir(), "junit.xml")
	r := l.try(ctx, "trunkline", "connectivity", "test", "--junit-file", junit)
	t.Log(r.stdout)
	rep := readReport(t, junit, r)
	if passed, failed, skipped := rep.counts(); r.err != nil || failed > 0 {
		t.Errorf("%d passed, %d failed, %d skipped, %v\n%s", passed, failed, len(skipped), r.err, r.stderr)
	}
	var passed []string
	for _, s := range rep.Suites {
		for _, c := range s.Cases {
			switch want := skipReason(c.Name); {
			case c.Skipped == nil:
				passed = append(passed, c.Name) // or failed, which is reported above
			case want == "" || !strings.Contains(c.Skipped.Message, want):
				t.Errorf("%s is skipped: %s; want the reason %q", c.Name, c.Skipped.Message, want)
			}
		}
	}
	for _, name := range casesWithoutACloud() {
		if !slices.Contains(passed, name) {
			t.Errorf("%s did not pass", name)
		}
	}
}

func statusSaysWhatNeedsEC2(t *testing.T, l lab) {
	const why = "EC2 is not used by the backend podcidr (set by environment TRUNKLINE_BACKEND)"
	for _, c := range []struct {
		command string
		want    []string
	}{
		{"status --wait=1m", []string{why, "pod-cidr", "no errors"}},
		{"show enis", []string{"no ENIs: " + why}},
		{"show pool --why", []string{"pod CIDR 10.244.0.0/24"}},
		{"show addresses", []string{"kube-system/coredns-", "addresses of the pod CIDR 10.244.0.0/24"}},
		{"ec2 freeze --all --name=e2e --reason=test", []string{"it stops nothing"}},
		{"ec2 thaw --name=e2e", []string{"is released"}},
	} {
		out := l.run(t, 2*time.Minute, append([]string{"trunkline"}, strings.Fields(c.command)...)...)
		for _, text := range c.want {
			if !strings.Contains(out, text) {
				t.Errorf("trunkline %s does not print %q:\n%s", c.command, text, out)
			}
		}
	}
}
