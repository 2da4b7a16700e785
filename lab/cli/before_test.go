package cli

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/lab/spec"
)

// AWS's daemon is installed in place of Trunkline, the manifests of Trunkline are in a
// directory of their own, and the nodes' role has both policies.
func TestALabThatStartsWithAWSsDaemonHasTrunklineForLater(t *testing.T) {
	want, p := planOf(t, spec.Spec{Nodes: []spec.Node{{Before: spec.BeforeAWSNode}}})
	if policies := slices.Sorted(maps.Keys(want.Roles[0].Policies)); !slices.Equal(policies, []string{"AmazonEKS_CNI_Policy", "node-policy"}) {
		t.Errorf("role %s has %v", want.Roles[0].Name, policies)
	}
	stateDir := t.TempDir()
	if err := writeDeploy(want, p, stateDir); err != nil {
		t.Fatal(err)
	}
	for dir, has := range map[string]map[string]bool{
		deployDir(stateDir):  {"lab/manifests/aws-node": true, "deploy/overlays/lab": false, "AWS_ROLE_ARN": false, "kube-dns": true},
		productDir(stateDir): {"lab/manifests": false, "deploy/overlays/lab": true, "AWS_ROLE_ARN": true, "kube-dns": false, "deploy/components/migration": true},
	} {
		text := mustRead(t, dir)
		for part, want := range has {
			if strings.Contains(text, part) != want {
				t.Errorf("%s has %q: want %v\n%s", dir, part, want, text)
			}
		}
	}
	if strings.Contains(mustRead(t, deployDir(stateDir)), "components/eks-nodes") {
		t.Error("the agent is kept off nodes although none has another network")
	}
	if hint := migrationHint(record{Lab: want}, stateDir, "lab"); !strings.Contains(hint, productDir(stateDir)) {
		t.Errorf("hint %q", hint)
	}
}

func mustRead(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTrunklineIsKeptOffNodesOfAnotherNetwork(t *testing.T) {
	want, p := planOf(t, spec.Spec{Nodes: []spec.Node{{}, {Network: spec.NetworkOther}}})
	if want.Nodes[0].OtherNetwork || !want.Nodes[1].OtherNetwork {
		t.Errorf("%+v", want.Nodes)
	}
	stateDir := t.TempDir()
	if err := writeDeploy(want, p, stateDir); err != nil {
		t.Fatal(err)
	}
	if text := mustRead(t, deployDir(stateDir)); !strings.Contains(text, "deploy/components/eks-nodes") {
		t.Error(text)
	}
}
