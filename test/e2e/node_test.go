//go:build lab

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/daemon"
)

// node is one node of a lab: a machine, and a Node of Kubernetes.
type node struct {
	l lab
	daemon.NodeStatus
}

// ready waits until Kubernetes reports the node as Ready.
func (n node) ready(t testing.TB, limit time.Duration) {
	t.Helper()
	eventually(t, limit, n.KubeName+" is Ready", func(t testing.TB) error {
		var object corev1.Node
		n.l.get(t, &object, "node", n.KubeName)
		for _, c := range object.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return notYet("%v", object.Status.Conditions)
	})
}

// reboot reboots the node by EC2, and waits until its new kubelet reports it as Ready.
func (n node) reboot(t testing.TB) {
	t.Helper()
	if _, err := n.l.account(t).api.RebootInstances(t.Context(), &ec2.RebootInstancesInput{InstanceIds: []string{string(n.InstanceID)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the node has booted again", func(t testing.TB) error {
		kubelets := strings.TrimSpace(n.l.kubectl(t, "get", "node", n.KubeName, "-o", "jsonpath={.status.nodeInfo.bootID}"))
		for _, now := range n.l.nodes(t) {
			if now.Name == n.Name && now.State == daemon.NodeRunning && now.BootID != n.BootID && now.BootID == kubelets {
				return nil
			}
		}
		return notYet("it is not running, or in boot %s; its kubelet reports boot %s", n.BootID, kubelets)
	})
	n.ready(t, 2*time.Minute)
}

// startPod starts a pod on the node and returns its address; the pod is deleted when the
// test ends.
func (n node) startPod(t testing.TB, name string) netip.Addr {
	t.Helper()
	return n.startPodOf(t, name, workloadImage)
}

// startPodOf is startPod with an image that the node has.
func (n node) startPodOf(t testing.TB, name, image string) netip.Addr {
	t.Helper()
	n.l.kubectl(t, "run", name, "--image", image, "--image-pull-policy=Never", "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+n.KubeName+`","terminationGracePeriodSeconds":1}}`, "--", "serve")
	t.Cleanup(func() { n.l.remove(t, "pod/"+name) })
	n.l.kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=90s")
	return netip.MustParseAddr(strings.TrimSpace(n.l.kubectl(t, "get", "pod", name, "-o", "jsonpath={.status.podIP}")))
}

// uncordon also runs in cleanups, after the test's own context has ended.
func (n node) uncordon(t testing.TB) {
	t.Helper()
	if r := n.l.try(context.Background(), "kubectl", "uncordon", n.KubeName); r.err != nil {
		t.Errorf("uncordon %s: %v\n%s", n.KubeName, r.err, r)
	}
}

// pods returns the addresses of the node's running pods that are not host-network pods.
func (n node) pods(t testing.TB) []netip.Addr {
	t.Helper()
	var pods corev1.PodList
	n.l.get(t, &pods, "pods", "-A", "--field-selector", "spec.nodeName="+n.KubeName)
	var out []netip.Addr
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		out = append(out, netip.MustParseAddr(p.Status.PodIP))
	}
	return sorted(out)
}

// freePods returns how many more pods the node may run.
func (n node) freePods(t testing.TB) int {
	t.Helper()
	var object corev1.Node
	n.l.get(t, &object, "node", n.KubeName)
	var pods corev1.PodList
	n.l.get(t, &pods, "pods", "-A", "--field-selector", "spec.nodeName="+n.KubeName+",status.phase!=Succeeded,status.phase!=Failed")
	return int(object.Status.Allocatable.Pods().Value()) - len(pods.Items)
}

// stopAgent deletes the agent's pod; its DaemonSet creates the next.
func (n node) stopAgent(t testing.TB) {
	t.Helper()
	n.l.kubectl(t, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=trunkline-agent", "--field-selector", "spec.nodeName="+n.KubeName)
}

// exec runs a program inside the node.
func (n node) exec(t testing.TB, args ...string) {
	t.Helper()
	n.l.run(t, time.Minute, append([]string{"exec", n.Name, "--"}, args...)...)
}
