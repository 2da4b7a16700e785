//go:build lab

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/workload"
)

// fullNode is the crowd of churn_test.go on one node alone, with a patience that
// a machine with two cores needs.
func fullNode(node string) string {
	const pod = "      terminationGracePeriodSeconds: 1\n"
	return strings.Replace(workload.Crowd, pod, pod+`      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: ["`+node+`"]}]}]
`, 1)
}

// A node has all the pods it may have when a bad version of the agent takes it:
// the agent is stopped and none follows. Its pods are deleted meanwhile and others
// wait for their places. Then the version is taken back, and no pod is stuck.
func aFullNodeOutlivesItsAgent(t *testing.T, l lab) {
	n := l.status(t).Nodes[0]
	// A node may have two pods more than addresses: its agent and its kube-proxy,
	// which is no pod in the lab.
	l.kubectl(t, "run", "second", "--image", workloadImage, "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+n.KubeName+`","hostNetwork":true,"terminationGracePeriodSeconds":1}}`, "--", "sleep", "3600")
	t.Cleanup(func() { l.forget(t, "pod/second", "--force") })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
	l.apply(t, fullNode(n.KubeName))
	t.Cleanup(func() { l.forget(t, "deployment/crowd") })
	size := l.roomOn(t, n.KubeName)
	l.kubectl(t, "scale", "deployment/crowd", fmt.Sprint("--replicas=", size))
	l.crowdIs(t, 4*time.Minute, size)
	if left := l.roomOn(t, n.KubeName); left != 0 {
		t.Fatalf("%s has room for %d more pods: it is not at its maximum", n.Name, left)
	}

	good := l.kubectl(t, "-n", "kube-system", "get", "daemonset/trunkline-agent", "-o", "jsonpath={.spec.template.spec.initContainers[0].image}")
	back := `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}`
	l.agentImage(t.Context(), t, "trunkline.dev/trunkline:absent", `{"type":"OnDelete"}`)
	t.Cleanup(func() { l.agentImage(context.Background(), t, good, back) })
	l.stopAgentOn(t, n.KubeName)

	l.kubectl(t, "delete", "pods", "-l", "app=crowd", "--wait=false", "--grace-period=1")
	eventually(t, 2*time.Minute, "DELs wait in the spool", func(t testing.TB) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// The first of them makes the directory: until then there is none.
		spooled := len(strings.Fields(l.try(ctx, "exec", n.Name, "ls", "/var/lib/trunkline/spool").stdout))
		if spooled < size/2 {
			return notYet("%d of %d", spooled, size)
		}
		return nil
	})
	// The deliberate break of "none is stuck": now they are.
	if err := l.crowd(t, size); err == nil {
		t.Error("no pod counts as stuck while the agent is away")
	}

	l.agentImage(t.Context(), t, good, back)
	l.stopAgentOn(t, n.KubeName)
	l.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/trunkline-agent", "--timeout=180s")
	l.crowdIs(t, 5*time.Minute, size)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.kernelHoldsJust(t) })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	l.goneWithin(t, 3*time.Minute, "app=crowd")
}

// roomOn is how many more pods the node may have.
func (l lab) roomOn(t testing.TB, node string) int {
	t.Helper()
	var n corev1.Node
	l.get(t, &n, "node", node)
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-A", "--field-selector", "spec.nodeName="+node+",status.phase!=Succeeded,status.phase!=Failed")
	return int(n.Status.Allocatable.Pods().Value()) - len(pods.Items)
}

// crowdIs waits until just n pods of the crowd are there and every one is ready:
// none is stuck on its way in or out.
func (l lab) crowdIs(t testing.TB, limit time.Duration, n int) {
	t.Helper()
	eventually(t, limit, fmt.Sprint(n, " pods are ready and none is stuck"), func(t testing.TB) error { return l.crowd(t, n) })
}

func (l lab) crowd(t testing.TB, n int) error {
	t.Helper()
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-l", "app=crowd")
	ready, leaving := 0, 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			leaving++
		}
		if podIsReady(p) {
			ready++
		}
	}
	if len(pods.Items) != n || ready != n || leaving > 0 {
		return notYet("%d pods of %d, %d ready, %d on their way out", len(pods.Items), n, ready, leaving)
	}
	return nil
}

// agentImage gives the agents that start from now on another image. The test's own
// context is over when its cleanups run.
func (l lab) agentImage(ctx context.Context, t testing.TB, image, strategy string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := l.try(ctx, "kubectl", "-n", "kube-system", "patch", "daemonset/trunkline-agent", "--type=json", "-p", fmt.Sprintf(
		`[{"op":"replace","path":"/spec/updateStrategy","value":%s},{"op":"replace","path":"/spec/template/spec/initContainers/0/image","value":%q}]`, strategy, image))
	if r.err != nil {
		t.Errorf("give the agents image %s: %v\n%s", image, r.err, r)
	}
}

// stopAgentOn deletes the agent's pod on a node; its DaemonSet makes the next.
func (l lab) stopAgentOn(t testing.TB, node string) {
	t.Helper()
	l.kubectl(t, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=trunkline-agent", "--field-selector", "spec.nodeName="+node)
}
