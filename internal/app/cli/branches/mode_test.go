package branches

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func networkOf(name string, g trunkline.PodGroups) trunkline.NodeNetwork {
	return trunkline.NodeNetwork{
		TypeMeta:   metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: trunkline.NodeNetworkStatus{PodGroups: &g, Conditions: []metav1.Condition{{
			Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionTrue, Reason: "Enforced",
		}}},
	}
}

func groupOf(id, in string) trunkline.SecurityGroup {
	return trunkline.SecurityGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "SecurityGroup"},
		ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: trunkline.SecurityGroupSpec{VPCID: in, GroupName: "web"},
	}
}

// late is the pod of shop as one that was wired before its policies existed.
func late(g trunkline.PodGroups) Objects {
	o := shop()
	o.Pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	o.Pod.Annotations, o.CNINode.Status.Trunkline.Branches = nil, nil
	o.Networks = []trunkline.NodeNetwork{networkOf("node-a", g)}
	return o
}

// onNode is the pod of shop on a node that enforces its groups, which it knows.
func onNode() Objects {
	o := late(trunkline.PodGroups{Mode: trunkline.GroupsEBPF, NodeEnforces: true, VPCID: "vpc-1", GroupLimit: 5})
	o.CNINode = nil
	o.Groups = []trunkline.SecurityGroup{groupOf(groupDB, "vpc-1"), groupOf(groupAll, "vpc-1")}
	return o
}

func TestAPodOfWhichTheNodeEnforcesTheGroupsNeedsNoBranch(t *testing.T) {
	o := onNode()
	o.Groups[1].Spec.NotUsed = []string{"rule sgr-1: of a peer"}
	e := Explain(o)
	if len(e.Missing) > 0 || e.Mode != trunkline.GroupsEBPF || e.EnforcedBy != ByNode {
		t.Errorf("mode %s, enforced by %s, missing %q", e.Mode, e.EnforcedBy, e.Missing)
	}
	var out strings.Builder
	WriteExplanation(&out, e, noon)
	golden(t, "explain-ebpf.txt", out.String())
}

func TestWhatANodeLacksToEnforceTheGroupsOfAPodIsNamed(t *testing.T) {
	const stops, runs = "the pod does not start until its node knows all of its groups", "the pod keeps the groups that it had, and without any it is cut off"
	for name, c := range map[string]struct {
		change func(*Objects)
		want   []string // parts of each
	}{
		"a group that EC2 does not have, or that was not read": {
			func(o *Objects) { o.Groups = o.Groups[:1] },
			[]string{"node node-a cannot enforce " + groupAll + ": the security group has not been read from EC2 yet: " + runs},
		},
		"the same, and the pod has not started": {
			func(o *Objects) { o.Groups, o.Pod.Status.Phase = o.Groups[1:], corev1.PodPending },
			[]string{"node node-a cannot enforce " + groupDB + ": the security group has not been read from EC2 yet: " + stops},
		},
		"a group that EC2 does not have": {
			func(o *Objects) { o.Groups[0].Spec = trunkline.SecurityGroupSpec{Absent: true} },
			[]string{"node node-a cannot enforce " + groupDB + ": it does not exist in vpc-1: EC2 has no such security group: " + runs},
		},
		"the same, and no VPC": {
			func(o *Objects) {
				o.Groups[0].Spec, o.Networks[0].Status.PodGroups.VPCID = trunkline.SecurityGroupSpec{Absent: true}, ""
			},
			[]string{"node node-a does not know its VPC", "node node-a cannot enforce " + groupDB + ": EC2 has no such security group"},
		},
		"an old report": {
			func(o *Objects) { o.Networks[0].Status.ObservedAt, o.Now = metav1.NewTime(noon), noon.Add(time.Hour) },
			[]string{"the report of node node-a is 1h0m0s old"},
		},
		"a group of another VPC": {
			func(o *Objects) { o.Groups[0].Spec.VPCID = "vpc-2" },
			[]string{"node node-a cannot enforce " + groupDB + ": it does not exist in vpc-1: the security group is of another VPC"},
		},
		"a group that is no id": {
			func(o *Objects) { o.Policies[0].Spec.SecurityGroups.Groups = []string{"default"} },
			[]string{"node node-a cannot enforce default: it is not the id of a security group"},
		},
		"more groups than the node allows": {
			func(o *Objects) { o.Networks[0].Status.PodGroups.GroupLimit = 1 },
			[]string{"the policies give 2 groups, and groups-per-interface of node node-a is 1"},
		},
		"no VPC": {
			func(o *Objects) { o.Networks[0].Status.PodGroups.VPCID = "" },
			[]string{"node node-a does not know its VPC"},
		},
		"a node that enforces no policies": {
			func(o *Objects) {
				o.Networks[0].Status.Conditions[0] = metav1.Condition{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionFalse, Reason: "CannotEnforce", Message: "no BTF"}
			},
			[]string{"node node-a enforces nothing now (CannotEnforce): no BTF"},
		},
		"a service account that does not exist": {
			func(o *Objects) { o.Account = nil },
			[]string{"the pod is refused: SecurityGroupPolicy shop/front: service account web: the service account was not found"},
		},
		"no node":                       {func(o *Objects) { o.Pod.Spec.NodeName = "" }, []string{"the pod is on no node: see `kubectl describe pod`"}},
		"no node, and it asks for more": {func(o *Objects) { o.Pod.Spec.NodeName = ""; request(o) }, []string{"a container requests vpc.amazonaws.com/pod-eni, and no node has it", "the pod is on no node"}},
		"not selected":                  {func(o *Objects) { o.Policies = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := onNode()
			c.change(&o)
			got := Explain(o).Missing
			if len(got) != len(c.want) {
				t.Fatalf("missing %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("missing %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

func request(o *Objects) {
	o.Pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
}

func TestAPodThatWasWiredBeforeItsPolicyIsExplainedByTheModeOfItsNode(t *testing.T) {
	own := trunkline.PodGroups{Mode: trunkline.GroupsOwn, VPCID: "vpc-1", GroupLimit: 5}
	enforced := own
	enforced.NodeEnforces = true
	known := []trunkline.SecurityGroup{groupOf(groupDB, "vpc-1"), groupOf(groupAll, "vpc-1")}
	pending := func(o *Objects) { o.Pod.Status.Phase = corev1.PodPending }
	for name, c := range map[string]struct {
		node   trunkline.PodGroups
		change func(*Objects)
		by     Enforcer
		why    string
		want   string // the start of the first that is missing; empty: none
	}{
		"report":                     {own, func(*Objects) {}, ByNone, "pod-security-group-late-match: report", "the pod was wired before a policy selected it, and runs with the groups of its node: delete"},
		"enforce":                    {enforced, func(o *Objects) { o.Groups = known }, ByNode, "pod-security-group-late-match: enforce", ""},
		"enforce, not known yet":     {enforced, func(*Objects) {}, ByNode, "pod-security-group-late-match: enforce", "node node-a cannot enforce " + groupDB},
		"not wired":                  {enforced, pending, ByVPC, "security-groups-for-pods: own", "no container requests vpc.amazonaws.com/pod-eni"},
		"wired, its image is pulled": {own, func(o *Objects) { pending(o); o.Pod.Status.PodIP = "10.0.0.9" }, ByNone, "wired without a branch", "the pod was wired before"},
		"managed":                    {trunkline.PodGroups{Mode: trunkline.GroupsManaged}, func(*Objects) {}, ByNone, "security-groups-for-pods: managed", "the pod was wired before"},
		"off":                        {trunkline.PodGroups{Mode: trunkline.GroupsOff}, func(*Objects) {}, ByNone, "security-groups-for-pods: off", "nothing enforces the groups, because the agent of node-a reports security-groups-for-pods: off: the pod has"},
		"in kube-system": {own, func(o *Objects) {
			o.Pod.Namespace, o.Account.Namespace = metav1.NamespaceSystem, metav1.NamespaceSystem
			for i := range o.Policies {
				o.Policies[i].Namespace = metav1.NamespaceSystem
			}
		}, ByNone, "security-groups-for-pods: own", "no container requests vpc.amazonaws.com/pod-eni, and in kube-system"},
		"it requests a branch": {enforced, request, ByVPC, "security-groups-for-pods: own", "the controller has no branch for the pod"},
		"no report":            {own, func(o *Objects) { o.Networks = nil }, "", "node node-a reports no mode in its NodeNetwork", "no container requests vpc.amazonaws.com/pod-eni"},
		"an earlier build":     {own, func(o *Objects) { o.Networks[0].Status.PodGroups = nil }, "", "one of an earlier build", "no container requests vpc.amazonaws.com/pod-eni"},
		"no node, and nodes differ": {own, func(o *Objects) {
			o.Pod.Spec.NodeName = ""
			pending(o)
			o.Networks = append(o.Networks, networkOf("node-b", trunkline.PodGroups{Mode: trunkline.GroupsEBPF}))
		}, "", "nodes report no mode, or several", "no container requests vpc.amazonaws.com/pod-eni"},
	} {
		t.Run(name, func(t *testing.T) {
			o := late(c.node)
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

func TestTheModeAndTheGroupsOfANodeAreReadFromTheAPIServer(t *testing.T) {
	const networks, groups = "/apis/trunkline.dev/v1alpha1/nodenetworks", "/apis/trunkline.dev/v1alpha1/securitygroups"
	s, o := kubetest.New(t), onNode()
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	o.Policies[0].Spec.SecurityGroups.Groups = append(o.Policies[0].Spec.SecurityGroups.Groups, "no/id")
	s.Put("/api/v1/pods", o.Pod)
	s.Put("/api/v1/serviceaccounts", o.Account)
	for i := range o.Policies {
		s.Put("/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", &o.Policies[i])
	}
	explain := func() Explanation {
		t.Helper()
		read, err := Read(t.Context(), client, "shop", "web")
		if err != nil {
			t.Fatal(err)
		}
		return Explain(read)
	}
	if e := explain(); e.Mode != "" || len(e.NodeGroups) > 0 {
		t.Errorf("without a report: %+v", e)
	}
	o.Networks[0].Status.ObservedAt = metav1.Now()
	s.Put(networks, &o.Networks[0])
	s.Put(groups, &o.Groups[0])
	e := explain()
	if known := slices.IndexFunc(e.NodeGroups, func(g Group) bool { return g.Known && g.ID == groupDB }); len(e.NodeGroups) != 3 || known < 0 || len(e.Missing) != 2 {
		t.Errorf("groups %+v, missing %q", e.NodeGroups, e.Missing)
	}
	s.Refuse(groups+"/"+groupDB, 403)
	if _, err := Read(t.Context(), client, "shop", "web"); err == nil || !strings.Contains(err.Error(), "read SecurityGroup "+groupDB) {
		t.Errorf("without the right: %v", err)
	}
	o.Pod.Spec.NodeName = ""
	s.Put("/api/v1/pods", o.Pod)
	if e := explain(); e.Mode != trunkline.GroupsEBPF || e.EnforcedBy != ByNode {
		t.Errorf("on no node: %+v", e)
	}
}
