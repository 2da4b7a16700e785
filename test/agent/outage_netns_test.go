//go:build netns

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// nitro is a root directory in which the firmware names an instance.
func nitro(t *testing.T, instance string) (flag string) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "sys/devices/virtual/dmi/id")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "board_asset_tag"), []byte(instance+"\n"), 0o444)); err != nil {
		t.Fatal(err)
	}
	return node.RootFlag + "=" + root
}

// The disk of a node with pods becomes an image, and another instance boots from it. Its
// journal has addresses that the first instance's pods use.
func TestAJournalOnTheImageOfAnotherInstanceIsSetAside(t *testing.T) {
	t.Parallel()
	for name, firmware := range map[string]bool{"the firmware names the instance": true, "no firmware": false} {
		t.Run(name, func(t *testing.T) {
			first, second := node.New(t, node.Config{}), node.New(t, node.Config{Seed: 2})
			first.StartAgent()
			first.UntilReady()
			a := first.NewPod("a")
			if err := first.Add(a); err != nil {
				t.Fatal(err)
			}
			first.Kill()
			if err := os.CopyFS(filepath.Join(second.Dir, "state"), os.DirFS(filepath.Join(first.Dir, "state"))); err != nil {
				t.Fatal(err)
			}
			second.Reboot() // the boot ID is another one
			flags := []string{}
			own := second.State().InstanceNamed("node1").ID
			if firmware {
				flags = append(flags, nitro(t, string(own)))
			}
			second.StartAgent(flags...)
			if err := second.Agent.Wait(); err == nil {
				t.Error("the agent ended with success")
			}
			if log := agentLog(t, second); !strings.Contains(log, "the journal is that of another instance; its file is kept as ") || strings.Contains(log, "msg=serving") {
				t.Errorf("log of the first start:\n%s", log)
			}
			second.StartAgent(flags...)
			second.UntilReady()
			if kept, err := filepath.Glob(filepath.Join(second.Dir, "state/journal/log.damaged-*")); err != nil || len(kept) != 1 {
				t.Errorf("files set aside: %v, %v", kept, err)
			}
			if !strings.Contains(agentLog(t, second), "node=JournalLost") {
				t.Error("no event on the node")
			}
			b := second.NewPod("b")
			if err := second.Add(b); err != nil {
				t.Fatal(err)
			}
			ledger := second.Ledger()
			if ledger.Instance != string(own) || !second.InVPC(b.Addr) {
				t.Errorf("%s is not an address of %s; the ledger is that of %s", b.Addr, own, ledger.Instance)
			}
			for _, e := range ledger.ENIs {
				for _, address := range e.Addresses {
					if !second.InVPC(address.Address) {
						t.Errorf("%s is in the ledger and not this instance's", address.Address)
					}
				}
			}
		})
	}
}

// Neither metadata nor EC2 answers, and the firmware does not name the instance: the
// journal may be that of another one until metadata answers. EC2 is not needed.
func TestARebootedNodeWithoutFirmwareServesOnceMetadataConfirmsIt(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent("warm-ips=2")
	n.UntilReady()
	n.Until("a free address", func() error {
		if node.Count(n.Ledger(), "free") < 1 {
			return errors.New("none")
		}
		return nil
	})
	n.Kill()
	n.Reboot()
	unreachable := []faults.Call{{Action: "*", Do: faults.Hang, Count: -1}}
	if err := n.Faults().Set(faults.Plan{Calls: unreachable, Metadata: &faults.Metadata{Do: faults.Hang}}); err != nil {
		t.Fatal(err)
	}
	n.StartAgent("warm-ips=2", "backend=eni")
	n.Until("the agent waits for metadata", func() error {
		if !strings.Contains(agentLog(t, n), `msg="start is waiting" for="instance metadata"`) {
			return errors.New("not logged")
		}
		return nil
	})
	if err := n.Get("/readyz", nil); err == nil {
		t.Error("the agent serves from a journal that may be another instance's")
	}
	if err := n.Faults().Set(faults.Plan{Calls: unreachable}); err != nil {
		t.Fatal(err)
	}
	n.UntilReady()
	a := n.NewPod("a")
	if err := n.Add(a); err != nil {
		t.Fatal(err)
	}
	if err := a.Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Error(err)
	}
}

func TestTheAgentWorksUnderAWSsManagedPolicyWithOneWarning(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{Policy: []byte(node.ManagedPolicy)})
	n.StartAgent("warm-ips=1", "headroom=0")
	n.UntilReady()
	for i := range 7 { // more than the primary interface has addresses for
		if err := n.Add(n.NewPod(fmt.Sprint("p", i))); err != nil {
			t.Fatal(err)
		}
	}
	ledger := n.Ledger()
	if len(ledger.ENIs) < 2 || len(ledger.Warnings) != 1 || !strings.Contains(ledger.Warnings[0], "ec2:DescribeRouteTables") || len(ledger.Outages) > 0 {
		t.Errorf("%d interfaces, warnings %q, outages %v", len(ledger.ENIs), ledger.Warnings, ledger.Outages)
	}
	for _, call := range n.Calls().Since(0, "") {
		if call.Code != "" && call.Action != "DescribeRouteTables" {
			t.Errorf("%s was refused: %s %s", call.Action, call.Code, call.Message)
		}
	}
}
