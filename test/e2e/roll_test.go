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

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/workload"
)

// second is the version that is rolled out and back: the same commit, built with
// another stamp.
const second = "second-stamp"

const agents, controllers = "daemonset/trunkline-agent", "deployment/trunkline-controller"

// A version is rolled out with `kubectl apply` and back with `kubectl rollout undo`
// while the pods of a Job of 200 are created and deleted on every node, a Deployment
// is scaled, and streams run.
func versionsRollOutAndBack(t *testing.T, l lab) {
	l.importSecondVersion(t)
	nodes := l.status(t).Nodes
	l.podOn(t, "near", nodes[0].KubeName)
	far := l.podOn(t, "far", nodes[1].KubeName)
	streams := []stream{
		l.startStream(t, "tcp", "near", far.String()+":8081"),
		l.startStream(t, "udp", "near", far.String()+":8082"),
	}
	churn := l.startChurn(t, "rolling", 200, 10)
	l.apply(t, strings.ReplaceAll(workload.Crowd, "crowd", "rolling-crowd"))
	t.Cleanup(func() { l.remove(t, "deployment/rolling-crowd") })

	first := l.agentVersions(t)
	l.kubectl(t, "apply", "-k", l.overlay(t, second))
	l.kubectl(t, "scale", "deployment/rolling-crowd", "--replicas=24")
	l.mixedVersionsShow(t, first, second)
	l.rolled(t, second)
	l.kubectl(t, "rollout", "status", "deployment/rolling-crowd", "--timeout=120s")
	l.kubectl(t, "-n", "kube-system", "rollout", "undo", agents)
	l.kubectl(t, "-n", "kube-system", "rollout", "undo", controllers)
	l.kubectl(t, "scale", "deployment/rolling-crowd", "--replicas=6")
	l.mixedVersionsShow(t, first, second)
	l.rolled(t, first)

	meanwhile := l.jobPods(t, churn.name, "succeeded")
	t.Logf("%d pods of the Job succeeded meanwhile", meanwhile)
	if meanwhile == 0 {
		t.Error("no pod succeeded during the rollouts")
	}
	churn.done(t)
	for _, pod := range []string{"rolling", "near", "far"} {
		for _, failed := range l.failedSandboxes(t, pod) {
			t.Errorf("an ADD failed or a sandbox was lost during the rollouts: %s", failed)
		}
	}
	wholeStreams(t, streams...)
	l.failuresAreDetected(t, nodes[1])
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
}

// failuresAreDetected is the deliberate break of the step: a stream to a pod that is
// deleted, and an ADD without a plugin.
func (l lab) failuresAreDetected(t testing.TB, n daemon.NodeStatus) {
	t.Helper()
	at := strings.TrimSpace(l.kubectl(t, "get", "pod", "far", "-o", "jsonpath={.status.podIP}"))
	cut := l.startStream(t, "tcp", "near", at+":8081")
	l.remove(t, "pod/far")
	eventually(t, 30*time.Second, "a stream to a deleted pod ends", func(t testing.TB) error {
		select {
		case <-cut.ended:
			return nil
		default:
			return notYet("it still runs")
		}
	})
	if _, err := cut.stop(); err == nil {
		t.Error("an interrupted stream was not detected")
	}

	const plugin, away = "/opt/cni/bin/trunkline-cni", "/opt/cni/bin/trunkline-cni.away"
	l.run(t, time.Minute, "exec", n.Name, "--", "mv", plugin, away)
	restored := false
	restore := func() {
		if restored {
			return
		}
		restored = true
		if r := l.try(context.Background(), "exec", n.Name, "--", "mv", away, plugin); r.err != nil {
			t.Errorf("restore the plugin: %v\n%s", r.err, r)
		}
	}
	defer restore()
	l.kubectl(t, "run", "rolling-broken", "--image", workloadImage, "--restart=Never", "--overrides",
		`{"spec":{"nodeName":"`+n.KubeName+`","terminationGracePeriodSeconds":1}}`, "--", "serve")
	eventually(t, 30*time.Second, "a failed ADD is detected", func(t testing.TB) error {
		if failed := l.failedSandboxes(t, "rolling-broken"); len(failed) == 0 {
			return notYet("no event")
		}
		return nil
	})
	restore()
	l.remove(t, "pod/rolling-broken")
}

// importSecondVersion builds the product with another stamp and loads its image into
// every node.
func (l lab) importSecondVersion(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w -X main.version="+second,
		"-o", dir, "./cmd/trunkline", "./cmd/trunkline-cni")
	build.Dir = filepath.Dir(l.bin)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with another stamp: %v\n%s", err, out)
	}
	archive := filepath.Join(dir, "image.tar")
	err := image.Recipe{
		Files:      map[string]string{"/trunkline": filepath.Join(dir, "trunkline"), "/trunkline-cni": filepath.Join(dir, "trunkline-cni")},
		Dirs:       []string{"/tmp"},
		Entrypoint: []string{"/trunkline"},
	}.Write(archive, "trunkline.dev/trunkline:"+second)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	for _, n := range l.status(t).Nodes {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := l.command(ctx, content, "exec", n.Name, "--", "/lab/bin/ctr", "--namespace=k8s.io", "images", "import", "-")
			if r.err != nil {
				return fmt.Errorf("import into %s: %w\n%s", n.Name, r.err, r)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// overlay returns a directory for `kubectl apply -k`: the lab's manifests with
// another version.
func (l lab) overlay(t testing.TB, tag string) string {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(l.status(t).StateDir, "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s]\nimages: [{name: trunkline.dev/trunkline, newTag: %s}]\n", base, tag)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// productStatus returns the output of `trunkline status -o json`.
func (l lab) productStatus(t testing.TB) cli.Status {
	t.Helper()
	var s cli.Status
	r := l.trunkline(t, "status", "-o", "json")
	decode(t, r.stdout, &s)
	return s
}

// agentVersions returns the version that all agents report.
func (l lab) agentVersions(t testing.TB) string {
	t.Helper()
	version := ""
	for _, n := range l.productStatus(t).Nodes {
		if version != "" && n.Agent != version {
			t.Fatalf("agents report %s and %s before the rollout", version, n.Agent)
		}
		version = n.Agent
	}
	return version
}

// mixedVersionsShow waits until `trunkline status` shows both versions, as images of
// the DaemonSet and as reported by agents.
func (l lab) mixedVersionsShow(t testing.TB, one, other string) {
	t.Helper()
	eventually(t, 2*time.Minute, "status shows both versions at mid-roll", func(t testing.TB) error {
		out := l.trunkline(t, "status").String()
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
func (l lab) rolled(t testing.TB, version string) {
	t.Helper()
	for _, what := range []string{agents, controllers} {
		l.kubectl(t, "-n", "kube-system", "rollout", "status", what, "--timeout=180s")
	}
	eventually(t, time.Minute, "every agent reports "+version, func(t testing.TB) error {
		for _, n := range l.productStatus(t).Nodes {
			if n.Agent != version {
				return notYet("%s runs %s", n.Node, n.Agent)
			}
		}
		return nil
	})
}

// failedSandboxes returns the events of pods with a name prefix about sandboxes that
// could not be made, were lost or could not be removed. A container process that
// could not be killed at the first attempt is not a network failure.
func (l lab) failedSandboxes(t testing.TB, prefix string) []string {
	t.Helper()
	var events corev1.EventList
	l.get(t, &events, "events")
	var out []string
	for _, e := range events.Items {
		bad := slices.Contains([]string{"FailedCreatePodSandBox", "SandboxChanged"}, e.Reason) ||
			e.Reason == "FailedKillPod" && strings.Contains(e.Message, "KillPodSandbox")
		if strings.HasPrefix(e.InvolvedObject.Name, prefix) && bad {
			out = append(out, fmt.Sprintf("%s %s %d times: %s", e.InvolvedObject.Name, e.Reason, max(1, e.Count), e.Message))
		}
	}
	return out
}
