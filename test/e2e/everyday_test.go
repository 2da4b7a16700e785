//go:build lab

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// workloadImage is the name of the workload's image on every node.
const workloadImage = "trunkline.dev/workload:dev"

func everydayCommandsWork(t *testing.T, l lab) {
	l.runPod(t, "web", "serve")

	if out := l.kubectl(t, "logs", "web"); strings.TrimSpace(out) == "" {
		t.Error("kubectl logs web printed nothing")
	}
	if out := l.kubectl(t, "exec", "web", "--", "env"); !strings.Contains(out, "KUBERNETES_SERVICE_HOST=172.20.0.1") {
		t.Errorf("kubectl exec web -- env: no Service of the API server in:\n%s", out)
	}
	followedLogsEndWithThePod(t, l)
	for _, way := range []struct{ name, websockets, upgrade string }{
		{"websockets", "true", "websocket"},
		{"SPDY, as older clients use", "false", "SPDY/3.1"},
	} {
		t.Run("over "+way.name, func(t *testing.T) {
			l := l.with("KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+way.websockets, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+way.websockets)
			commandsRunInside(t, l, way.upgrade)
			filesAreCopiedInBothDirections(t, l)
			forwardedPortServes(t, l)
		})
	}
}

// commandsRunInside executes a command in a pod, checks its input, output and exit
// code, and the protocol that carried them.
func commandsRunInside(t *testing.T, l lab, upgrade string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := l.command(ctx, []byte("through\n"), "kubectl", "exec", "-i", "web", "--", "cat")
	if r.err != nil || r.stdout != "through\n" {
		t.Errorf("kubectl exec -i web -- cat: %v\n%s", r.err, r)
	}
	r = l.try(ctx, "kubectl", "exec", "web", "-v=8", "--", "false")
	var exit *exec.ExitError
	if !errors.As(r.err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("kubectl exec web -- false ended with %v, want 1", r.err)
	}
	if !strings.Contains(r.stderr, upgrade) {
		t.Errorf("kubectl exec did not use %s:\n%s", upgrade, r.stderr)
	}
}

func followedLogsEndWithThePod(t *testing.T, l lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// The container ends after its input does, so kubectl attaches to one that runs.
	r := l.command(ctx, []byte("through\n"), "kubectl", "run", "echo", "--image", workloadImage, "--restart=Never", "-i", "--rm", "--quiet", "--", "cat")
	if r.err != nil || r.stdout != "through\n" {
		t.Errorf("kubectl run -i -- cat: %v\n%s", r.err, r)
	}
	l.runPod(t, "talker", "sleep", "3")
	if r := l.try(ctx, "kubectl", "logs", "-f", "talker"); r.err != nil {
		t.Errorf("kubectl logs -f talker: %v\n%s", r.err, r)
	}
}

func filesAreCopiedInBothDirections(t *testing.T, l lab) {
	t.Helper()
	dir := t.TempDir()
	text := strings.Repeat("a line of the file\n", 5000)
	if err := os.WriteFile(filepath.Join(dir, "out"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.kubectl(t, "cp", filepath.Join(dir, "out"), "web:/tmp/file")
	l.kubectl(t, "cp", "web:/tmp/file", filepath.Join(dir, "back"))
	back, err := os.ReadFile(filepath.Join(dir, "back"))
	if err != nil || string(back) != text {
		t.Errorf("kubectl cp to the pod and back: %d of %d bytes, %v", len(back), len(text), err)
	}
}

func forwardedPortServes(t *testing.T, l lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := l.process(ctx, "kubectl", "port-forward", "pod/web", ":8080")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Errorf("kubectl port-forward printed %q: %v", line, err)
		return
	}
	var port int
	if _, err := fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d", &port); err != nil {
		t.Errorf("kubectl port-forward printed %q: %v", line, err)
		return
	}
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
	if err != nil {
		t.Errorf("through the forwarded port: %v", err)
		return
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("through the forwarded port: %s", resp.Status)
	}
}
