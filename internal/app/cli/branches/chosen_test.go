package branches

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

// Where each node has a mode of its own, a pod is explained by what it was wired with, and by the mode of its node
// with the reason.
func TestAPodIsExplainedByTheModeThatWasChosenForItsNode(t *testing.T) {
	on := func(mode trunkline.GroupMode) trunkline.PodGroups {
		return trunkline.PodGroups{Mode: mode, Reason: "Why", Message: "of a cause", NodeEnforces: true, VPCID: "vpc-1", GroupLimit: 5}
	}
	known := func(o *Objects) {
		o.Groups = []trunkline.SecurityGroup{groupOf(groupDB, "vpc-1"), groupOf(groupAll, "vpc-1")}
	}
	waits := func(o *Objects) {
		o.Pod.Status.Phase, o.Pod.Annotations, o.CNINode.Status.Trunkline.Branches = corev1.PodPending, nil, nil
	}
	without := func(o *Objects) { o.Pod.Annotations, o.CNINode.Status.Trunkline.Branches = nil, nil; known(o) }
	for name, c := range map[string]struct {
		mode   trunkline.GroupMode
		change func(*Objects)
		by     Enforcer
		why    string
		want   string // the start of the first that is missing; empty: none
	}{
		"own, on a branch":                   {trunkline.GroupsOwn, func(*Objects) {}, ByVPC, "auto, and own on node-a (Why): of a cause", ""},
		"own, it waits":                      {trunkline.GroupsOwn, waits, ByVPC, "own on node-a", "the controller has no branch for the pod"},
		"own, wired before without a branch": {trunkline.GroupsOwn, without, ByNode, "the pod was wired without a branch before", ""},
		"ebpf":                               {trunkline.GroupsEBPF, without, ByNode, "auto, and ebpf on node-a (Why): of a cause", ""},
		"ebpf, it waits":                     {trunkline.GroupsEBPF, waits, ByNode, "ebpf on node-a", "node node-a cannot enforce"},
		"ebpf, on a branch from before":      {trunkline.GroupsEBPF, func(*Objects) {}, ByVPC, "the pod got its branch before", ""},
		"managed, with AWS's annotation":     {trunkline.GroupsManaged, func(o *Objects) { o.CNINode.Status.Trunkline = nil }, ByVPC, "managed on node-a", "node node-a has no trunk"},
		"undecided, it waits":                {trunkline.GroupsUndecided, waits, "", "undecided on node-a", "node node-a does not start the pod until it is decided how it enforces groups: of a cause"},
		"undecided, wired before":            {trunkline.GroupsUndecided, without, ByNode, "wired without a branch before", ""},
		"undecided, on a branch":             {trunkline.GroupsUndecided, func(*Objects) {}, ByVPC, "undecided on node-a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := shop()
			o.Networks = []trunkline.NodeNetwork{networkOf("node-a", on(c.mode))}
			o.Networks[0].Status.ObservedAt.Time = noon
			o.Now = noon
			c.change(&o)
			e := Explain(o)
			if e.EnforcedBy != c.by || !strings.Contains(e.EnforcedWhy, c.why) {
				t.Errorf("enforced by %q: %s; want %q: %s", e.EnforcedBy, e.EnforcedWhy, c.by, c.why)
			}
			if c.want == "" && len(e.Missing) > 0 || c.want != "" && (len(e.Missing) == 0 || !strings.HasPrefix(e.Missing[0], c.want)) {
				t.Errorf("missing %q, want %q", e.Missing, c.want)
			}
		})
	}
}
