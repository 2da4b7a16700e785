package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// DefaultIntrospection is where a node's own agent answers.
const DefaultIntrospection = "127.0.0.1:61679"

// bookTimeout bounds one read of a book, maxBook its size in bytes.
const (
	bookTimeout = 5 * time.Second
	maxBook     = 8 << 20
)

// ReadLocalBook asks the agent of the node this runs on. address is
// DefaultIntrospection unless a node is set up otherwise.
func ReadLocalBook(ctx context.Context, address string) (introspection.Ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, bookTimeout)
	defer cancel()
	var book introspection.Ledger
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+introspection.LedgerPath, nil)
	if err != nil {
		return book, fmt.Errorf("ask the agent: %w", err)
	}
	client := http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return book, fmt.Errorf("ask the agent of this node at %s (does it run here?): %w", address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return book, fmt.Errorf("ask the agent at %s for %s: status %s", address, introspection.LedgerPath, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBook)).Decode(&book); err != nil {
		return book, fmt.Errorf("read the agent's answer: %w", err)
	}
	return book, nil
}

// ReadBook asks the agent of a node from anywhere, by running `trunkline show`
// in its pod.
func ReadBook(ctx context.Context, c *kube.Client, node string) (introspection.Ledger, error) {
	var book introspection.Ledger
	pod, err := agentPod(ctx, c, node)
	if err != nil {
		return book, err
	}
	out, err := execute(ctx, c, podCommand{
		namespace: pod.Namespace, pod: pod.Name, container: "agent",
		argv: []string{"/trunkline", "show", "addresses", "--local", "-o", "json"},
	})
	if err != nil {
		return book, fmt.Errorf("ask the agent of node %s: %w: %s", node, err, strings.TrimSpace(out.Stderr))
	}
	if err := json.Unmarshal([]byte(out.Stdout), &book); err != nil {
		return book, fmt.Errorf("read the answer of the agent of node %s: %w", node, err)
	}
	return book, nil
}

func agentPod(ctx context.Context, c *kube.Client, node string) (*corev1.Pod, error) {
	pods, err := c.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: nameLabel + "=" + agentName, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("look for the agent of node %s: %w", node, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no %s pod runs on node %s", agentName, node)
}
