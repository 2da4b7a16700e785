package daemon

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/lab/node"
)

// waitFor returns the wait for the nodes node1 to node3, which have machines in these
// states, and the last progress it reported.
func waitFor(states map[string]NodeState, failure string) (nodeWait, *string) {
	w := nodeWait{machines: newMachines()}
	for i, name := range []string{"node1", "node2", "node3"} {
		w.nodes = append(w.nodes, Node{Name: name})
		state, exists := states[name]
		if !exists {
			continue
		}
		m := newMachine(node.Config{
			Name: name, StateDir: filepath.Join("/state", name),
			Instance: node.Instance{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Name: name},
		}, nil, slog.New(slog.DiscardHandler))
		m.set(nil, state, "")
		if state == NodeStopped {
			m.set(nil, state, failure)
		}
		w.machines.add(m)
	}
	progress := new(string)
	w.detail = func(text string) { *progress = text }
	return w, progress
}

func nodeObject(name string, ready corev1.ConditionStatus) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: ready, Message: "no network plugin"},
	}}}
}

func isReady(n *corev1.Node) bool { return readyCondition(n).Status == corev1.ConditionTrue }

func TestTheWaitNamesTheNodesThatAreNotReadyWithTheReasonAndTheLogs(t *testing.T) {
	w, progress := waitFor(map[string]NodeState{"node1": NodeRunning, "node2": NodeRunning, "node3": NodeRunning}, "")
	have := []corev1.Node{nodeObject("node1", corev1.ConditionTrue), nodeObject("node2", corev1.ConditionFalse)}
	missing, err := w.missing(have, "Ready", isReady)
	if want := "node2, node3 not Ready; node2: no network plugin; kubelet logs are in /state/node2/log"; missing != want || err != nil {
		t.Errorf("missing %q, %v; want %q", missing, err, want)
	}
	if *progress != "1 of 3 Ready" {
		t.Errorf("progress %q", *progress)
	}
}

func TestTheWaitEndsWithoutTheNodesThatAreSwitchedOffOrWereNeverBooted(t *testing.T) {
	w, progress := waitFor(map[string]NodeState{"node1": NodeRunning, "node2": NodeStopped}, "")
	missing, err := w.missing([]corev1.Node{nodeObject("node1", corev1.ConditionTrue)}, "Ready", isReady)
	if missing != "" || err != nil || *progress != "3 of 3 Ready" {
		t.Errorf("missing %q, %v, progress %q", missing, err, *progress)
	}
}

func TestTheWaitFailsWhenANodeCrashes(t *testing.T) {
	w, _ := waitFor(map[string]NodeState{"node1": NodeRunning, "node2": NodeStopped}, "node crashed: no disk")
	if _, err := w.missing(nil, "Ready", isReady); err == nil || !strings.Contains(err.Error(), "node node2: node crashed: no disk") {
		t.Errorf("the wait for a crashed node: %v", err)
	}
}
