package cli

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	nodesPath    = "/api/v1/nodes"
	networksPath = "/apis/trunkline.dev/v1alpha1/nodenetworks"
	setsPath     = "/apis/apps/v1/daemonsets"
)

// leftBehind is a cluster with a DaemonSet that selects trunkline.dev/cni=trunkline. The node n has
// no agent, an old report and the agent's condition, and a pod that is older than the report.
type leftBehind struct {
	*kubetest.Server
	client *kube.Client
}

func newLeftBehind(t *testing.T) leftBehind {
	t.Helper()
	c := leftBehind{Server: kubetest.New(t)}
	var err error
	if c.client, err = kube.FromREST(c.REST()); err != nil {
		t.Fatal(err)
	}
	c.Put(setsPath, &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: agentName},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{"trunkline.dev/cni": "trunkline"}}}},
	})
	c.putNode(nil)
	c.putReport(time.Hour)
	c.putPod("default", "web", nil, 2*time.Hour)
	return c
}

func (c leftBehind) putNode(labels map[string]string) {
	c.Put(nodesPath, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: kube.ReasonReady},
		}},
	})
}

func (c leftBehind) putReport(age time.Duration) {
	c.Put(networksPath, &trunkline.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: trunkline.NodeNetworkStatus{ObservedAt: metav1.NewTime(time.Now().Add(-age))},
	})
}

func (c leftBehind) putPod(namespace, name string, labels map[string]string, age time.Duration) {
	c.Put(podsPath, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec:       corev1.PodSpec{NodeName: "n", HostNetwork: labels[nameLabel] == agentName}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	})
}

// kept returns what an agent wrote about the node and is still there.
func (c leftBehind) kept() (out []string) {
	if slices.Contains(c.Keys(networksPath), "n") {
		out = append(out, "report")
	}
	var n corev1.Node
	if c.Get(nodesPath, "n", &n) && notLeft(&n) {
		out = append(out, "condition")
	}
	return out
}

func TestWhatAnAgentWroteAboutANodeItNoLongerServesIsDeleted(t *testing.T) {
	c := newLeftBehind(t)
	c.Delete(podsPath, "default/web")
	c.putPod("default", "later", nil, 30*time.Minute) // another CNI has wired it
	deleted, err := Forget(t.Context(), c.client, "n", false)
	if want := []string{"NodeNetwork n", "condition NetworkUnavailable of the Node"}; err != nil || !slices.Equal(deleted, want) {
		t.Fatalf("%q, %v; want %q", deleted, err, want)
	}
	var n corev1.Node
	if !c.Get(nodesPath, "n", &n) || len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Type != corev1.NodeReady || len(c.kept()) > 0 {
		t.Errorf("conditions %+v, kept %q", n.Status.Conditions, c.kept())
	}
	if deleted, err := Forget(t.Context(), c.client, "n", false); err != nil || len(deleted) > 0 {
		t.Errorf("again: %q, %v; want nothing", deleted, err)
	}
}

// After `kubectl delete -k` there is neither a DaemonSet nor a report. `trunkline uninstall` has
// no access to the API server: only the operator knows that it has succeeded.
func TestANodeThatWasUninstalledIsForgottenWithItsPods(t *testing.T) {
	c := newLeftBehind(t)
	c.Delete(setsPath, systemNamespace+"/"+agentName)
	c.Delete(networksPath, "n")
	if _, err := Forget(t.Context(), c.client, "n", false); err == nil || !strings.Contains(err.Error(), "default/web") {
		t.Errorf("%v, want a refusal that names the pod", err)
	}
	if deleted, err := Forget(t.Context(), c.client, "n", true); err != nil || len(deleted) != 1 || len(c.kept()) > 0 {
		t.Errorf("%q, %v, kept %q", deleted, err, c.kept())
	}
}

// The controller does this, but not where none is installed.
func TestTheReportOfANodeThatIsGoneIsDeleted(t *testing.T) {
	c := newLeftBehind(t)
	c.Delete(nodesPath, "n")
	if deleted, err := Forget(t.Context(), c.client, "n", false); err != nil || !slices.Equal(deleted, []string{"NodeNetwork n"}) {
		t.Errorf("%q, %v", deleted, err)
	}
	if _, err := Forget(t.Context(), c.client, "n", false); err == nil || !strings.Contains(err.Error(), "neither a Node nor a NodeNetwork") {
		t.Errorf("a name that nothing has: %v", err)
	}
}

func TestANodeInServiceIsNotForgotten(t *testing.T) {
	serves := map[string]string{"trunkline.dev/cni": "trunkline"}
	for name, tc := range map[string]struct {
		change      func(leftBehind)
		uninstalled bool
		want        string
	}{
		"an agent's pod is there": {func(c leftBehind) {
			c.putPod(systemNamespace, "trunkline-agent-x", map[string]string{nameLabel: agentName}, time.Hour)
		}, true, "pod kube-system/trunkline-agent-x of the agent is on the node"},
		"its agent reports":             {func(c leftBehind) { c.putReport(time.Minute) }, true, "and may still run: try again once the report is older than 3m0s"},
		"its agent reports, no Node":    {func(c leftBehind) { c.Delete(nodesPath, "n"); c.putReport(time.Minute) }, true, "and may still run: try again once the report is older than 3m0s"},
		"the DaemonSet selects it":      {func(c leftBehind) { c.putNode(serves) }, true, "kubectl delete node n first"},
		"pods that Trunkline wired run": {func(leftBehind) {}, false, "1 of its pods may have been wired by Trunkline, and another CNI would give their addresses to new pods: default/web"},
		"a pod was wired after the report was written": {func(c leftBehind) {
			c.Delete(podsPath, "default/web")
			c.putPod("default", "new", nil, 59*time.Minute)
		}, false, "default/new"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLeftBehind(t)
			tc.change(c)
			before := c.kept()
			deleted, err := Forget(t.Context(), c.client, "n", tc.uninstalled)
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(deleted) > 0 || !slices.Equal(c.kept(), before) {
				t.Errorf("deleted %q, %v; want %q; kept %q of %q", deleted, err, tc.want, c.kept(), before)
			}
		})
	}
}

func TestPodsWithoutAnAddressOfTheirOwnDoNotKeepANode(t *testing.T) {
	c := newLeftBehind(t)
	c.Delete(podsPath, "default/web")
	ended := corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	host := corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", HostNetwork: true}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	traces, err := kube.ReadTraces(t.Context(), c.client, "n")
	if err != nil {
		t.Fatal(err)
	}
	traces.Pods = append(traces.Pods, ended, host)
	if why := inService(nil, traces, false, time.Now()); why != "" {
		t.Error(why)
	}
}

// An agent that started between the check and the deletion has written again.
func TestWhatAnAgentWroteMeanwhileIsKept(t *testing.T) {
	c := newLeftBehind(t)
	traces, err := kube.ReadTraces(t.Context(), c.client, "n")
	if err != nil {
		t.Fatal(err)
	}
	c.putReport(0)
	c.putNode(nil)
	if err := traces.Remove(t.Context(), c.client); err == nil || !slices.Equal(c.kept(), []string{"report", "condition"}) {
		t.Errorf("%v, kept %q", err, c.kept())
	}
}

func TestForgetUsesTheRightsOfItsRoleAndNoOther(t *testing.T) {
	c := newLeftBehind(t)
	if _, err := Forget(context.WithoutCancel(t.Context()), c.client, "n", true); err != nil {
		t.Fatal(err)
	}
	if granted := kubetest.Granted(t, "../../../deploy/base/forget-rbac.yaml"); !slices.Equal(c.Used(), granted) {
		t.Errorf("used:    %q\ngranted: %q", c.Used(), granted)
	}
}

func TestTheReportOfANodeThatIsGoneIsAnErrorOnceTheControllerWouldHaveDeletedIt(t *testing.T) {
	in := healthy()
	in.networks = append(in.networks, report("gone", 9*time.Minute))
	if s := summarise(in, now()); !s.Ready() {
		t.Errorf("errors %q", s.Wrong())
	}
	in.networks[2] = report("gone", 11*time.Minute)
	if wrong := summarise(in, now()).Wrong(); !slices.Equal(wrong, []string{"node gone: the Node is gone and its report is left: trunkline forget gone"}) {
		t.Errorf("errors %q", wrong)
	}
}
