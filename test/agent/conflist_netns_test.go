//go:build netns

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/test/node"
)

// The directory of CNI configurations cannot be written when the agent starts, as on a full disk
// or a file system that is mounted read-only: the agent answers calls, is not ready, says why,
// and writes the configuration once it can.
func TestAConflistThatCannotBeWrittenAtFirstIsWrittenLater(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	conflist := filepath.Join(n.Dir, "net.d", "10-trunkline.conflist")
	if err := os.Mkdir(conflist, 0o755); err != nil { // no file can replace it
		t.Fatal(err)
	}
	n.StartAgent()
	n.Until("the agent says what keeps it from being ready", func() error {
		err := n.Get("/readyz", nil)
		if err == nil {
			t.Fatal("it is ready, and the runtime has no configuration")
		}
		if !strings.Contains(err.Error(), "cannot be read or written") {
			return err
		}
		return nil
	})
	if err := os.Remove(conflist); err != nil {
		t.Fatal(err)
	}
	n.UntilReady()
	if info, err := os.Stat(conflist); err != nil || !info.Mode().IsRegular() {
		t.Errorf("ready with %v, %v", info, err)
	}
	if err := n.Add(n.NewPod("a")); err != nil {
		t.Error(err)
	}
}
