//go:build netns

package daemon

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/test/testns"
)

// A daemon that stops before it had a world must not take a running lab of the same name
// down with it: the tests of this package did that to the demo's API server.
func TestALabThatNeverHadAWorldRemovesNoNamespace(t *testing.T) {
	another := testns.New(t, "cp")
	name := strings.TrimSuffix(strings.TrimPrefix(another.Name, "tl-"), "-cp")
	if NetNS(name, "cp") != another.Name {
		t.Fatalf("%s is not the control plane's namespace of a lab %s", another.Name, name)
	}
	newLab(Options{Name: name}, slog.New(slog.DiscardHandler)).close()
	if _, err := os.Stat(netns.Path(another.Name)); err != nil {
		t.Error(err)
	}
}
