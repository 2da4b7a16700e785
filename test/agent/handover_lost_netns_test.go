//go:build netns

package agent

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

// wantAdopted checks that AWS's daemon adopts every address in use and gives none to a new pod.
func wantAdopted(t *testing.T, n *node.Node, inUse []netip.Addr) {
	t.Helper()
	raw, err := os.ReadFile(n.Checkpoint())
	if err != nil {
		t.Error(err)
		return
	}
	d := awsDaemon(t, n, raw)
	if len(d.Assigned) != len(inUse) || len(d.Stale)+len(d.Unknown) > 0 {
		t.Errorf("of %d addresses in use %d are adopted, stale %v, unknown %v", len(inUse), len(d.Assigned), d.Stale, d.Unknown)
	}
	if twice := givenTwice(d, inUse); len(twice) > 0 {
		t.Errorf("given twice: %v", twice)
	}
}

// Without the journal, the kernel alone says which pods of ours run.
func TestANodeIsLeftWithEveryAddressInUseAlthoughTheJournalIsLost(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{Type: "m5.xlarge"})
	n.StartAgent()
	n.UntilReady()
	_, inUse := wired(t, n, 20)
	n.Kill()
	path := filepath.Join(n.Dir, "state", "journal", "log")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(content, '\n') + 1
	for _, c := range []struct {
		what    string
		content []byte
	}{
		{"it is damaged", slices.Concat(content[:first], []byte("{}\n"), content[first:])},
		{"it is empty", nil},
	} {
		if err := errors.Join(os.RemoveAll(n.Checkpoint()), os.WriteFile(path, c.content, 0o600)); err != nil {
			t.Fatal(err)
		}
		t.Log(c.what)
		uninstall(t, n, 0)
		wantAdopted(t, n, inUse)
	}
	// The node has been left: what AWS's daemon has written since is its own.
	theirs := []byte(`{"version":"vpc-cni-ipam/1","allocations":[]}`)
	if err := os.WriteFile(n.Checkpoint(), theirs, 0o600); err != nil {
		t.Fatal(err)
	}
	uninstall(t, n, 0)
	if raw, err := os.ReadFile(n.Checkpoint()); err != nil || !bytes.Equal(raw, theirs) {
		t.Errorf("after another uninstall: %s, %v", raw, err)
	}
}

// Such an agent has not observed EC2 yet, and its ledger has no interface.
func TestAnAgentWithoutJournalLeavesDuringAnOutageOfEC2(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{Type: "m5.xlarge"})
	n.StartAgent()
	n.UntilReady()
	_, inUse := wired(t, n, 20)
	n.Kill()
	if err := os.RemoveAll(filepath.Join(n.Dir, "state", "journal")); err != nil {
		t.Fatal(err)
	}
	if err := n.Faults().Set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Hang, Count: -1}}}); err != nil {
		t.Fatal(err)
	}
	n.StartAgent("removed")
	n.Until("the agent waits for EC2", func() error {
		_, err := os.Stat(filepath.Join(n.Dir, "state", "journal", "log"))
		return err
	})
	n.Stop()
	wantAdopted(t, n, inUse)
}
