package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Agent is the agent of a node: this node's own, by its socket, or any, through the API server.
type Agent struct {
	Client *kube.Client
	Node   string // empty: this node's
	Socket string // of this node's
}

// Query writes the answer to a GET of a path at the agent's debug socket to out, as it comes,
// until the answer or ctx ends. Through the API server, `trunkline policy query` runs in the
// agent's pod.
func (a Agent) Query(ctx context.Context, path string, out io.Writer) error {
	if a.Node == "" {
		answer, err := openAgent(ctx, a.Socket, "GET", path, "does it run here?")
		if err != nil {
			return err
		}
		defer answer.Close()
		if _, err := io.Copy(out, answer); err != nil && ctx.Err() == nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		return nil
	}
	pod, err := agentPod(ctx, a.Client, a.Node)
	if err != nil {
		return err
	}
	var stderr lockedBuffer
	err = stream(ctx, a.Client, podCommand{
		namespace: pod.Namespace, pod: pod.Name, container: "agent", argv: []string{"/trunkline", "policy", "query", path},
	}, out, &stderr)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("query the agent of node %s: %w: %s", a.Node, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

func (a Agent) name() string {
	if a.Node == "" {
		return "this node"
	}
	return "node " + a.Node
}

// Agents are the agents of nodes, by name; of all nodes that run one if none is named.
func Agents(ctx context.Context, c *kube.Client, nodes []string) (list []Agent, err error) {
	if len(nodes) == 0 {
		pods, err := c.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: nameLabel + "=" + agentName})
		if err != nil {
			return nil, fmt.Errorf("list the agent's pods: %w", err)
		}
		for i := range pods.Items {
			if node := pods.Items[i].Spec.NodeName; node != "" {
				nodes = append(nodes, node)
			}
		}
		slices.Sort(nodes)
		nodes = slices.Compact(nodes)
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no node runs %s", agentName)
	}
	for _, node := range nodes {
		list = append(list, Agent{Client: c, Node: node})
	}
	return list, nil
}

// eachAgent calls f for agents, eight at a time, and returns the errors by the agents' order.
func eachAgent(agents []Agent, f func(i int, a Agent) error) []error {
	const most = 8
	errs := make([]error, len(agents))
	slots := make(chan struct{}, most)
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = f(i, a)
		})
	}
	wg.Wait()
	return errs
}
