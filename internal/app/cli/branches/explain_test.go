package branches

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

var update = flag.Bool("update", false, "write golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

const (
	groupDB   = "sg-0123456789abcdef0"
	groupAll  = "sg-0fedcba9876543210"
	instance  = "i-0123456789abcdef0"
	branchENI = "eni-0aaaaaaaaaaaaaaa1"
	named     = `[{"eniId":"eni-0aaaaaaaaaaaaaaa1","ifAddress":"02:00:00:00:00:07","privateIp":"10.0.1.7","ipv6Addr":"","vlanId":3,"subnetCidr":"10.0.0.0/20","subnetV6Cidr":"","associationID":"trunk-assoc-0aaaaaaaaaaaaaaa1"}]`
)

var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(noon.Add(-d)) }

// shop is a pod that has all that its two policies give it.
func shop() Objects {
	one := corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
	return Objects{
		Pod: &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web", UID: "uid-web", Labels: map[string]string{"app": "web"},
				Annotations: map[string]string{vpc.AnnotationPodENI: named},
			},
			Spec: corev1.PodSpec{
				NodeName: "node-a", ServiceAccountName: "web",
				Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Limits: one, Requests: one}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		},
		Account: &corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{"tier": "front"}},
		},
		Policies: []v1beta1.SecurityGroupPolicy{
			policyOf("db-clients", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, nil, groupDB),
			policyOf("front", nil, &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}}, groupAll, groupDB),
			policyOf("workers", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "worker"}}, nil, "sg-0000000000000000f"),
		},
		Networks: []trunkline.NodeNetwork{networkOf("node-a", trunkline.PodGroups{Mode: trunkline.GroupsOwn, VPCID: "vpc-1", GroupLimit: 5})},
		CNINode: &v1alpha1.CNINode{
			TypeMeta:   metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1alpha1", Kind: "CNINode"},
			ObjectMeta: metav1.ObjectMeta{Name: "node-a"},
			Status: v1alpha1.CNINodeStatus{Trunkline: &v1alpha1.BranchLedger{
				InstanceID: instance,
				Trunk:      &v1alpha1.TrunkRecord{Phase: v1alpha1.TrunkReady, ENIID: "eni-0ccccccccccccccc1", DeviceIndex: 3},
				VLANs:      []v1alpha1.VLANRecord{{VLANID: 3, Owner: "1"}},
				Branches: []v1alpha1.BranchRecord{{
					ID: "1", VLANID: 3, Phase: v1alpha1.BranchBound, Since: ago(4 * time.Minute), Changed: ago(4 * time.Minute), SubnetID: "subnet-0aaaaaaaaaaaaaaa1", Pod: &v1alpha1.PodReference{UID: "uid-web", Namespace: "shop", Name: "web"},
					SecurityGroups: []string{groupDB, groupAll}, ENIID: branchENI, AssociationID: "trunk-assoc-0aaaaaaaaaaaaaaa1", MAC: "02:00:00:00:00:07",
					IPv4: "10.0.1.7", SubnetCIDR: "10.0.0.0/20",
				}, {
					ID: "2", Phase: v1alpha1.BranchCreating, Since: ago(time.Second), Changed: ago(time.Second), SubnetID: "subnet-0aaaaaaaaaaaaaaa1", Pod: &v1alpha1.PodReference{UID: "uid-other", Namespace: "shop", Name: "other"},
					Call: &v1alpha1.CallRecord{ID: "intent-2", Kind: "CreateBranch", Began: ago(time.Second), At: ago(time.Second), Tries: 2},
				}},
				Backoffs: []v1alpha1.BackoffRecord{{Key: "subnet-1", Until: ago(-time.Minute), Tries: 3, Reason: "subnet-full", Message: "no free address"}},
			}},
		},
	}
}

func policyOf(name string, pods, accounts *metav1.LabelSelector, groups ...string) v1beta1.SecurityGroupPolicy {
	return v1beta1.SecurityGroupPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1beta1", Kind: "SecurityGroupPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       v1beta1.SecurityGroupPolicySpec{PodSelector: pods, ServiceAccountSelector: accounts, SecurityGroups: v1beta1.GroupIDs{Groups: groups}},
	}
}

func TestAPodWithItsGroupsLacksNothing(t *testing.T) {
	e := Explain(shop())
	if len(e.Missing) > 0 || !slices.Equal(e.Groups, []string{groupDB, groupAll}) {
		t.Errorf("groups %v, missing %q", e.Groups, e.Missing)
	}
	var out strings.Builder
	WriteExplanation(&out, e, noon)
	golden(t, "explain.txt", out.String())
}

func TestWhatAPodLacksIsNamed(t *testing.T) {
	ledger := func(o *Objects) *v1alpha1.BranchLedger { return o.CNINode.Status.Trunkline }
	for name, c := range map[string]struct {
		change func(*Objects)
		want   []string // the start of each
	}{
		"no request": {
			func(o *Objects) { o.Pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{} },
			[]string{"no container requests vpc.amazonaws.com/pod-eni"},
		},
		"a container behind the first requests": {
			func(o *Objects) {
				o.Pod.Spec.Containers = append([]corev1.Container{{Name: "sidecar"}}, o.Pod.Spec.Containers...)
			}, nil,
		},
		"no node": {func(o *Objects) { o.Pod.Spec.NodeName = ""; o.CNINode = nil }, []string{"the pod is on no node"}},
		"no CNINode": {
			func(o *Objects) { o.CNINode = nil },
			[]string{"node node-a has no CNINode"},
		},
		"an ENIConfig that cannot be used": {
			func(o *Objects) {
				ledger(o).Branches = nil
				ledger(o).CustomNetworking = &v1alpha1.CustomNetworkingRecord{ENIConfig: "a", Reason: "EniConfigNotFound", Message: "ENIConfig a does not exist: create it"}
			},
			[]string{"node node-a gets no branch from the controller: EniConfigNotFound: ENIConfig a does not exist"},
		},
		"an ENIConfig that cannot be used, on a pod with a branch": {
			func(o *Objects) {
				ledger(o).CustomNetworking = &v1alpha1.CustomNetworkingRecord{ENIConfig: "a", Reason: "EniConfigNotFound"}
			}, nil,
		},
		"no trunk":    {func(o *Objects) { ledger(o).Trunk = nil }, []string{"node node-a has no trunk"}},
		"trunk comes": {func(o *Objects) { ledger(o).Trunk.Phase = v1alpha1.TrunkAttaching }, []string{"node node-a has a trunk that is not ready: Attaching"}},
		"no branch": {
			func(o *Objects) {
				ledger(o).Branches = nil
				ledger(o).Refused = []v1alpha1.RefusedRecord{{PodUID: "uid-web", SecurityGroups: []string{groupDB}, Message: "EC2 has no such group"}}
			},
			[]string{"the controller has no branch for the pod: EC2 refused " + groupDB + ": EC2 has no such group"},
		},
		"groups that the controller refuses": {
			func(o *Objects) {
				ledger(o).Branches = nil
				for i := range o.Policies { // also of one that does not select the pod
					o.Policies[i].Status.Refused = []v1beta1.RefusedPod{{Name: "web", Reason: "UnknownGroup", Message: `security group "` + groupDB + `": EC2 has no such security group`}}
				}
			},
			[]string{`the controller refuses the groups of the pod (UnknownGroup): security group "` + groupDB + `": EC2 has no such security group: correct groupIds`},
		},
		"the branch of an earlier pod of its name": {
			func(o *Objects) { ledger(o).Branches[0].Pod.UID = "uid-earlier" },
			[]string{"the controller has no branch for the pod"},
		},
		"branch comes": {
			func(o *Objects) {
				ledger(o).Branches[0].Phase = v1alpha1.BranchAssociating
				o.Pod.Annotations = nil
			},
			[]string{branchENI + " is not bound yet: Associating", "the pod has no annotation"},
		},
		"binding, as recorded, with the annotation": {
			func(o *Objects) { ledger(o).Branches[0].Phase = v1alpha1.BranchBinding }, nil,
		},
		"binding without the annotation": {
			func(o *Objects) {
				ledger(o).Branches[0].Phase = v1alpha1.BranchBinding
				o.Pod.Annotations = nil
			},
			[]string{"the pod has no annotation"},
		},
		"other groups": {
			func(o *Objects) { ledger(o).Branches[0].SecurityGroups = []string{groupDB} },
			[]string{branchENI + " carries the groups " + groupDB + ", and the policies give " + groupDB + ", " + groupAll},
		},
		"annotation of another VLAN": {
			func(o *Objects) {
				o.Pod.Annotations[vpc.AnnotationPodENI] = strings.Replace(named, `"vlanId":3`, `"vlanId":4`, 1)
			},
			[]string{"the annotation vpc.amazonaws.com/pod-eni is refused by the node: " + branchENI + ": vlanId 4, and its VLAN is 3"},
		},
		"annotation that cannot be read": {
			func(o *Objects) { o.Pod.Annotations[vpc.AnnotationPodENI] = "[" },
			[]string{"the annotation vpc.amazonaws.com/pod-eni cannot be read: 1 bytes: truncated annotation"},
		},
		"record edited by hand": {
			func(o *Objects) { ledger(o).Branches[0].MAC = "02:00" },
			[]string{"the record in the status of CNINode node-a is invalid: "},
		},
		"no service account": {
			func(o *Objects) { o.Account = nil },
			[]string{"the pod is refused: SecurityGroupPolicy shop/front: service account web: the service account was not found"},
		},
		"not selected": {
			func(o *Objects) { o.Policies = o.Policies[2:] },
			[]string{"no policy selects the pod, and it has a branch"},
		},
		"not selected, no branch": {
			func(o *Objects) { o.Policies, ledger(o).Branches, o.Pod.Annotations = nil, nil, nil },
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := shop()
			c.change(&o)
			got := Explain(o).Missing
			if len(got) != len(c.want) {
				t.Fatalf("missing %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("missing %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

// AWS's records have neither pods nor phases: the annotation says which branch is the pod's.
func TestABranchOfAWSsControllerIsFoundByTheAnnotation(t *testing.T) {
	o := shop()
	o.CNINode.Status = v1alpha1.CNINodeStatus{TrunkInterface: &v1alpha1.TrunkInterface{
		ID: "eni-0ccccccccccccccc1", DeviceIndex: 3,
		Branches: []v1alpha1.BranchInterface{
			{ID: branchENI, VLANID: 3, AssociationID: "trunk-assoc-0aaaaaaaaaaaaaaa1", MACAddress: "02:00:00:00:00:07", IPv4CIDRs: []string{"10.0.1.7/32"}, SecurityGroups: []string{groupDB}},
			{ID: "eni-0aaaaaaaaaaaaaaa2", VLANID: 4},
		},
	}}
	e := Explain(o)
	if len(e.Branches) != 1 || e.Branches[0].ENI != branchENI || e.Branches[0].Addresses[0] != "10.0.1.7" || len(e.Missing) > 0 {
		t.Errorf("branches %+v, missing %q", e.Branches, e.Missing)
	}
}

func TestTheListHasTrunksAndBranchesOfTheSelectedNodes(t *testing.T) {
	one := shop().CNINode
	two := one.DeepCopy()
	two.Name = "node-b"
	var out strings.Builder
	all := Of([]v1alpha1.CNINode{*two, *one})
	only, err := all.Only([]string{"node-a"})
	if err != nil {
		t.Fatal(err)
	}
	WriteList(&out, only, noon)
	golden(t, "list.txt", out.String())
	if whole, err := all.Only(nil); err != nil || len(whole.Branches) != 4 {
		t.Errorf("%d branches of two nodes, want 4 (%v)", len(whole.Branches), err)
	}
	if _, err := all.Only([]string{"node-c"}); err == nil || err.Error() != "--node node-c: the API server has no CNINode of that name; it has node-b, node-a" {
		t.Errorf("a node without a CNINode: %v", err)
	}
	out.Reset()
	one.Status.Trunkline = &v1alpha1.BranchLedger{InstanceID: instance, CustomNetworking: &v1alpha1.CustomNetworkingRecord{
		ENIConfig: "a", Reason: "EniConfigNotFound", Message: "ENIConfig a does not exist",
	}}
	WriteList(&out, Of([]v1alpha1.CNINode{*one}), noon)
	if !strings.Contains(out.String(), "! node-a: no branch is created: EniConfigNotFound: ENIConfig a does not exist\n") {
		t.Errorf("a refused ENIConfig: %s", out.String())
	}
	out.Reset()
	WriteList(&out, Of(nil), noon)
	if out.String() != "no node has a trunk\n" {
		t.Errorf("an empty list is %q", out.String())
	}
}

func TestAnExplanationIsReadFromTheAPIServer(t *testing.T) {
	const pods, policies, accounts, nodes = "/api/v1/pods", "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", "/api/v1/serviceaccounts", "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"
	s, o := kubetest.New(t), shop()
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), client, "shop", "web"); err == nil || !strings.Contains(err.Error(), "the API server has no pod web in the namespace shop") {
		t.Errorf("an absent pod: %v", err)
	}
	s.Put(pods, o.Pod)
	s.Put(accounts, o.Account)
	s.Put(nodes, o.CNINode)
	for i := range o.Policies {
		s.Put(policies, &o.Policies[i])
	}
	other := o.Policies[0].DeepCopy()
	other.Namespace = "bank"
	s.Put(policies, other)
	read, err := Read(t.Context(), client, "shop", "web")
	if err != nil {
		t.Fatal(err)
	}
	if e := Explain(read); len(e.Missing) > 0 || len(e.Policies) != 3 || len(e.Branches) != 1 {
		t.Errorf("explained %+v", e)
	}
	list, err := ReadList(t.Context(), client)
	if err != nil || len(list.Branches) != 2 {
		t.Errorf("%d branches, %v", len(list.Branches), err)
	}
	s.Refuse("/apis/vpcresources.k8s.aws/v1beta1/namespaces/shop/securitygrouppolicies", 404)
	if _, err := Read(t.Context(), client, "shop", "web"); err == nil || !strings.Contains(err.Error(), "security groups for pods are not installed") {
		t.Errorf("without the definition: %v", err)
	}
}

func TestAPodOfAnExcludedNamespaceIsNotSaidToBeMadeAgain(t *testing.T) {
	o := shop()
	o.Pod.Namespace = metav1.NamespaceSystem
	for i := range o.Policies {
		o.Policies[i].Namespace = metav1.NamespaceSystem
	}
	o.Account.Namespace = metav1.NamespaceSystem
	o.Pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	if got := Explain(o).Missing; len(got) == 0 || !strings.Contains(got[0], "only if it requests it itself") {
		t.Errorf("missing %q", got)
	}
}
