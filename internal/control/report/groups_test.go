package report

import (
	"log/slog"
	"testing"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/config"
)

func TestANodeReportsWhoEnforcesTheGroupsOfItsPods(t *testing.T) {
	for _, tt := range []struct {
		flags map[string]string
		want  trunkline.PodGroups
	}{
		{nil, trunkline.PodGroups{Mode: trunkline.GroupsOff, GroupLimit: 5}},
		{map[string]string{"security-groups-for-pods": "managed"}, trunkline.PodGroups{Mode: trunkline.GroupsManaged, NodeEnforces: true, GroupLimit: 5}},
		{map[string]string{"security-groups-for-pods": "own", "pod-security-group-late-match": "report", "groups-per-interface": "16"}, trunkline.PodGroups{Mode: trunkline.GroupsOwn, GroupLimit: 16}},
		{map[string]string{"security-groups-for-pods": "own", "pod-security-group-late-match": "enforce"}, trunkline.PodGroups{Mode: trunkline.GroupsOwn, NodeEnforces: true, GroupLimit: 5}},
		{map[string]string{"security-groups-for-pods": "ebpf"}, trunkline.PodGroups{Mode: trunkline.GroupsEBPF, NodeEnforces: true, GroupLimit: 5}},
	} {
		cfg, err := config.Load(config.Sources{Flags: tt.flags})
		if err != nil {
			t.Fatal(err)
		}
		s := statetest.Open(t, t.TempDir())
		r := New(cfg, Deps{Log: slog.New(slog.DiscardHandler), State: s, Cluster: unbraked{}, Backend: config.BackendENI, Problems: noProblems, Enforcement: off})
		if got := r.status().PodGroups; got == nil || *got != tt.want {
			t.Errorf("%v: before EC2 shows the VPC %+v, want %+v", tt.flags, got, tt.want)
		}
		statetest.Update(t, s, func(tx *state.Tx) error { return tx.PutNode(state.Node{VPC: "vpc-1"}) })
		tt.want.VPCID = "vpc-1"
		if got := r.status().PodGroups; got == nil || *got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.flags, got, tt.want)
		}
	}
}
