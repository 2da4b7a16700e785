package spec

import (
	"cmp"
	"os"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/cloud"
)

func TestSecurityGroupsForPodsNeedAnAccountThatMayUseTrunks(t *testing.T) {
	for _, c := range []struct {
		lab  string
		want string
		err  string
	}{
		{"", "", ""},
		{"{securityGroupsForPods: own, quotas: {trunkCalls: true}}", PodGroupsOwn, ""},
		{"{securityGroupsForPods: managed}", PodGroupsManaged, ""},
		{"{securityGroupsForPods: managed, cloud: none, nodes: [{name: a}]}", "", "only a lab with a cloud"},
		{"{securityGroupsForPods: ebpf}", PodGroupsEBPF, ""},
		{"{securityGroupsForPods: ebpf, cloud: none, nodes: [{name: a}]}", "", "only a lab with a cloud"},
		{"{securityGroupsForPods: own}", "", "quotas.trunkCalls: true"},
		{"{securityGroupsForPods: auto}", PodGroupsAuto, ""},
		{"{securityGroupsForPods: auto, quotas: {trunkCalls: true}}", PodGroupsAuto, ""},
		{"{securityGroupsForPods: theirs, quotas: {trunkCalls: true}}", "", "must be own, managed, ebpf or auto, or absent"},
		{"{securityGroupsForPods: own, cloud: none, quotas: {trunkCalls: true}, nodes: [{name: a}]}", "", "only a lab with a cloud"},
	} {
		s, err := Parse([]byte(c.lab))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve()
		if got := r.PodGroups; got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("lab.yaml %q: %v, %v; want %v, %q", c.lab, got, err, c.want, c.err)
		}
	}
}

func TestALabHasAProxyBeforeItsAPIServerWhenAsked(t *testing.T) {
	for yaml, want := range map[string]bool{"": false, "kubernetes: {apiProxy: true}": true} {
		s, err := Parse([]byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.Resolve(); err != nil || r.APIProxy != want {
			t.Errorf("%q: %v, %v", yaml, r.APIProxy, err)
		}
	}
}

// EC2 chooses ids by the seed, so that manifests can name them.
func TestTheExamplesPoliciesNameGroupsOfItsLabsAndOfTheDefaultOne(t *testing.T) {
	text, err := os.ReadFile("../../examples/security-groups/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	labs := map[string]Spec{"": Default()}
	for _, file := range []string{"lab.yaml", "managed.yaml", "without-trunks.yaml", "mixed.yaml"} {
		if labs[file], err = Load("../../examples/security-groups/" + file); err != nil {
			t.Fatal(err)
		}
	}
	for file, s := range labs {
		r, err := s.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"managed.yaml": PodGroupsManaged, "without-trunks.yaml": PodGroupsEBPF, "mixed.yaml": PodGroupsAuto}[file]
		if r.PodGroups != cmp.Or(want, PodGroupsOwn) {
			t.Errorf("%q has security groups for pods by %q", file, r.PodGroups)
		}
		account, err := cloud.New(r.Cloud, cloud.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{GroupClients, GroupDatabase} {
			found := false
			for id, g := range account.State().Groups {
				found = found || g.Name == name && strings.Contains(string(text), "groupIds: ["+string(id)+"]")
			}
			if !found {
				t.Errorf("policies.yaml lacks the id of the group %s of %q", name, file)
			}
		}
	}
}

// A file that says nothing of groups for pods has none, unlike the lab without a file.
func TestOnlyTheLabWithoutAFileHasGroupsForPodsUnasked(t *testing.T) {
	r, err := Default().Resolve()
	if err != nil || r.PodGroups != PodGroupsOwn || !r.Cloud.Quotas.TrunkCalls || r.Nodes[0].MaxPods != 44 { // the trunk takes an interface with 14 addresses
		t.Errorf("without a file: groups for pods %v, quotas %+v, nodes %+v (%v)", r.PodGroups, r.Cloud.Quotas, r.Nodes, err)
	}
	if r, err = (Spec{}).Resolve(); err != nil || r.PodGroups != "" || r.Cloud.Quotas.TrunkCalls || r.Nodes[0].MaxPods != 58 {
		t.Errorf("an empty file: groups for pods %v, quotas %+v, nodes %+v (%v)", r.PodGroups, r.Cloud.Quotas, r.Nodes, err)
	}
}
