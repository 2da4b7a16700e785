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

// fullNode is the Deployment of churn_test.go with an affinity to one node.
func fullNode(node string) string {
	const pod = "      terminationGracePeriodSeconds: 1\n"
	return strings.Replace(workload.Crowd, pod, pod+`      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: ["`+node+`"]}]}]
`, 1)
}

// A node is at its maximum of pods when a broken version of the agent is rolled out:
// the agent is stopped and its successor does not start. Its pods are deleted and
// others are pending. After the version is rolled back no pod is stuck.
func fullNodeRecoversFromAStoppedAgent(t *testing.T, l lab) {
	n := l.status(t).Nodes[0]
	// The maximum is two pods more than addresses, for the agent and kube-proxy; the
	// lab's kube-proxy is not a pod.
	l.kubectl(t, "run", "second", "--image", workloadImage, "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+n.KubeName+`","hostNetwork":true,"terminationGracePeriodSeconds":1}}`, "--", "sleep", "3600")
	t.Cleanup(func() { l.remove(t, "pod/second", "--force") })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
	l.apply(t, fullNode(n.KubeName))
	t.Cleanup(func() { l.remove(t, "deployment/crowd") })
	size := l.freePods(t, n.KubeName)
	l.kubectl(t, "scale", "deployment/crowd", fmt.Sprint("--replicas=", size))
	l.settled(t, 4*time.Minute, size)
	if left := l.freePods(t, n.KubeName); left != 0 {
		t.Fatalf("%s can run %d more pods: it is not at its maximum", n.Name, left)
	}

	good := l.kubectl(t, "-n", "kube-system", "get", "daemonset/trunkline-agent", "-o", "jsonpath={.spec.template.spec.initContainers[0].image}")
	back := `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%"}}`
	l.agentImage(t.Context(), t, "trunkline.dev/trunkline:absent", `{"type":"OnDelete"}`)
	t.Cleanup(func() { l.agentImage(context.Background(), t, good, back) })
	l.stopAgentOn(t, n.KubeName)

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
	if err := l.podsSettled(t, size); err == nil {
		t.Error("no pod is reported as stuck while no agent runs")
	}

	l.agentImage(t.Context(), t, good, back)
	l.stopAgentOn(t, n.KubeName)
	l.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/trunkline-agent", "--timeout=180s")
	l.settled(t, 5*time.Minute, size)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	l.goneWithin(t, 3*time.Minute, "app=crowd")
}

// freePods returns how many more pods the node may run.
func (l lab) freePods(t testing.TB, node string) int {
	t.Helper()
	var n corev1.Node
	l.get(t, &n, "node", node)
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-A", "--field-selector", "spec.nodeName="+node+",status.phase!=Succeeded,status.phase!=Failed")
	return int(n.Status.Allocatable.Pods().Value()) - len(pods.Items)
}

// settled waits until exactly n pods of the Deployment exist and every one is ready:
// none is stuck in creation or deletion.
func (l lab) settled(t testing.TB, limit time.Duration, n int) {
	t.Helper()
	eventually(t, limit, fmt.Sprint(n, " pods are ready and none is stuck"), func(t testing.TB) error { return l.podsSettled(t, n) })
}

func (l lab) podsSettled(t testing.TB, n int) error {
	t.Helper()
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-l", "app=crowd")
	ready, terminating := 0, 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			terminating++
		}
		if podIsReady(p) {
			ready++
		}
	}
	if len(pods.Items) != n || ready != n || terminating > 0 {
		return notYet("%d pods of %d, %d ready, %d terminating", len(pods.Items), n, ready, terminating)
	}
	return nil
}

// agentImage sets the image of agents that start from now on. Cleanups pass a context
// of their own, because the test's has ended.
func (l lab) agentImage(ctx context.Context, t testing.TB, image, strategy string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := l.try(ctx, "kubectl", "-n", "kube-system", "patch", "daemonset/trunkline-agent", "--type=json", "-p", fmt.Sprintf(
		`[{"op":"replace","path":"/spec/updateStrategy","value":%s},{"op":"replace","path":"/spec/template/spec/initContainers/0/image","value":%q}]`, strategy, image))
	if r.err != nil {
		t.Errorf("set the agents' image to %s: %v\n%s", image, r.err, r)
	}
}

// stopAgentOn deletes the agent's pod on a node; its DaemonSet creates the next.
func (l lab) stopAgentOn(t testing.TB, node string) {
	t.Helper()
	l.kubectl(t, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=trunkline-agent", "--field-selector", "spec.nodeName="+node)
}
