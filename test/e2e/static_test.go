//go:build lab

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A static pod is a file on its node. The runtime reports it with a uid that the API
// server does not have; the mirror pod at the API server identifies it.
func staticPodsAreWired(t *testing.T, l lab) {
	const file = "/etc/kubernetes/manifests/fixed.yaml"
	const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: fixed}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "` + workloadImage + `", args: [serve]}]
`
	n := l.nodes(t)[0]
	mirror := "fixed-" + n.KubeName
	// Written to another folder first, because the kubelet would read an incomplete
	// file.
	n.exec(t, "sh", "-c", "echo '"+manifest+"' > /var/tmp/fixed && mv /var/tmp/fixed "+file)
	t.Cleanup(func() {
		if r := l.try(context.Background(), "exec", n.Name, "--", "rm", "-f", file); r.err != nil {
			t.Errorf("remove %s: %v\n%s", file, r.err, r)
		}
	})

	var addr netip.Addr
	eventually(t, 90*time.Second, mirror+" is ready", func(t testing.TB) (err error) {
		l.kubectl(t, "wait", "--for=condition=Ready", "pod/"+mirror, "--timeout=5s")
		addr, err = netip.ParseAddr(strings.TrimSpace(l.kubectl(t, "get", "pod", mirror, "-o", "jsonpath={.status.podIP}")))
		return err
	})
	if l.account(t).holders(t)[addr] == "" {
		t.Errorf("%s has %s, which is not assigned in EC2", mirror, addr)
	}
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })

	n.exec(t, "rm", file)
	eventually(t, 90*time.Second, mirror+" is gone", func(t testing.TB) error {
		if left := strings.TrimSpace(l.kubectl(t, "get", "pods", "--field-selector", "metadata.name="+mirror, "-o", "name")); left != "" {
			return notYet("%s still exists", left)
		}
		return l.stateAgrees(t)
	})
}
