package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// whileNodesMove is a cluster in which the DaemonSet selects n1 and n2 as overlays/eks-migration
// does, and that has another node with labels and five pods.
func whileNodesMove(labels map[string]string) clusterState {
	in := healthy()
	in.agent.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}},
			{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate", "hybrid", "auto"}},
			{Key: "trunkline.dev/cni", Operator: corev1.NodeSelectorOpIn, Values: []string{"trunkline"}},
		}}},
	}}}
	for i := range in.nodes {
		in.nodes[i].Labels = map[string]string{"kubernetes.io/os": "linux", "trunkline.dev/cni": "trunkline"}
	}
	in.nodes = append(in.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: labels}})
	for range 5 {
		in.pods = append(in.pods, corev1.Pod{Spec: corev1.PodSpec{NodeName: "other"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	}
	return in
}

// On a mixed cluster the status was never without errors, and an agent that is missing was one
// of many.
func TestNodesOfAnotherNetworkAreListedAndAreNoErrors(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"left to AWS's CNI": {"kubernetes.io/os": "linux"},
		"between the two":   {"kubernetes.io/os": "linux", "trunkline.dev/cni": "none"},
		"Fargate":           {"kubernetes.io/os": "linux", "trunkline.dev/cni": "trunkline", "eks.amazonaws.com/compute-type": "fargate"},
		"hybrid":            {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "hybrid"},
		"EKS Auto Mode":     {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "auto"},
		"Windows":           {"kubernetes.io/os": "windows"},
	} {
		t.Run(name, func(t *testing.T) {
			s := summarise(whileNodesMove(labels), now())
			if !s.Ready() || !slices.Equal(s.NotServed, []string{"other"}) || s.Pods != s.PodsManaged || len(s.Nodes) != 2 {
				t.Errorf("ready %v, errors %q, not served %q, %d of %d pods managed, %d nodes", s.Ready(), s.Wrong(), s.NotServed, s.PodsManaged, s.Pods, len(s.Nodes))
			}
			var out bytes.Buffer
			WriteStatus(&out, s)
			if line := "- Nodes       1 not served by Trunkline, because its DaemonSet does not select them: other\n"; !strings.Contains(out.String(), line) {
				t.Errorf("no line %q in\n%s", line, out.String())
			}
		})
	}
}

func TestASelectedNodeWithoutAnAgentIsAnErrorStill(t *testing.T) {
	s := summarise(whileNodesMove(map[string]string{"kubernetes.io/os": "linux", "trunkline.dev/cni": "trunkline"}), now())
	if wrong := s.Wrong(); len(s.NotServed) != 0 || len(wrong) != 1 || !strings.Contains(wrong[0], "node other: no report") {
		t.Errorf("not served %q, errors %q", s.NotServed, wrong)
	}
}

// An agent that leaves deletes its report. One that was killed does not, and AWS's daemon must
// not start.
func TestANodeThatItsAgentHasNotLeftIsAnError(t *testing.T) {
	in := whileNodesMove(map[string]string{"kubernetes.io/os": "linux"})
	in.networks = append(in.networks, report("other", 0))
	if wrong := summarise(in, now()).Wrong(); len(wrong) != 1 || !strings.Contains(wrong[0], "its agent has not left it") {
		t.Errorf("errors %q", wrong)
	}
}

// marked gives a node the condition that an agent writes, and deletes when it leaves.
func marked(n *corev1.Node) {
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "TrunklineReady"})
}

// The reports go with the definition of their kind, which `kubectl delete -k` deletes.
func TestANodeThatWasNotLeftIsAnErrorWithoutItsReport(t *testing.T) {
	in := whileNodesMove(map[string]string{"kubernetes.io/os": "linux"})
	marked(&in.nodes[2])
	if wrong := summarise(in, now()).Wrong(); len(wrong) != 1 || !strings.Contains(wrong[0], "node other: the DaemonSet does not select it, and its agent has not left it") {
		t.Errorf("errors %q", wrong)
	}
	in = clusterState{nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}}
	in.nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "FlannelIsUp"}}
	marked(&in.nodes[1])
	var of []string
	for _, wrong := range summarise(in, now()).Wrong() {
		if strings.HasPrefix(wrong, "node ") {
			of = append(of, wrong)
		}
	}
	if len(of) != 1 || !strings.HasPrefix(of[0], "node n2: Trunkline is not installed, and its agent has not left the node") {
		t.Errorf("errors %q", of)
	}
}

func TestALongListIsCut(t *testing.T) {
	var names []string
	for i := range 7 {
		names = append(names, fmt.Sprint("n", i))
	}
	for n, want := range map[int]string{1: "n0", 5: "n0, n1, n2, n3, n4", 7: "n0, n1, n2, n3, n4 and 2 more"} {
		if got := some(names[:n]); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
