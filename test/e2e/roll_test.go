//go:build lab

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/lab/image"
)

// second is the version that is rolled out and back: the same commit, built with
// another stamp.
const second = "second-stamp"

// A version is rolled out with `kubectl apply` and back with `kubectl rollout undo`
// while the pods of a Job of 200 are created and deleted on every node, a Deployment
// is scaled, and streams run.
func versionsRollOutAndBack(t *testing.T, l lab) {
	nodes := l.nodes(t)
	importImage(t, l, buildSecondVersion(t))
	nodes[0].startPod(t, "near")
	far := nodes[1].startPod(t, "far")
	streams := []stream{
		startStream(t, l, "tcp", "near", far.String()+":8081"),
		startStream(t, l, "udp", "near", far.String()+":8082"),
	}
	churn := startChurn(t, l, "rolling", churned(), 10)
	c, p := startCrowd(t, l, "rolling-crowd", ""), product{l}

	first := p.agentVersions(t)
	l.kubectl(t, "apply", "-k", overlay(t, filepath.Join(l.status(t).StateDir, "deploy"), second))
	c.scale(t, 24)
	p.mixedVersionsShow(t, first, second)
	p.rolled(t, second)
	c.rolledOut(t, 2*time.Minute)
	l.kubectl(t, "-n", "kube-system", "rollout", "undo", agents)
	l.kubectl(t, "-n", "kube-system", "rollout", "undo", controllers)
	c.scale(t, 6)
	p.mixedVersionsShow(t, first, second)
	p.rolled(t, first)

	meanwhile := churn.succeeded(t)
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
	failuresAreDetected(t, l, nodes[1])
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
}

// churned is how many pods the Job of the churn has.
func churned() int {
	if full() {
		return 200
	}
	return 120
}

// failuresAreDetected is the deliberate break of the step: a stream to a pod that is
// deleted, and an ADD without a plugin.
func failuresAreDetected(t testing.TB, l lab, n node) {
	t.Helper()
	at := strings.TrimSpace(l.kubectl(t, "get", "pod", "far", "-o", "jsonpath={.status.podIP}"))
	cut := startStream(t, l, "tcp", "near", at+":8081")
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
	n.exec(t, "mv", plugin, away)
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

// buildSecondVersion builds the product with another stamp and returns its image.
func buildSecondVersion(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w -X main.version="+second,
		"-o", dir, "./cmd/trunkline", "./cmd/trunkline-cni")
	build.Dir = "../.."
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
	return content
}

// importImage loads an image into every node.
func importImage(t testing.TB, l lab, content []byte) {
	t.Helper()
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

// overlay returns a directory for `kubectl apply -k`: manifests with another version.
func overlay(t testing.TB, manifests, tag string) string {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Rel(dir, manifests)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s]\nimages: [{name: trunkline.dev/trunkline, newTag: %s}]\n", base, tag)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
