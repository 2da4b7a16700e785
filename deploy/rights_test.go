package deploy_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

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

// Roles with a label that aggregates them extend the cluster's own roles "view", "edit" and
// "admin", which every user of a namespace may have.
func TestARoleThatExtendsARoleOfTheClusterOnlyReads(t *testing.T) {
	seen := 0
	for _, m := range manifests(t) {
		role, ok := m.obj.(*rbacv1.ClusterRole)
		if !ok || !slices.ContainsFunc(slices.Collect(maps.Keys(role.Labels)), func(label string) bool {
			return strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-")
		}) {
			continue
		}
		seen++
		for _, r := range role.Rules {
			for _, verb := range r.Verbs {
				if !slices.Contains([]string{"get", "list", "watch"}, verb) {
					t.Errorf("%s: ClusterRole %s may %s %v", m.file, role.Name, verb, r.Resources)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no manifest extends a role of the cluster: the check is not valid")
	}
}
