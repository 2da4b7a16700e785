//go:build lab

package e2e

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/workload"
)

// lastNode is the node that is rebooted and terminated.
func (l lab) lastNode(t testing.TB) daemon.NodeStatus {
	t.Helper()
	nodes := l.status(t).Nodes
	return nodes[len(nodes)-1]
}

func (l lab) nodeIsReady(t testing.TB, name string, limit time.Duration) {
	t.Helper()
	eventually(t, limit, name+" is Ready", func(t testing.TB) error {
		var n corev1.Node
		l.get(t, &n, "node", name)
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return notYet("%v", n.Status.Conditions)
	})
}

// podOn starts a pod on a node and returns its address.
func (l lab) podOn(t testing.TB, name, node string) netip.Addr {
	t.Helper()
	l.kubectl(t, "run", name, "--image", workloadImage, "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+node+`","terminationGracePeriodSeconds":1}}`, "--", "serve")
	t.Cleanup(func() { l.remove(t, "pod/"+name) })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=90s")
	return netip.MustParseAddr(strings.TrimSpace(l.kubectl(t, "get", "pod", name, "-o", "jsonpath={.status.podIP}")))
}

// uncordon also runs in cleanups, after the test's own context has ended.
func (l lab) uncordon(t testing.TB, node string) {
	t.Helper()
	if r := l.try(context.Background(), "kubectl", "uncordon", node); r.err != nil {
		t.Errorf("uncordon %s: %v\n%s", node, r.err, r)
	}
}

func nodeIsDrained(t *testing.T, l lab) {
	n := l.lastNode(t)
	l.apply(t, workload.Crowd)
	t.Cleanup(func() { l.remove(t, "deployment/crowd") })
	l.kubectl(t, "scale", "deployment/crowd", "--replicas=12")
	l.kubectl(t, "rollout", "status", "deployment/crowd", "--timeout=90s")
	l.kubectl(t, "drain", n.KubeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
	t.Cleanup(func() { l.uncordon(t, n.KubeName) })
	eventually(t, time.Minute, "the drained node's kernel holds no pod", func(t testing.TB) error {
		if f := l.footprint(t, n.Name); len(f.Links)+len(f.Route)+len(f.To)+len(f.From) > 0 {
			return notYet("%+v", f)
		}
		return nil
	})
	l.kubectl(t, "rollout", "status", "deployment/crowd", "--timeout=90s")
}

// evictable is the Deployment spread over the nodes, with pods that tolerate a
// missing node for five seconds.
func evictable() string {
	const pod = "      terminationGracePeriodSeconds: 1\n"
	return strings.Replace(strings.ReplaceAll(workload.Crowd, "crowd", "evictable"), pod, pod+`      tolerations:
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: evictable}}
`, 1)
}

// withoutController returns a node without a controller of ours.
func (l lab) withoutController(t testing.TB) daemon.NodeStatus {
	t.Helper()
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-n", "kube-system", "-l", controllerLabel)
	for _, n := range l.status(t).Nodes {
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == n.KubeName }) {
			return n
		}
	}
	t.Fatal("every node runs a controller of ours")
	return daemon.NodeStatus{}
}

// A node with pods loses its power: Kubernetes detects it, the pods move, and when
// the power is back nothing of the earlier pods is left. Detection takes most of a
// minute; meanwhile a leaked interface is collected by controllers on other nodes.
func nodeLosesPower(t *testing.T, l lab) {
	n := l.withoutController(t)
	l.apply(t, evictable())
	t.Cleanup(func() { l.remove(t, "deployment/evictable") })
	l.kubectl(t, "scale", "deployment/evictable", "--replicas=9")
	l.kubectl(t, "rollout", "status", "deployment/evictable", "--timeout=90s")
	before := l.podsOf(t, n.KubeName)
	if len(before) < 2 {
		t.Fatalf("%d pods on %s: too few for the test", len(before), n.Name)
	}
	l.kubectl(t, "cordon", n.KubeName)
	t.Cleanup(func() { l.uncordon(t, n.KubeName) })
	switches := daemon.NewClient(daemon.StateDir(l.name))
	if err := switches.Power(t.Context(), n.Name, daemon.PowerStop); err != nil {
		t.Fatal(err)
	}
	on := false
	power := func(ctx context.Context) {
		if on {
			return
		}
		on = true
		if err := switches.Power(ctx, n.Name, daemon.PowerStart); err != nil {
			t.Errorf("power on %s: %v", n.Name, err)
		}
	}
	t.Cleanup(func() { power(context.Background()) })
	t.Run("a leaked interface is collected and those of other owners are kept", func(t *testing.T) { leakedInterfacesAreCollected(t, l) })
	eventually(t, 2*time.Minute, "the node is NotReady and its pods are ready on other nodes", func(t testing.TB) error {
		var pods corev1.PodList
		l.get(t, &pods, "pods", "-l", "app=evictable")
		elsewhere := 0
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Spec.NodeName != n.KubeName && podIsReady(p) {
				elsewhere++
			}
		}
		if elsewhere != 9 {
			return notYet("%d of 9 pods are ready on other nodes", elsewhere)
		}
		return nil
	})
	power(t.Context())
	l.nodeIsReady(t, n.KubeName, 2*time.Minute)
	l.uncordon(t, n.KubeName)
	// The machine has the same addresses as before: leftovers would conflict.
	l.podOn(t, "after-power", n.KubeName)
	eventually(t, 2*time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error {
		if left := l.onNode(t, "app=evictable", n.KubeName); left > 0 {
			return notYet("%d earlier pods are still on %s", left, n.Name)
		}
		return l.stateAgrees(t)
	})
}

// onNode counts the pods of a selector on a node.
func (l lab) onNode(t testing.TB, selector, node string) int {
	t.Helper()
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-l", selector, "--field-selector", "spec.nodeName="+node)
	return len(pods.Items)
}

func podIsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func nodeReboots(t *testing.T, l lab) {
	n := l.lastNode(t)
	l.podOn(t, "before-reboot", n.KubeName)
	if _, err := l.account(t).RebootInstances(t.Context(), &ec2.RebootInstancesInput{InstanceIds: []string{string(n.InstanceID)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the node has booted again", func(t testing.TB) error {
		now := l.lastNode(t)
		if now.State != daemon.NodeRunning || now.BootID == n.BootID {
			return notYet("state %s, boot %s", now.State, now.BootID)
		}
		return nil
	})
	l.nodeIsReady(t, n.KubeName, 2*time.Minute)
	l.remove(t, "pod/before-reboot", "--force")
	l.podOn(t, "after-reboot", n.KubeName)
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
}

func nodeTerminates(t *testing.T, l lab) {
	n := l.lastNode(t)
	l.podOn(t, "doomed", n.KubeName)
	if _, err := l.account(t).TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{string(n.InstanceID)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the Node object is gone", func(t testing.TB) error {
		if names := strings.Fields(l.kubectl(t, "get", "nodes", "-o", "name")); slices.Contains(names, "node/"+n.KubeName) {
			return notYet("it still exists")
		}
		return nil
	})
	eventually(t, 2*time.Minute, "no interface of the instance is left", func(t testing.TB) error {
		for _, eni := range l.interfaces(t) {
			if eni.Attachment != nil && aws.ToString(eni.Attachment.InstanceId) == string(n.InstanceID) {
				return notYet("%s is %s", aws.ToString(eni.NetworkInterfaceId), eni.Status)
			}
			for _, tag := range eni.TagSet {
				if aws.ToString(tag.Value) == string(n.InstanceID) {
					return notYet("%s is %s and tagged with the instance", aws.ToString(eni.NetworkInterfaceId), eni.Status)
				}
			}
		}
		return nil
	})
}
