package deploy_test

import (
	"os"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// What a stolen token of an agent may read and write at the API server; admission limits
// the writes further (stolen_token_lab_test.go). A change of the file needs a reason.
func TestTheRightsOfAnAgentAreThoseOfTheGolden(t *testing.T) {
	want, err := os.ReadFile("testdata/agent-rights.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(kubetest.Granted(t, "base/agent-rbac.yaml"), "\n") + "\n"; got != string(want) {
		t.Errorf("rights:\n%s\nwant:\n%s", got, want)
	}
}
