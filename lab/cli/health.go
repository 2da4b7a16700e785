package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trunkline/trunkline/lab/daemon"
)

// healthTimeout bounds each request about the health of a lab.
const healthTimeout = 3 * time.Second

// isReady is what health says of a part that is ready.
const isReady = "ready"

// health is what a lab's API server answers now. The phases of a status are those of the
// last `up`.
type health struct {
	// API is "ready", or why the API server is not: its answer to /readyz, or the error.
	API string `json:"api"`
	// Nodes is by names in lab.yaml: "ready", or why the node is not. Without nodes that are
	// switched off, and empty if the API server does not answer.
	Nodes map[string]string `json:"nodes,omitempty"`
}

// askHealth asks the lab's API server.
func askHealth(ctx context.Context, st daemon.Status) health {
	if st.Endpoints.Kubeconfig == "" {
		return health{API: "not started"}
	}
	config, err := clientcmd.BuildConfigFromFlags("", st.Endpoints.Kubeconfig)
	if err != nil {
		return health{API: err.Error()}
	}
	config.Timeout = healthTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return health{API: err.Error()}
	}
	answer, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		return health{API: strings.Join(strings.Fields(string(answer)+" "+err.Error()), " ")}
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return health{API: err.Error()}
	}
	return health{API: isReady, Nodes: nodeHealth(st.Nodes, list.Items)}
}

// nodeHealth returns the health of the nodes that are not switched off.
func nodeHealth(nodes []daemon.NodeStatus, objects []corev1.Node) map[string]string {
	out := map[string]string{}
	for _, n := range nodes {
		if n.State == daemon.NodeStopped && n.Error == "" || n.State == daemon.NodeTerminated {
			continue
		}
		out[n.Name] = "not registered"
		for _, object := range objects {
			if object.Name == n.KubeName {
				out[n.Name] = readiness(object.Status.Conditions)
			}
		}
	}
	return out
}

func readiness(conditions []corev1.NodeCondition) string {
	for _, c := range conditions {
		switch {
		case c.Type != corev1.NodeReady:
		case c.Status == corev1.ConditionTrue:
			return isReady
		default:
			return strings.TrimSpace("not ready: " + c.Reason + " " + c.Message)
		}
	}
	return "not ready: no condition reported"
}

// problem returns what is not healthy in a lab that is up; empty if all is. Without a
// deployed network plugin, nodes are not ready by intent.
func (h health) problem(st daemon.Status) string {
	if h.API != isReady {
		return "its API server is not ready: " + h.API
	}
	for _, p := range st.Phases {
		if p.Phase == daemon.PhaseDeploy && p.State == daemon.StateSkipped {
			return ""
		}
	}
	var out []string
	for _, n := range st.Nodes {
		if now := h.Nodes[n.Name]; now != "" && now != isReady {
			out = append(out, fmt.Sprintf("%s is %s", n.Name, now))
		}
	}
	return strings.Join(out, "; ")
}

// healthy reads the status until the lab is up and healthy, or failed, or wait has passed.
func (l labs) healthy(ctx context.Context, lab string, wait time.Duration) (daemon.Status, health, error) {
	deadline := time.Now().Add(wait)
	st, err := l.await(ctx, lab, wait)
	if err != nil {
		return st, health{}, err
	}
	now := askHealth(ctx, st)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for st.State == daemon.StateDone && now.problem(st) != "" && time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return st, now, ctx.Err()
		case <-tick.C:
		}
		if st, err = l.status(ctx, lab); err != nil {
			return st, now, err
		}
		now = askHealth(ctx, st)
	}
	return st, now, nil
}
