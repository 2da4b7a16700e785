//go:build lab

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/workload"
)

// TestSmallNode is a lab of one t3.medium: 3 interfaces of 6 addresses, 17 pods.
func TestSmallNode(t *testing.T) {
	l := lab{name: "small", bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/exhaust-t3-medium.yaml")
	for _, s := range []step{
		{"it reports exhausted addresses and recovers", exhaustionIsReported},
		{"at its maximum of pods it recovers from a stopped agent", fullNodeRecoversFromAStoppedAgent},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// exhaustionIsReported creates more pods than there are addresses.
func exhaustionIsReported(t *testing.T, l lab) {
	l.apply(t, workload.Crowd)
	t.Cleanup(func() { l.remove(t, "deployment/crowd") })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=16")

	eventually(t, 2*time.Minute, "an event reports that there is no address", func(t testing.TB) error {
		events := l.kubectl(t, "get", "events", "--field-selector", "reason=NetworkNotReady", "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}")
		if !strings.Contains(events, "address") {
			return notYet("events: %q", events)
		}
		t.Log(strings.TrimSpace(events))
		return nil
	})
	eventually(t, time.Minute, "status reports the exhausted addresses", func(t testing.TB) error {
		out := l.trunkline(t, "status").String()
		if !strings.Contains(out, "all 15 addresses") {
			return notYet("%s", out)
		}
		t.Log(out)
		return nil
	})

	l.kubectl(t, "scale", "deployment/crowd", "--replicas=8")
	l.scaledDown(t, 8)
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=9")
	l.kubectl(t, "rollout", "status", "deployment/crowd", "--timeout=180s")
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	l.goneWithin(t, time.Minute, "app=crowd")
}

// scaledDown waits until exactly n pods of the Deployment remain and all of them run.
func (l lab) scaledDown(t testing.TB, n int) {
	t.Helper()
	eventually(t, 3*time.Minute, "the surplus pods are gone", func(t testing.TB) error {
		running := strings.Fields(l.kubectl(t, "get", "pods", "-l", "app=crowd", "-o", "jsonpath={range .items[*]}{.status.phase}{'\\n'}{end}"))
		for _, phase := range running {
			if phase != "Running" {
				return notYet("%v", running)
			}
		}
		if len(running) != n {
			return notYet("%d of %d", len(running), n)
		}
		return nil
	})
}

// trunkline runs the operator's CLI against the lab.
func (l lab) trunkline(t testing.TB, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "trunkline"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.status(t).Endpoints.Kubeconfig)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return result{out.String(), errs.String(), err}
}
