//go:build netns

package agent

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// The agent is restarted while a pod's ADD waits, and the policy was created meanwhile: the copy on disk
// selects no pod. Red: without the wait for the lists of the API server.
func TestAPolicyThatIsNewerThanTheCopyOfARestartedAgentIsNotMissed(t *testing.T) {
	t.Parallel()
	b := newBranched(t, endpoint.Strict)
	b.start("add-wait=5s")
	web := b.putPlain("web", "web")
	b.Until("the copy knows the pod", func() error {
		text, err := os.ReadFile(filepath.Join(b.Dir, "state", "cluster.json"))
		if err == nil && !strings.Contains(string(text), "web") {
			err = errors.New("not yet")
		}
		return err
	})
	b.Kill()
	b.sgp("web", "web")
	b.server.RefuseNext("/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", http.StatusServiceUnavailable, 1)
	b.start("add-wait=5s")
	refusedWith(t, "a selected pod without a branch", b.Add(web), cnirpc.CodeRefused, "selected by web")
}
