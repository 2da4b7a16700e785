//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/node"
)

// The runtime was killed while it added a sandbox: it forgets the sandbox, and asks for its
// removal neither by DEL nor by GC.
func TestAnEndpointOfWhichNoDELComesIsRemovedOnceItsPodIsGone(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	server := apiServer(t, n)
	server.bind("kept")
	server.bind("forgotten")
	n.StartAgent(node.APIServerFlag+"="+server.url, "stale-after=2s", "cool-down=1h")
	n.UntilReady()
	kept, forgotten := n.NewPod("kept"), n.NewPod("forgotten")
	for _, p := range []*node.Pod{kept, forgotten} {
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	server.Delete(podPath, "default/forgotten")
	n.Until("the address of the pod that is gone cools down", func() error {
		if got := row(n, forgotten.Addr); got.State != "cooling" {
			return fmt.Errorf("%s is %s", forgotten.Addr, got.State)
		}
		return nil
	})
	if err := forgotten.Run(func() error { return hasLink("eth0") }); err == nil {
		t.Error("the pod's interface is still there")
	}
	if got := row(n, kept.Addr); got.Container != kept.RT.ContainerID {
		t.Errorf("%s of the pod that runs is %s", kept.Addr, got.State)
	}
	if err := kept.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Error(err)
	}
	n.Until("an event on the node", func() error {
		if !strings.Contains(agentLog(t, n), "endpoint removed without a DEL") {
			return errors.New("nothing in the log")
		}
		for _, key := range server.Keys("/api/v1/events") {
			if strings.Contains(key, "node1") {
				return nil
			}
		}
		return fmt.Errorf("events %q", server.Keys("/api/v1/events"))
	})
}
