//go:build netns

package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
)

// RunInstances creates a primary interface without the instance's tag, and the node's role
// may change only interfaces that have it. Until the controller has bound it, pods get
// addresses of other interfaces.
func TestANodeWithAnUnboundPrimaryInterfaceServesPodsFromOthers(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{UnboundPrimary: true})
	primary := n.State().Primary(n.State().InstanceNamed("node1").ID).ID
	n.StartAgent()
	n.UntilReady()
	for i := range 6 {
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		if !n.InVPC(p.Addr) {
			t.Errorf("%s is not an address of the node at EC2", p.Addr)
		}
	}
	if got := len(n.State().Interfaces[primary].IPv4.Addresses); got != 1 {
		t.Errorf("the unbound primary interface has %d addresses, want its own alone", got)
	}
	refused := n.Calls().Since(0, "AssignPrivateIpAddresses")
	for _, c := range refused {
		if c.Params["NetworkInterfaceId"] == string(primary) && c.Code != "UnauthorizedOperation" {
			t.Errorf("EC2 answered %q to a change of the unbound interface", c.Code)
		}
	}
	if len(refused) > 2 {
		t.Errorf("%d calls, want a pause of a minute after a refusal for permission", len(refused))
	}
}

// An interface that another principal tagged as this node's own must not become its own:
// it may be in use elsewhere, and one that does not fit would be deleted.
func TestAPlantedInterfaceIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	me := n.State().InstanceNamed("node1")
	planted, err := n.Cloud().CreateInterface(cloud.NewInterface{
		Subnet: me.Subnet, Requester: "AROAAAAAAAAAAAAAAAAA:i-0123456789abcdef0", Tags: cloud.Tags{
			vpc.TagManagedBy: vpc.ManagedBy, vpc.TagInstanceID: string(me.ID), vpc.TagClusterName: "test",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.StartAgent()
	n.UntilReady()
	var pods []*node.Pod
	for i := range 12 { // enough for every interface of the instance
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	for _, p := range pods {
		if err := n.Del(p); err != nil {
			t.Fatal(err)
		}
	}
	now := n.State().Interfaces[planted.ID]
	if now == nil || now.Attachment != nil || len(now.IPv4.Addresses) != 1 {
		t.Errorf("the planted interface is %+v, want it as it was made", now)
	}
	n.Until("the planted interface is reported", func() error {
		if log := agentLog(t, n); !strings.Contains(log, string(planted.ID)) || !strings.Contains(log, ":i-0123456789abcdef0 made it") {
			return errors.New("no word of it in the log")
		}
		return nil
	})
}
