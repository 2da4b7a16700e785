//go:build netns

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/test/node"
)

// settled is a little longer than the minute for which the agent trusts its own
// record over a describe.
const settled = 62 * time.Second

func TestAddressesLostAtEC2AreRestored(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes two minutes: the agent trusts its own record for one of them")
	}
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	var pods []*node.Pod
	for i := range 7 { // five on the primary interface of a t3.medium, two on the next
		p := n.NewPod(fmt.Sprint("p", i))
		if err := n.Add(p); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	gateway := netip.MustParseAddr("10.0.0.1")
	stripped, cut := pods[0], pods[6]
	for _, p := range []*node.Pod{stripped, cut} {
		if err := p.Ping(gateway); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, settled)
	for _, i := range n.State().Interfaces {
		for _, a := range i.IPv4.Addresses {
			var err error
			switch a {
			case stripped.Addr:
				err = n.Cloud().Interface(i.ID).UnassignIPv4([]netip.Addr{a}, nil)
			case cut.Addr:
				err = n.Cloud().Detach(i.Attachment.ID)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	until(t, time.Minute, "both pods lose connectivity", func() error {
		if stripped.Ping(gateway) == nil || cut.Ping(gateway) == nil {
			return errors.New("the gateway still answers one of them")
		}
		return nil
	})
	until(t, 5*time.Minute, "both pods are reachable again", func() error {
		return errors.Join(stripped.Ping(gateway), cut.Ping(gateway))
	})
	for _, p := range pods {
		if !n.InVPC(p.Addr) {
			t.Errorf("%s is not an address of the node at EC2", p.Addr)
		}
	}
	raw, err := os.ReadFile(filepath.Join(n.Dir, "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{"pod=default/p0 reason=AddressLost", "node=AddressDrift"} {
		if !strings.Contains(string(raw), event) {
			t.Errorf("no event %q", event)
		}
	}
}

func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// until is Node.Until with a timeout of its own.
func until(t *testing.T, timeout time.Duration, what string, ok func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}
