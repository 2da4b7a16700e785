package daemon

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/controlplane"
)

func TestFaultsOfTheAPIServerNeedALabWithAProxy(t *testing.T) {
	l, dir := serving(t, noWorld)
	c := NewClient(dir)
	refused := func(want string) {
		t.Helper()
		if _, err := c.APIFaults(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults: %v, want %s", err, want)
		}
		err := c.SetAPIFaults(t.Context(), apiproxy.Faults{{Path: "/", Do: apiproxy.Hang}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("set faults: %v, want %s", err, want)
		}
	}
	refused("the control plane is not up")
	l.setControlPlane(&controlplane.ControlPlane{})
	refused("kubernetes.apiProxy in lab.yaml")
}
