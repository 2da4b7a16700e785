package trunk_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

func (w *world) statusOf(policy string) v1beta1.SecurityGroupPolicyStatus {
	w.t.Helper()
	var p v1beta1.SecurityGroupPolicy
	if !w.Get(sgpsAt, "shop/"+policy, &p) {
		w.t.Fatalf("no policy %s", policy)
	}
	return p.Status
}

// counts fails the test unless the status of a policy has these counts and conditions.
func (w *world) counts(policy string, matched, applied, refused int32, valid bool, reason string) {
	w.t.Helper()
	s := w.statusOf(policy)
	is, done := meta.IsStatusConditionTrue(s.Conditions, v1beta1.ConditionValid), meta.FindStatusCondition(s.Conditions, v1beta1.ConditionApplied)
	if s.MatchedPods != matched || s.AppliedPods != applied || s.RefusedPods != refused || is != valid || done == nil || done.Reason != reason {
		w.t.Errorf("status of %s: %+v, want %d matched, %d applied, %d refused, valid %v, %s", policy, s, matched, applied, refused, valid, reason)
	}
}

func TestTheStatusOfAPolicyInAnExcludedNamespaceSaysThatItIsNotEnforced(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.excluded = []string{"shop"}
		w.boot()
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		c := meta.FindStatusCondition(w.statusOf("web").Conditions, v1beta1.ConditionValid)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "NamespaceExcluded" {
			w.t.Errorf("condition %+v", c)
		}
		if w.branch("one") == nil {
			w.t.Error("a pod that requests a branch itself has none")
		}
	})
}

func TestTheStatusOfAPolicyCountsItsPods(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.policy("empty", "web")
		w.policy("db", "db", "db")
		w.start("one", "web")
		w.start("two", "web")
		w.elapse(20 * time.Second)
		w.counts("web", 2, 2, 0, true, "AllApplied")
		w.counts("empty", 0, 0, 0, false, "AllApplied")
		w.counts("db", 0, 0, 0, true, "AllApplied")
		late(w, "early", "web")
		w.elapse(20 * time.Second)
		w.counts("web", 3, 2, 0, true, "PodsWithoutBranch")
		if e := w.branch("early"); e != nil {
			w.t.Errorf("a pod that requests no branch has %+v", e)
		}
		w.end("early")
		w.elapse(20 * time.Second)
		w.counts("web", 2, 2, 0, true, "AllApplied")
	})
}

// late is a pod that was wired before a policy selected it, without a branch.
func late(w *world, name, app string) {
	w.Put(podsAt, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: typesUID("uid-" + name), Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	})
}

// enforces puts the report of n1 and the object of a group, as a node that enforces it has them.
func enforces(w *world, group string) {
	in := string(w.cloud.State().VPC.ID)
	w.Put("/apis/trunkline.dev/v1alpha1/nodenetworks", &trunkline.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: trunkline.NodeNetworkStatus{
			ObservedAt: metav1.Now(), PodGroups: &trunkline.PodGroups{Mode: trunkline.GroupsOwn, NodeEnforces: true, VPCID: in, GroupLimit: 5},
			Conditions: []metav1.Condition{{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionTrue, Reason: "Enforced"}},
		},
	})
	w.Put("/apis/trunkline.dev/v1alpha1/securitygroups", &trunkline.SecurityGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "SecurityGroup"}, ObjectMeta: metav1.ObjectMeta{Name: w.groups[group]},
		Spec: trunkline.SecurityGroupSpec{VPCID: in},
	})
}

func TestTheStatusOfAPolicyCountsLatePodsThatTheirNodeEnforces(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.stop()
		w.enforce = true
		w.boot()
		w.policy("web", "web", "web")
		w.start("one", "web")
		late(w, "early", "web")
		w.elapse(20 * time.Second)
		w.counts("web", 2, 1, 0, true, "PodsWithoutBranch")
		enforces(w, "web")
		w.elapse(20 * time.Second)
		w.counts("web", 2, 2, 0, true, "AllApplied")
		w.wire.inject(func(string) string { return "RequestLimitExceeded" })
		w.start("two", "web")
		var two corev1.Pod
		w.Get(podsAt, "shop/two", &two)
		two.Status.Phase = corev1.PodRunning // as if its branch were lost
		w.Put(podsAt, &two)
		w.elapse(20 * time.Second)
		w.counts("web", 3, 2, 0, true, "PodsWithoutBranch") // of a pod that requests a branch, only the branch counts
		w.wire.inject(nil)
		w.elapse(2 * time.Minute)
		w.counts("web", 3, 3, 0, true, "AllApplied")
		w.policy("web", "web", "db")
		w.elapse(time.Minute)
		w.counts("web", 3, 2, 0, true, "PodsWithoutBranch") // the node does not know db
	})
}

// Without the rights of deploy/components/node-groups the controller does not know what nodes enforce: the status is
// written, and does not stay as an earlier controller has written it.
func TestTheStatusOfAPolicyDoesNotWaitForWhatNodesReport(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		w.counts("web", 1, 1, 0, true, "AllApplied")
		w.stop()
		w.Refuse("/apis/trunkline.dev/v1alpha1/nodenetworks", http.StatusForbidden)
		w.enforce = true
		w.boot()
		late(w, "early", "web")
		enforces(w, "web")
		w.elapse(time.Minute)
		w.counts("web", 2, 1, 0, true, "PodsWithoutBranch")
		w.Refuse("/apis/trunkline.dev/v1alpha1/nodenetworks", 0)
		w.elapse(2 * time.Minute)
		w.counts("web", 2, 2, 0, true, "AllApplied")
	})
}

// A group that EC2 does not have is refused in the status: no interface is created for the pod,
// and EC2 is asked for the group at most every two minutes. The pod is served once it exists.
func TestAnUnknownGroupIsRefusedWithoutRetries(t *testing.T) {
	const unknown = "sg-0123456789abcdef0"
	inWorld(t, nil, func(w *world) {
		w.policy("good", "good", "web")
		w.policy("bad", "bad", "web", unknown)
		w.policy("odd", "odd", "web-servers")
		w.policy("many", "many", "web", "db", "cache", "quarantine", "node", "default")
		for _, name := range []string{"good", "bad", "odd", "many"} {
			w.start(name, name)
		}
		w.elapse(30 * time.Second)
		w.carries("good", "web")
		for policy, reason := range map[string]string{"bad": "UnknownGroup", "odd": "MalformedGroup", "many": "TooManyGroups"} {
			valid := policy == "many" // all of its groups exist
			w.counts(policy, 1, 0, 1, valid, "PodsRefused")
			if c := meta.FindStatusCondition(w.statusOf(policy).Conditions, "Valid"); !valid && (c.Reason != reason || !strings.Contains(c.Message, `security group "`)) {
				w.t.Errorf("policy %s: %+v, want %s with the id", policy, c, reason)
			}
			if s := w.statusOf(policy); len(s.Refused) != 1 || s.Refused[0].Name != policy || s.Refused[0].Reason != reason || s.Refused[0].Message == "" {
				w.t.Errorf("refused by %s: %+v, want %s", policy, s.Refused, reason)
			}
			if e := w.branch(policy); e != nil {
				w.t.Errorf("pod %s has %+v", policy, e)
			}
			w.saysRefused(policy)
		}
		created, asked := w.wire.count("CreateNetworkInterface"), w.wire.count("DescribeSecurityGroups")
		for range 60 {
			w.start("other", "plain") // an event
			w.elapse(10 * time.Second)
		}
		if n := w.wire.count("CreateNetworkInterface") - created; n != 0 {
			w.t.Errorf("%d interfaces were created", n)
		}
		if n := w.wire.count("DescribeSecurityGroups") - asked; n > 6 {
			w.t.Errorf("EC2 was asked %d times in 10 minutes", n)
		}
		w.policy("bad", "bad", "web", "db")
		w.elapse(20 * time.Second)
		w.carries("bad", "web", "db")
		w.counts("bad", 1, 1, 0, true, "AllApplied")
	})
}

// saysRefused requires one event of a pod, with the message of the status of its policy.
func (w *world) saysRefused(pod string) {
	w.t.Helper()
	var found []corev1.Event
	for _, e := range w.allEvents() {
		if e.InvolvedObject.Name == pod && e.Reason == "BranchAllocationFailed" {
			found = append(found, e)
		}
	}
	if want := "failed to allocate branch ENI to pod: " + w.statusOf(pod).Refused[0].Message; len(found) != 1 || found[0].Message != want || found[0].Count > 1 {
		w.t.Errorf("events of pod %s: %+v, want %q once", pod, found, want)
	}
}

// A group that was known is deleted at EC2: its policy is invalid from the first refusal on, and EC2 is not called
// for each further pod.
func TestAGroupThatIsDeletedIsReadAgainOnceEC2RefusesIt(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("db", "db", "db")
		w.start("one", "db")
		w.elapse(20 * time.Second)
		w.carries("one", "db")
		w.end("one")
		w.elapse(3 * time.Minute)
		w.wire.inject(func(action string) string { // as after DeleteSecurityGroup
			if action == "CreateNetworkInterface" {
				return "InvalidGroup.NotFound"
			}
			return ""
		})
		w.wire.mu.Lock()
		w.wire.edit = func(action, reply string) string {
			if action == "DescribeSecurityGroups" {
				return strings.ReplaceAll(reply, w.groups["db"], "sg-00000000000000000")
			}
			return reply
		}
		w.wire.mu.Unlock()
		w.start("two", "db")
		w.elapse(30 * time.Second)
		if c := meta.FindStatusCondition(w.statusOf("db").Conditions, "Valid"); c == nil || c.Status != metav1.ConditionFalse || c.Reason != "UnknownGroup" {
			w.t.Errorf("condition Valid: %+v", c)
		}
		before := w.wire.count("CreateNetworkInterface")
		for _, name := range names(3) {
			w.start(name, "db")
		}
		w.elapse(time.Minute)
		if n := w.wire.count("CreateNetworkInterface") - before; n > 0 {
			w.t.Errorf("%d calls for further pods", n)
		}
	})
}

// EC2 refuses groups that the controller took for known: it is not asked again for the same.
func TestGroupsThatEC2RefusesAreNotTriedAgain(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.wire.inject(func(action string) string {
			if action == "CreateNetworkInterface" && w.wire.calls["AttachNetworkInterface"] > 0 {
				return "InvalidGroup.NotFound"
			}
			return ""
		})
		w.start("one", "web")
		w.elapse(20 * time.Minute)
		if n := w.wire.count("CreateNetworkInterface"); n != 2 { // one of the trunk
			w.t.Errorf("%d calls for the branch, want 1", n-1)
		}
		w.counts("web", 1, 0, 1, true, "PodsRefused")
		if s := w.statusOf("web"); len(s.Refused) != 1 || s.Refused[0].Reason != "RefusedByEC2" {
			w.t.Errorf("%+v", s.Refused)
		}
	})
}

func TestTheLabelsOfTheServiceAccountSelect(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		p := &v1beta1.SecurityGroupPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion().String(), Kind: v1beta1.KindSecurityGroupPolicy},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "by-account"},
			Spec: v1beta1.SecurityGroupPolicySpec{
				ServiceAccountSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "db"}},
				SecurityGroups:         v1beta1.GroupIDs{Groups: []string{w.groups["db"]}},
			},
		}
		w.Put(sgpsAt, p)
		w.start("one", "web")
		w.elapse(20 * time.Second)
		if e := w.branch("one"); e != nil {
			w.t.Fatalf("without its service account the pod has %+v", e)
		}
		account := &corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default", Labels: map[string]string{"team": "web"}},
		}
		w.Put("/api/v1/serviceaccounts", account)
		w.elapse(20 * time.Second)
		if e := w.branch("one"); e != nil {
			w.t.Fatalf("with other labels of its service account the pod has %+v", e)
		}
		account.Labels["team"] = "db"
		w.Put("/api/v1/serviceaccounts", account)
		w.elapse(20 * time.Second)
		w.carries("one", "db")
	})
}

func TestATypeWithoutATrunkIsReported(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(time.Minute)
		unsupported := 0
		for _, e := range w.allEvents() {
			if e.Reason == "Unsupported" && e.InvolvedObject.Name == "n1" {
				unsupported += int(e.Count)
			}
		}
		if unsupported != 1 || w.wire.count("CreateNetworkInterface") != 0 {
			w.t.Errorf("%d events, %d interfaces; want one and none", unsupported, w.wire.count("CreateNetworkInterface"))
		}
		w.counts("web", 1, 0, 0, true, "PodsWithoutBranch")
		var n corev1.Node
		w.Get(nodesAt, "n1", &n)
		if _, has := n.Status.Capacity[vpc.ResourcePodENI]; has {
			w.t.Errorf("capacity %v", n.Status.Capacity)
		}
		describes := w.wire.describes()
		w.elapse(30 * time.Minute)
		if n := w.wire.describes() - describes; n > 2 { // a regular observation
			w.t.Errorf("%d describes in half an hour", n)
		}
	}, func(s *cloud.Spec) { s.Instances[0].Type = "t3.large" })
}

// What the events of AWS's controller say, byte for byte.
func TestEventsHaveTheTextsOfAWSsController(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web", "db")
		w.start("one", "web")
		w.elapse(20 * time.Second)
		var p corev1.Pod
		w.Get(podsAt, "shop/one", &p)
		first, second := w.groups["db"], w.groups["web"]
		if second < first {
			first, second = second, first
		}
		want := map[string]string{
			"SecurityGroupRequested": fmt.Sprintf("Pod will get the following Security Groups [%s %s]", first, second),
			"ResourceAllocated":      fmt.Sprintf("Allocated %s to the pod", p.Annotations[vpc.AnnotationPodENI]),
			"NodeTrunkInitiated":     "The node has trunk interface initialized successfully",
		}
		for _, e := range w.allEvents() {
			if text, ok := want[e.Reason]; ok && (e.Message != text || e.Count > 1) {
				w.t.Errorf("%s, %d times: %q, want %q once", e.Reason, e.Count, e.Message, text)
			}
			delete(want, e.Reason)
		}
		if len(want) > 0 {
			w.t.Errorf("no events %v", want)
		}
	})
}
