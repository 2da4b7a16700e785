//go:build lab

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/daemon"
)

// lastNode is the node that is rebooted and terminated.
func lastNode(t testing.TB, l lab) node {
	t.Helper()
	nodes := l.nodes(t)
	return nodes[len(nodes)-1]
}

func nodeIsDrained(t *testing.T, l lab) {
	n := lastNode(t, l)
	c := startCrowd(t, l, "crowd", "")
	c.scale(t, 12)
	c.rolledOut(t, 90*time.Second)
	l.kubectl(t, "drain", n.KubeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
	t.Cleanup(func() { n.uncordon(t) })
	eventually(t, time.Minute, "the drained node's kernel holds no pod", func(t testing.TB) error {
		if f := n.footprint(t); len(f.Links)+len(f.Route)+len(f.To)+len(f.From) > 0 {
			return notYet("%+v", f)
		}
		return nil
	})
	c.rolledOut(t, 90*time.Second)
}

// evictable are lines of a pod's spec: the pods spread over the nodes and tolerate a
// missing node for five seconds.
const evictable = `      tolerations:
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: evictable}}
`

// nodeWithoutController returns a node that runs no controller of ours.
func nodeWithoutController(t testing.TB, l lab) node {
	t.Helper()
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-n", "kube-system", "-l", controllerLabel)
	for _, n := range l.nodes(t) {
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == n.KubeName }) {
			return n
		}
	}
	t.Fatal("every node runs a controller of ours")
	return node{}
}

// A node with pods loses its power: Kubernetes detects it, the pods move, and when
// the power is back nothing of the earlier pods is left. Detection takes most of a
// minute; meanwhile a leaked interface is collected by controllers on other nodes.
func nodeLosesPower(t *testing.T, l lab) {
	n := nodeWithoutController(t, l)
	c := startCrowd(t, l, "evictable", evictable)
	c.scale(t, 9)
	c.rolledOut(t, 90*time.Second)
	if before := n.pods(t); len(before) < 2 {
		t.Fatalf("%d pods on %s: too few for the test", len(before), n.Name)
	}
	l.kubectl(t, "cordon", n.KubeName)
	t.Cleanup(func() { n.uncordon(t) })
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
		elsewhere := 0
		for _, p := range c.pods(t) {
			if p.Spec.NodeName != n.KubeName && podIsReady(&p) {
				elsewhere++
			}
		}
		if elsewhere != 9 {
			return notYet("%d of 9 pods are ready on other nodes", elsewhere)
		}
		return nil
	})
	power(t.Context())
	n.ready(t, 2*time.Minute)
	n.uncordon(t)
	// The machine has the same addresses as before: leftovers would conflict.
	n.startPod(t, "after-power")
	eventually(t, 2*time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error {
		if left := c.pods(t, "--field-selector", "spec.nodeName="+n.KubeName); len(left) > 0 {
			return notYet("%d earlier pods are still on %s", len(left), n.Name)
		}
		return l.stateAgrees(t)
	})
}

func nodeReboots(t *testing.T, l lab) {
	n := lastNode(t, l)
	n.startPod(t, "before-reboot")
	n.reboot(t)
	l.remove(t, "pod/before-reboot", "--force")
	n.startPod(t, "after-reboot")
	eventually(t, time.Minute, "kernel, EC2 and Kubernetes agree", func(t testing.TB) error { return l.stateAgrees(t) })
}

func nodeTerminates(t *testing.T, l lab) {
	n := lastNode(t, l)
	n.startPod(t, "doomed")
	if _, err := l.account(t).api.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{string(n.InstanceID)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the Node object is gone", func(t testing.TB) error {
		if names := strings.Fields(l.kubectl(t, "get", "nodes", "-o", "name")); slices.Contains(names, "node/"+n.KubeName) {
			return notYet("it still exists")
		}
		return nil
	})
	eventually(t, 2*time.Minute, "no interface of the instance is left", func(t testing.TB) error {
		for _, eni := range l.account(t).interfaces(t) {
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
