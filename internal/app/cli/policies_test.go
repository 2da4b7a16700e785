package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

func TestTheStatusSaysWhichPoliciesAreEnforcedAndOnWhichNodesTheyAreNot(t *testing.T) {
	off := metav1.Condition{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionFalse, Reason: trunkline.ReasonPolicyOff}
	for name, c := range map[string]struct {
		found   []string
		prepare func(*clusterState)
		want    string // the lines about policies
	}{
		"no policies":   {nil, nil, ""},
		"enforced":      {[]string{"3 of NetworkPolicy", "1 of PolicyEndpoint"}, nil, "✓ Policies    enforced: 3 of NetworkPolicy"},
		"off on a node": {[]string{"3 of NetworkPolicy"}, func(in *clusterState) { in.networks[1].Status.Conditions[2] = off }, "! Policies    not enforced on n2 (PolicyOff): 3 of NetworkPolicy"},
		"with a fault on a node": {
			[]string{"3 of NetworkPolicy"},
			func(in *clusterState) {
				in.networks[1].Status.Conditions[2] = metav1.Condition{
					Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionTrue, Reason: trunkline.ReasonPolicyFaults, Message: "with faults: pod a/b is cut off",
				}
			},
			"✓ Policies    enforced: 3 of NetworkPolicy; ! Policies    on n2 with faults: pod a/b is cut off",
		},
		"an agent of an earlier version": {
			[]string{"3 of NetworkPolicy"},
			func(in *clusterState) { in.networks[0].Status.Conditions = in.networks[0].Status.Conditions[:2] },
			"! Policies    not enforced on n1 (its agent reports nothing about policies): 3 of NetworkPolicy",
		},
		"of another kind": {[]string{"2 of ClusterNetworkPolicy"}, nil, "! Policies    not enforced: 2 of ClusterNetworkPolicy, which Trunkline does not read"},
		"unreadable":      {[]string{unknownPolicies + "forbidden"}, nil, "! Policies    an unknown number, because of: forbidden"},
	} {
		in := healthy()
		in.policies = c.found
		if c.prepare != nil {
			c.prepare(&in)
		}
		s := summarise(in, now())
		if !s.Ready() {
			t.Errorf("%s: it is no error: %v", name, s.Wrong())
		}
		var out strings.Builder
		WriteStatus(&out, s)
		var got []string
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, " Policies ") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
