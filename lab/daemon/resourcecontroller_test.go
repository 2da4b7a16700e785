package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/resourcecontroller"
)

func TestARestartOfAWSsControllerNeedsALabWithIt(t *testing.T) {
	_, dir := serving(t, noWorld)
	err := NewClient(dir).RestartResourceController(t.Context())
	if err == nil || !strings.Contains(err.Error(), "securityGroupsForPods: managed in lab.yaml") {
		t.Errorf("restart: %v", err)
	}
}

// A client that restarts the controller while the lab is taken down must not start it again.
func TestAWSsControllerDoesNotStartOnceItWasStopped(t *testing.T) {
	started := 0
	r := &resourceController{create: func() (*resourcecontroller.Controller, error) {
		started++
		return nil, errors.New("not made")
	}}
	if err := r.restart(); err == nil || started != 1 {
		t.Fatalf("restart: %v, created %d times", err, started)
	}
	r.stop()
	if err := r.restart(); err == nil || started != 1 {
		t.Errorf("restart after the stop: %v, created %d times", err, started)
	}
}
