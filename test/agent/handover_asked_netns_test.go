//go:build netns

package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/test/node"
)

// `trunkline handover` has a running agent write the checkpoint. It is of the moment: a pod
// that starts later is in the next one.
func TestTheCheckpointIsWrittenWhenAskedForAndTheAgentGoesOn(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	_, inUse := wired(t, n, 2)
	for range 2 {
		text, err := cli.Handover(t.Context(), n.Socket())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(n.Checkpoint())
		if err != nil {
			t.Fatal(err)
		}
		d := awsDaemon(t, n, raw)
		if len(d.Assigned) != len(inUse) {
			t.Errorf("%d of %d addresses in use are adopted", len(d.Assigned), len(inUse))
		}
		if twice := givenTwice(d, inUse); len(twice) > 0 {
			t.Errorf("given twice: %v", twice)
		}
		if want := fmt.Sprintf("%d addresses in use are in the checkpoint", len(inUse)); !strings.HasPrefix(text, want) {
			t.Errorf("the answer is %q, want %q", text, want)
		}
		late := n.NewPod("late")
		if err := n.Add(late); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(inUse, late.Addr) {
			inUse = append(inUse, late.Addr)
		}
	}
	if problem := n.Get("/readyz", nil); problem != nil {
		t.Errorf("the agent does not serve after it: %v", problem)
	}
	n.Stop()
	if _, err := cli.Handover(t.Context(), n.Socket()); err == nil || !strings.Contains(err.Error(), "trunkline uninstall") {
		t.Errorf("without an agent: %v", err)
	}
}
