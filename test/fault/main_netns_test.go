//go:build netns

package fault

import (
	"os"
	"testing"

	"github.com/trunkline/trunkline/test/node"
)

func TestMain(m *testing.M) {
	serveTracer()
	node.ServeAgent()
	os.Exit(m.Run())
}
