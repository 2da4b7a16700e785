//go:build netns

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/test/node"
)

// On EKS with ipFamily ipv6 the instance still has an IPv4 address: the agent would wire
// pods that reach no Service.
func TestAnIPv6ClusterIsRefusedWithoutAChangeOfTheNode(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	server := apiServer(t, n)
	n.StartAgent(node.APIServerFlag+"="+server.url, node.ServiceFlag+"=fd30:1c53:5f8a::1")
	n.Until("the refusal is in the NodeNetwork", func() error {
		var written trunkline.NodeNetwork
		if !server.Get("/apis/trunkline.dev/v1alpha1/nodenetworks", "node1", &written) {
			return errors.New("no NodeNetwork")
		}
		for _, c := range written.Status.Conditions {
			if c.Type == trunkline.ConditionReady && c.Status == metav1.ConditionFalse && c.Reason == "IPv6Cluster" && strings.Contains(c.Message, "fd30:1c53:5f8a::1") {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", written.Status.Conditions)
	})
	n.Until("the refusal is an event", func() error {
		for _, key := range server.Keys("/api/v1/events") {
			var e corev1.Event
			if server.Get("/api/v1/events", key, &e) && e.Reason == "IPv6Cluster" && strings.Contains(e.Message, "ipFamily") {
				return nil
			}
		}
		return fmt.Errorf("events %q", server.Keys("/api/v1/events"))
	})
	if log := agentLog(t, n); !strings.Contains(log, "reason=IPv6Cluster") {
		t.Errorf("the log does not say so:\n%s", log)
	}
	if err := n.Get("/healthz", nil); err != nil {
		t.Errorf("the kubelet would restart the agent again and again: %v", err)
	}
	if err := n.Get("/readyz", nil); err == nil || !strings.Contains(err.Error(), "fd30:1c53:5f8a::1") {
		t.Errorf("the readiness probe: %v; want why the node is not served", err)
	}
	if left, err := os.ReadDir(filepath.Join(n.Dir, "net.d")); err != nil || len(left) > 0 {
		t.Errorf("the configuration directory has %v, %v: the runtime would call the plugin", left, err)
	}
	if _, err := os.Stat(n.Socket()); err == nil {
		t.Error("the agent serves calls")
	}
}
