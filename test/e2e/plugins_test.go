//go:build lab

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestNodeWithoutPlugins is a lab of one node without CNI plugins in its image, as EKS's
// AL2023: containerd calls loopback for every pod, and hostPort needs portmap.
func TestNodeWithoutPlugins(t *testing.T) {
	l := lab{name: "bareimage", bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/no-plugins.yaml")
	for _, s := range []step{
		{"a pod's hostPort is served", hostPortIsServed},
		{"the configuration that AWS's daemon leaves is replaced", leftConflistIsReplaced},
		{"another configuration that sorts first is an error", otherConflistIsReported},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

func hostPortIsServed(t *testing.T, l lab) {
	l.apply(t, `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: `+workloadImage+`
    args: [serve]
    ports: [{containerPort: 8080, hostPort: 28090}]
`)
	t.Cleanup(func() { l.remove(t, "pod/web") })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/web", "--timeout=90s")
	l.runPod(t, "asks", "serve")
	node := strings.TrimSpace(l.kubectl(t, "get", "pod", "web", "-o", "jsonpath={.status.hostIP}"))
	l.kubectl(t, "exec", "asks", "--", "/workload", "dial", "http", fmt.Sprintf("%s:28090", node), "--size=1000", "--timeout=10s")
	if out := (product{l}).run(t, 2*time.Minute, "status", "--wait=1m").String(); !strings.Contains(out, "no errors") {
		t.Errorf("status:\n%s", out)
	}
}

// leave writes a file into the node's directory of configurations.
func leave(t *testing.T, l lab, name, content string) {
	t.Helper()
	l.run(t, time.Minute, "exec", "node1", "--", "sh", "-c", "cat > /etc/cni/net.d/"+name+" <<'END'\n"+content+"\nEND")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // t's has ended
		defer cancel()
		if r := l.try(ctx, "exec", "node1", "--", "rm", "-f", "/etc/cni/net.d/"+name); r.err != nil {
			t.Errorf("remove %s from node1: %v\n%s", name, r.err, r)
		}
	})
}

func leftConflistIsReplaced(t *testing.T, l lab) {
	leave(t, l, "10-aws.conflist", `{"cniVersion":"0.4.0","name":"aws-cni","disableCheck":true,"plugins":[{"type":"aws-cni"},{"type":"egress-cni"},{"type":"portmap"}]}`)
	eventually(t, time.Minute, "an event says that it was replaced", func(t testing.TB) error {
		if out := l.kubectl(t, "get", "events", "--field-selector", "reason=AWSConfigurationReplaced"); !strings.Contains(out, "10-aws.conflist") {
			return notYet("events: %s", out)
		}
		return nil
	})
	l.runPod(t, "moved", "serve")
}

func otherConflistIsReported(t *testing.T, l lab) {
	leave(t, l, "05-bridge.conflist", `{"cniVersion":"1.0.0","name":"bridge","plugins":[{"type":"bridge"}]}`)
	eventually(t, time.Minute, "status names the file", func(t testing.TB) error {
		if out := (product{l}).run(t, time.Minute, "status").String(); !strings.Contains(out, "05-bridge.conflist sorts before") {
			return notYet("status:\n%s", out)
		}
		return nil
	})
}
