package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

func TestTheStatusOfANodeSaysWhoMakesBranchesAndWhyNot(t *testing.T) {
	asked := vpcresources.CNINodeSpec{Features: []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}}}
	own := func(l vpcresources.BranchLedger) vpcresources.CNINode {
		l.InstanceID = "i-0123456789abcdef0"
		return vpcresources.CNINode{Spec: asked, Status: vpcresources.CNINodeStatus{Trunkline: &l}}
	}
	for name, tt := range map[string]struct {
		node          vpcresources.CNINode
		note, refused string
	}{
		"no branches wanted":  {vpcresources.CNINode{}, "", ""},
		"the account may not": {own(vpcresources.BranchLedger{Backoffs: []vpcresources.BackoffRecord{{Key: "trunk", Message: "OperationNotPermitted"}}}), "", "OperationNotPermitted"},
		"own, before a pod":   {own(vpcresources.BranchLedger{}), "own, because", ""},
		"own":                 {own(vpcresources.BranchLedger{Trunk: &vpcresources.TrunkRecord{ENIID: "eni-0123456789abcdef0", Phase: vpcresources.TrunkReady}}), "trunk eni-0123456789abcdef0 is Ready", ""},
		"managed":             {vpcresources.CNINode{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{vpcresources.FinalizerAWS}}, Spec: asked}, "managed, because", ""},
		"no record yet":       {vpcresources.CNINode{Spec: asked}, "no controller has recorded", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			of := in.nodes[0].Name
			tt.node.Name = of
			in.cniNodes = []vpcresources.CNINode{tt.node}
			s := summarise(in, now())
			var notes []string
			for _, n := range s.Nodes {
				if n.Node == of {
					notes = n.Notes
				}
			}
			if got := strings.Join(notes, "; "); !strings.Contains(got, tt.note) {
				t.Errorf("notes %q, want %q", got, tt.note)
			}
			if wrong := strings.Join(s.Wrong(), "; "); (tt.refused == "") != s.Ready() || !strings.Contains(wrong, tt.refused) {
				t.Errorf("errors %q, want %q", wrong, tt.refused)
			}
		})
	}
}

// The API server accepts records that the controller refuses, as one that was edited by hand.
func TestTheStatusHasRecordsOfBranchesThatTheControllerRefuses(t *testing.T) {
	in := healthy()
	l := vpcresources.BranchLedger{InstanceID: "i-0123456789abcdef0", VLANs: []vpcresources.VLANRecord{{VLANID: 3, Owner: "a"}, {VLANID: 3, Owner: "b"}}}
	in.cniNodes = []vpcresources.CNINode{{ObjectMeta: metav1.ObjectMeta{Name: in.nodes[0].Name}, Status: vpcresources.CNINodeStatus{Trunkline: &l}}}
	s := summarise(in, now())
	if got := strings.Join(s.Wrong(), "; "); s.Ready() || !strings.Contains(got, "CNINode "+in.nodes[0].Name) || !strings.Contains(got, "the record of branches is refused") {
		t.Errorf("errors %q", got)
	}
}

func TestTheStatusHasTheModeThatWasChosenForANode(t *testing.T) {
	for name, c := range map[string]struct {
		groups      trunkline.PodGroups
		note, wrong string
	}{
		"a setting":     {trunkline.PodGroups{Mode: trunkline.GroupsOwn}, "", ""},
		"chosen":        {trunkline.PodGroups{Mode: trunkline.GroupsEBPF, Reason: "InstanceTypeWithoutTrunk", Message: "t3"}, "security groups for pods: ebpf (InstanceTypeWithoutTrunk): t3", ""},
		"undecided":     {trunkline.PodGroups{Mode: trunkline.GroupsUndecided, Reason: "NotDecided", Message: "no CNINode"}, "", "security groups for pods: undecided (NotDecided): no CNINode"},
		"a wrong label": {trunkline.PodGroups{Mode: trunkline.GroupsOwn, Reason: "InvalidLabel", Message: "x"}, "", "security groups for pods: own (InvalidLabel): x"},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			in.networks[0].Status.PodGroups = &c.groups
			s := summarise(in, now())
			var notes []string
			for _, n := range s.Nodes {
				if n.Node == in.networks[0].Name {
					notes = n.Notes
				}
			}
			if got := strings.Join(notes, "; "); !strings.Contains(got, c.note) || c.note == "" && strings.Contains(got, "security groups") {
				t.Errorf("notes %q, want %q", got, c.note)
			}
			if wrong := strings.Join(s.Wrong(), "; "); (c.wrong == "") != s.Ready() || !strings.Contains(wrong, c.wrong) {
				t.Errorf("errors %q, want %q", wrong, c.wrong)
			}
		})
	}
}
