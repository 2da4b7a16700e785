//go:build netns && vmguest

package agent

import (
	"os"
	"strings"
	"testing"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/test/node"
)

// missingEnv is the variable of a guest with the module that is missing, which a message must name.
const missingEnv = "TRUNKLINE_MISSING"

// The kernel lacks something that policies need: it is missing in this guest, and nothing pretends
// that it is.
func TestAKernelThatLacksAFeatureIsReportedByItsName(t *testing.T) {
	missing, _ := os.LookupEnv(missingEnv)
	n := node.New(t, node.Config{Plugin: builtPlugin()})
	p := &policed{n, t, apiServer(t, n)}
	p.namespace("default")
	p.start()
	a, b := p.add("a", "a"), p.add("b", "b")
	p.reaches("without a policy", a, b, 80)
	p.server.Put(networkPolicies, onlyFromA())
	p.reported("CannotEnforce")

	p.server.bind("late")
	if err := p.Add(p.NewPod("late")); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("ADD: %v, want a refusal that names %s", err, missing)
	}
	p.reaches("pods that ran before", a, b, 80)

	client, err := kube.FromREST(p.server.REST())
	if err != nil {
		t.Fatal(err)
	}
	status, err := cli.GatherStatus(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	cli.WriteStatus(&text, status)
	t.Logf("trunkline status:\n%s", text.String())
	for _, want := range []string{"not enforced on node1 (CannotEnforce): 1 of NetworkPolicy", trunkline.ConditionPoliciesEnforced + "=False CannotEnforce", missing} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("trunkline status does not have %q", want)
		}
	}
}
