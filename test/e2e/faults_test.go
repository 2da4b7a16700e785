//go:build lab

package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/sim/faults"
)

// failures makes parts of a lab fail.
type failures struct {
	lab
	deployments []string // of Trunkline
}

// apiFaults replaces the faults of the API server.
func (f failures) apiFaults(t testing.TB, list ...apiproxy.Fault) {
	t.Helper()
	if err := daemon.NewClient(daemon.StateDir(f.name)).SetAPIFaults(t.Context(), list); err != nil {
		t.Fatal(err)
	}
}

// ec2Faults replaces the faults of EC2.
func (f failures) ec2Faults(t testing.TB, plan faults.Plan) {
	t.Helper()
	body, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, f.status(t).Endpoints.Admin+"/faults", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("set faults of EC2: %s", resp.Status)
	}
}

// restart kills all pods of workloads, which start again with cold caches.
func (f failures) restart(t testing.TB, workloads ...string) {
	t.Helper()
	for _, w := range workloads {
		_, name, _ := strings.Cut(w, "/")
		f.kubectl(t, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name="+name, "--force", "--grace-period=0", "--wait=false")
	}
}

// restartAWSs restarts the model of AWS's VPC resource controller.
func (f failures) restartAWSs(t testing.TB) {
	t.Helper()
	if err := daemon.NewClient(daemon.StateDir(f.name)).RestartResourceController(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ready waits until workloads run as they are configured.
func (f failures) ready(t testing.TB, workloads ...string) {
	t.Helper()
	f.readyWithin(t, 150*time.Second, workloads...)
}

// readyWithin does so within a time for each.
func (f failures) readyWithin(t testing.TB, limit time.Duration, workloads ...string) {
	t.Helper()
	for _, w := range workloads {
		f.run(t, limit+30*time.Second, "kubectl", "-n", "kube-system", "rollout", "status", w, "--timeout="+limit.String())
	}
}

// daemons are all workloads of Trunkline.
func (f failures) daemons() []string { return append(slices.Clone(f.deployments), agents) }

// scale sets the replicas of the deployments. With none, their pods are killed.
func (f failures) scale(t *testing.T, replicas int) {
	for _, w := range f.deployments {
		f.kubectl(t, "-n", "kube-system", "scale", w, "--replicas", string('0'+rune(replicas)))
	}
	if replicas == 0 {
		f.restart(t, f.deployments...)
	}
	f.ready(t, f.deployments...)
}

// uncheck turns off what nodes do for security groups of pods.
func (f failures) uncheck(t *testing.T) {
	f.kubectl(t, "-n", "kube-system", "set", "env", agents, "TRUNKLINE_SECURITY_GROUPS_FOR_PODS=off")
	f.ready(t, agents)
}

// unadmit removes what admission has compiled, and admission.
func (f failures) unadmit(t *testing.T) {
	f.scale(t, 0)
	for _, kind := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingwebhookconfigurations"} {
		f.kubectl(t, "delete", kind, "-l", "trunkline.dev/managed-by=trunkline-admission")
	}
}

// image sets the version of all daemons.
func (f failures) image(t *testing.T, tag string) {
	for _, w := range f.daemons() {
		f.kubectl(t, "-n", "kube-system", "set", "image", w, "*=trunkline.dev/trunkline:"+tag)
	}
}
