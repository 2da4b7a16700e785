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
	"github.com/trunkline/trunkline/internal/core/config/defaults"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// DefaultIntrospection is the default introspection address of a node's own agent.
const DefaultIntrospection = defaults.IntrospectionAddress

// Bounds of one read of a ledger: its duration, and its size in bytes.
const (
	ledgerTimeout = 5 * time.Second
	maxLedger     = 8 << 20
)

// ReadLocalLedger reads the ledger of the agent on this node from its introspection
// address.
func ReadLocalLedger(ctx context.Context, address string) (introspection.Ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	var ledger introspection.Ledger
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+introspection.LedgerPath, nil)
	if err != nil {
		return ledger, fmt.Errorf("query the agent: %w", err)
	}
	client := http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return ledger, fmt.Errorf("query the agent of this node at %s (does it run here?): %w", address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return ledger, fmt.Errorf("query the agent at %s for %s: status %s", address, introspection.LedgerPath, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLedger)).Decode(&ledger); err != nil {
		return ledger, fmt.Errorf("read the agent's answer: %w", err)
	}
	return ledger, nil
}

// ReadLedger reads the ledger of any node's agent through the API server, by running
// `trunkline show` in the agent's pod.
func ReadLedger(ctx context.Context, c *kube.Client, node string) (introspection.Ledger, error) {
	var ledger introspection.Ledger
	pod, err := agentPod(ctx, c, node)
	if err != nil {
		return ledger, err
	}
	out, err := execute(ctx, c, podCommand{
		namespace: pod.Namespace, pod: pod.Name, container: "agent",
		argv: []string{"/trunkline", "show", "addresses", "--local", "-o", "json"},
	})
	if err != nil {
		return ledger, fmt.Errorf("query the agent of node %s: %w: %s", node, err, strings.TrimSpace(out.Stderr))
	}
	if err := json.Unmarshal([]byte(out.Stdout), &ledger); err != nil {
		return ledger, fmt.Errorf("read the answer of the agent of node %s: %w", node, err)
	}
	return ledger, nil
}

func agentPod(ctx context.Context, c *kube.Client, node string) (*corev1.Pod, error) {
	pods, err := c.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: nameLabel + "=" + agentName, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("list the agent's pods on node %s: %w", node, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no running %s pod on node %s", agentName, node)
}
