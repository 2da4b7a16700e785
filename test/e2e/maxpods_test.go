//go:build lab

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"
)

// onlyOn returns lines of a pod's spec: an affinity to one node.
func onlyOn(node string) string {
	return `      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: ["` + node + `"]}]}]
`
}

// A node is at its maximum of pods when a broken version of the agent is rolled out:
// the agent is stopped and its successor does not start. Its pods are deleted and
// others are pending. After the version is rolled back no pod is stuck.
func fullNodeRecoversFromAStoppedAgent(t *testing.T, l lab) {
	n := l.nodes(t)[0]
	// The maximum is two pods more than addresses, for the agent and kube-proxy; the
	// lab's kube-proxy is not a pod.
	l.kubectl(t, "run", "second", "--image", workloadImage, "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+n.KubeName+`","hostNetwork":true,"terminationGracePeriodSeconds":1}}`, "--", "sleep", "3600")
	t.Cleanup(func() { l.remove(t, "pod/second", "--force") })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
	c := startCrowd(t, l, "crowd", onlyOn(n.KubeName))
	size := n.freePods(t)
	c.scale(t, size)
	c.settled(t, 4*time.Minute, size)
	if left := n.freePods(t); left != 0 {
		t.Fatalf("%s can run %d more pods: it is not at its maximum", n.Name, left)
	}

	good := l.kubectl(t, "-n", "kube-system", "get", "daemonset/trunkline-agent", "-o", "jsonpath={.spec.template.spec.initContainers[0].image}")
	back := `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}`
	product{l}.agentImage(t.Context(), t, "trunkline.dev/trunkline:absent", `{"type":"OnDelete"}`)
	t.Cleanup(func() { product{l}.agentImage(context.Background(), t, good, back) })
	n.stopAgent(t)

	l.kubectl(t, "delete", "pods", "-l", "app=crowd", "--wait=false", "--grace-period=1")
	eventually(t, 2*time.Minute, "DELs are in the spool", func(t testing.TB) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// The first DEL creates the directory; before, ls fails.
		spooled := len(strings.Fields(l.try(ctx, "exec", n.Name, "ls", "/var/lib/trunkline/spool").stdout))
		if spooled < size/2 {
			return notYet("%d of %d", spooled, size)
		}
		return nil
	})
	// The deliberate break of "none is stuck": without an agent the pods are.
	if err := c.podsSettled(t, size); err == nil {
		t.Error("no pod is reported as stuck while no agent runs")
	}

	product{l}.agentImage(t.Context(), t, good, back)
	n.stopAgent(t)
	l.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/trunkline-agent", "--timeout=180s")
	c.settled(t, 5*time.Minute, size)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
	c.scale(t, 0)
	c.goneWithin(t, 3*time.Minute)
}
