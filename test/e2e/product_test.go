//go:build lab

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/app/cli"
)

// The workloads of the product, in the namespace kube-system.
const agents, controllers = "daemonset/trunkline-agent", "deployment/trunkline-controller"

// product is Trunkline as it is installed in a lab.
type product struct{ l lab }

// run runs the operator's CLI.
func (p product) run(t testing.TB, limit time.Duration, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.l.bin, "trunkline"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.l.status(t).Endpoints.Kubeconfig)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return result{out.String(), errs.String(), err}
}

// connectivity runs `trunkline connectivity test` as an operator would.
func (p product) connectivity(t testing.TB, args ...string) (report, result) {
	t.Helper()
	junit := filepath.Join(t.TempDir(), "junit.xml")
	r := p.run(t, 8*time.Minute, append([]string{
		"connectivity", "test", "--image", workloadImage, "--outside", "203.0.113.10", "--junit-file", junit,
	}, args...)...)
	return readReport(t, junit, r), r
}

// status returns the output of `trunkline status -o json`.
func (p product) status(t testing.TB) cli.Status {
	t.Helper()
	var s cli.Status
	r := p.run(t, time.Minute, "status", "-o", "json")
	decode(t, r.stdout, &s)
	return s
}

// agentVersions returns the version that all agents report.
func (p product) agentVersions(t testing.TB) string {
	t.Helper()
	version := ""
	for _, n := range p.status(t).Nodes {
		if version != "" && n.Agent != version {
			t.Fatalf("agents report %s and %s before the rollout", version, n.Agent)
		}
		version = n.Agent
	}
	return version
}

// mixedVersionsShow waits until `trunkline status` shows both versions, as images of
// the DaemonSet and as reported by agents.
func (p product) mixedVersionsShow(t testing.TB, one, other string) {
	t.Helper()
	eventually(t, 2*time.Minute, "status shows both versions at mid-roll", func(t testing.TB) error {
		out := p.run(t, time.Minute, "status").String()
		line, _, _ := strings.Cut(out, "\n")
		if strings.Count(line, "trunkline.dev/trunkline:") != 2 || !strings.Contains(line, "(rolling)") {
			return notYet("%s", line)
		}
		rows := strings.Fields(out)
		if !slices.Contains(rows, one) || !slices.Contains(rows, other) {
			return notYet("no node with %s and another with %s:\n%s", one, other, out)
		}
		t.Log(out)
		return nil
	})
}

// rolled waits until every pod of the product runs a version and every agent reports
// it.
func (p product) rolled(t testing.TB, version string) {
	t.Helper()
	for _, what := range []string{agents, controllers} {
		p.l.kubectl(t, "-n", "kube-system", "rollout", "status", what, "--timeout=180s")
	}
	eventually(t, time.Minute, "every agent reports "+version, func(t testing.TB) error {
		for _, n := range p.status(t).Nodes {
			if n.Agent != version {
				return notYet("%s runs %s", n.Node, n.Agent)
			}
		}
		return nil
	})
}

// agentImage sets the image of agents that start from now on. Cleanups pass a context
// of their own, because the test's has ended.
func (p product) agentImage(ctx context.Context, t testing.TB, image, strategy string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := p.l.try(ctx, "kubectl", "-n", "kube-system", "patch", agents, "--type=json", "-p", fmt.Sprintf(
		`[{"op":"replace","path":"/spec/updateStrategy","value":%s},{"op":"replace","path":"/spec/template/spec/initContainers/0/image","value":%q}]`, strategy, image))
	if r.err != nil {
		t.Errorf("set the agents' image to %s: %v\n%s", image, r.err, r)
	}
}
