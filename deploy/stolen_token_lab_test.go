//go:build lab

package deploy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// theft is what a thief of an agent's token tries.
type theft struct {
	name string
	do   func(ctx context.Context, c *kube.Client) error
}

// patchStatus patches the status of a Node.
func patchStatus(node, patch string) func(context.Context, *kube.Client) error {
	return func(ctx context.Context, c *kube.Client) error {
		_, err := c.Core.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
}

// patchNetwork applies a NodeNetwork, or its status.
func patchNetwork(node, status string, sub ...string) func(context.Context, *kube.Client) error {
	body := fmt.Sprintf(`{"apiVersion": "trunkline.dev/v1alpha1", "kind": "NodeNetwork", "metadata": {"name": %q}, "status": %s}`, node, status)
	return func(ctx context.Context, c *kube.Client) error {
		return c.Trunkline.Patch(types.ApplyPatchType).Resource(trunkline.ResourceNodeNetworks).Name(node).SubResource(sub...).
			Param("fieldManager", kube.FieldOwner).Param("force", "true").Body([]byte(body)).Do(ctx).Error()
	}
}

// newEvent is an event with a source.
func newEvent(name, component, host string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "p"},
		Source:         corev1.EventSource{Component: component, Host: host}, Reason: "R", Message: "m", Type: corev1.EventTypeNormal,
	}
}

// createEvent creates an event with a source.
func createEvent(name, component, host string) func(context.Context, *kube.Client) error {
	return func(ctx context.Context, c *kube.Client) error {
		e := newEvent(name, component, host)
		_, err := c.Core.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
		return err
	}
}

func patchEvent(name string) func(context.Context, *kube.Client) error {
	return func(ctx context.Context, c *kube.Client) error {
		_, err := c.Core.CoreV1().Events("default").Patch(ctx, name, types.MergePatchType, []byte(`{"message": "changed"}`), metav1.PatchOptions{})
		return err
	}
}

// forbidden are what a token of n1's agent must not do.
func forbidden() []theft {
	const unavailable = `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True", "reason": "Stolen"}]}}`
	return []theft{
		{"freeze the scheduling of another node", patchStatus("n2", unavailable)},
		{"report for another node", patchNetwork("n2", `{"instanceID": "i-n2"}`, "status")},
		{"create the report of another node", patchNetwork("n3", `{}`)},
		{"attract pods by a label", patchStatus("n1", `{"metadata": {"labels": {"zone": "trusted"}}}`)},
		{"change an annotation", patchStatus("n1", `{"metadata": {"annotations": {"a": "b"}}}`)},
		{"hold its Node by a finalizer", patchStatus("n1", `{"metadata": {"finalizers": ["trunkline.dev/stolen"]}}`)},
		{"attract pods by capacity", patchStatus("n1", `{"status": {"capacity": {"cpu": "1000"}}}`)},
		{"take the API server's connections to another node", patchStatus("n1", `{"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}}`)},
		{"hide that its kubelet is gone", patchStatus("n1", `{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Stolen"}]}}`)},
		{"write an event as another node's agent", createEvent("as-n2", kube.Component, "n2")},
		{"write an event as the kubelet", createEvent("as-kubelet", "kubelet", "n1")},
		{"rewrite an event of the kubelet", patchEvent("kubelets")},
		{"rewrite an event of another node's agent", patchEvent("n2s")},
		{"freeze EC2 calls of all nodes", func(ctx context.Context, c *kube.Client) error {
			return kube.PutBrake(ctx, c, trunkline.Brake{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeAll, Reason: "stolen"}})
		}},
		{"release a brake", func(ctx context.Context, c *kube.Client) error { return kube.DeleteBrake(ctx, c, "night") }},
		{"delete a report", func(ctx context.Context, c *kube.Client) error { return kube.DeleteReport(ctx, c, "n2") }},
		{"delete a pod", func(ctx context.Context, c *kube.Client) error {
			return c.Core.CoreV1().Pods("kube-system").Delete(ctx, "trunkline-agent-on-n1", metav1.DeleteOptions{})
		}},
		{"cordon a node", func(ctx context.Context, c *kube.Client) error {
			_, err := c.Core.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, []byte(`{"spec": {"unschedulable": true}}`), metav1.PatchOptions{})
			return err
		}},
		{"read secrets", func(ctx context.Context, c *kube.Client) error {
			_, err := c.Core.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
			return err
		}},
	}
}

// untilAdmissionIsEnforced waits until the API server enforces each admission policy, which
// takes it some seconds after their creation. It changes nothing.
func untilAdmissionIsEnforced(t *testing.T, agent *kube.Client) {
	t.Helper()
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	patchNode := func(name, patch string) error {
		_, err := agent.Core.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), dry, "status")
		return err
	}
	for policy, refused := range map[string]func() error{
		"own-node": func() error {
			return patchNode("n2", `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True"}]}}`)
		},
		"node-condition": func() error { return patchNode("n1", `{"metadata": {"labels": {"zone": "trusted"}}}`) },
		"own-events": func() error {
			e := newEvent("probe", "kubelet", "n1")
			_, err := agent.Core.CoreV1().Events(e.Namespace).Create(t.Context(), e, metav1.CreateOptions{DryRun: dry.DryRun})
			return err
		},
	} {
		until(t, "policy "+policy+" is enforced", func() bool { return apierrors.IsForbidden(refused()) })
	}
}

// A token that was stolen from n1's agent changes nothing of other nodes, and of n1 only
// what its agent reports. What it may read is in testdata/agent-rights.txt.
func TestAStolenAgentTokenChangesNothingOfOtherNodes(t *testing.T) {
	c := newCluster(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		c.addNode(t, n)
	}
	admin, err := kube.NewClient(kube.Access{Kubeconfig: c.Kubeconfig()})
	if err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func(context.Context, *kube.Client) error{
		"the kubelet's event":        createEvent("kubelets", "kubelet", "n1"),
		"the event of n2's agent":    createEvent("n2s", kube.Component, "n2"),
		"the report of n2":           patchNetwork("n2", `{}`),
		"the status of n1's kubelet": patchStatus("n1", `{"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletGone"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}`),
	} {
		if err := prepare(t.Context(), admin); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if err := kube.PutBrake(t.Context(), admin, trunkline.Brake{ObjectMeta: metav1.ObjectMeta{Name: "night"}, Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeRelease, Reason: "test"}}); err != nil {
		t.Fatal(err)
	}
	thief := c.as(t, "trunkline-agent", "n1")
	untilAdmissionIsEnforced(t, thief)
	for _, try := range forbidden() {
		if err := try.do(t.Context(), thief); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", try.name, err)
		}
	}
	// What the agent does needs none of that.
	for _, allowed := range []theft{
		{"report for its node", patchNetwork("n1", `{}`)},
		{"report its status", patchNetwork("n1", `{"instanceID": "i-n1"}`, "status")},
		{"set its condition", patchStatus("n1", `{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "PoolReady"}]}}`)},
		{"write its event", createEvent("own", kube.Component, "n1")},
		{"count its event", patchEvent("own")},
	} {
		if err := allowed.do(t.Context(), thief); err != nil {
			t.Errorf("%s: %v", allowed.name, err)
		}
	}
	n, err := admin.Core.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(n.Status.Conditions); !strings.Contains(got, "KubeletGone") || !strings.Contains(got, "PoolReady") {
		t.Errorf("conditions %s", got)
	}
}
