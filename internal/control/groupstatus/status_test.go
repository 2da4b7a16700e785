package groupstatus_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/control/groupstatus"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	podsAt     = "/api/v1/pods"
	policiesAt = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	networksAt = "/apis/trunkline.dev/v1alpha1/nodenetworks"
	groupsAt   = "/apis/trunkline.dev/v1alpha1/securitygroups"

	web, db = "sg-0000000a", "sg-0000000b"
)

// world is an API server with a node that enforces groups, n1, and a writer.
type world struct {
	*kubetest.Server
	t *testing.T
}

func inWorld(t *testing.T, f func(w *world)) {
	t.Helper()
	server := kubetest.New(t)
	synctest.Test(t, func(t *testing.T) {
		w := &world{server, t}
		w.group(web, trunkline.SecurityGroupSpec{VPCID: "vpc-1"})
		w.node(func(*trunkline.NodeNetworkStatus) {})
		client, err := kube.FromREST(kubetest.InProcess(server))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var ran sync.WaitGroup
		ran.Go(func() { groupstatus.New(client, slog.New(slog.DiscardHandler)).Run(ctx) })
		defer func() { stop(); ran.Wait() }()
		f(w)
	})
}

func (w *world) group(id string, spec trunkline.SecurityGroupSpec) {
	w.Put(groupsAt, &trunkline.SecurityGroup{TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "SecurityGroup"}, ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: spec})
}

// node reports as an agent does, now.
func (w *world) node(change func(*trunkline.NodeNetworkStatus)) {
	n := &trunkline.NodeNetwork{
		TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: trunkline.NodeNetworkStatus{
			ObservedAt: metav1.Now(), PodGroups: &trunkline.PodGroups{Mode: trunkline.GroupsEBPF, NodeEnforces: true, VPCID: "vpc-1", GroupLimit: 5},
			Conditions: []metav1.Condition{{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionTrue, Reason: "Enforced"}},
		},
	}
	change(&n.Status)
	w.Put(networksAt, n)
}

func (w *world) policy(name string, groups ...string) {
	w.Put(policiesAt, &v1beta1.SecurityGroupPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion().String(), Kind: v1beta1.KindSecurityGroupPolicy},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       v1beta1.SecurityGroupPolicySpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, SecurityGroups: v1beta1.GroupIDs{Groups: groups}},
	})
}

// pod puts a pod on n1 that its node has wired, or has not.
func (w *world) pod(name, app string, wired bool) {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if wired {
		p.Status.PodIP = "10.0.0.9"
	}
	w.Put(podsAt, p)
}

func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expect waits for the writer, and compares counts and conditions with those of a policy.
func (w *world) expect(policy, want string) v1beta1.SecurityGroupPolicyStatus {
	w.t.Helper()
	elapse(10 * time.Second)
	var p v1beta1.SecurityGroupPolicy
	if !w.Get(policiesAt, "shop/"+policy, &p) {
		w.t.Fatalf("no policy %s", policy)
	}
	s := p.Status
	got := fmt.Sprintf("%d %d %d", s.MatchedPods, s.AppliedPods, s.RefusedPods)
	for _, kind := range []string{v1beta1.ConditionValid, v1beta1.ConditionApplied} {
		if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
			got += " " + c.Reason
		}
	}
	if got != want {
		w.t.Errorf("status of %s: %s, want %s: %+v", policy, got, want, s)
	}
	return s
}

func (w *world) says(s v1beta1.SecurityGroupPolicyStatus, condition, part string) {
	w.t.Helper()
	if c := meta.FindStatusCondition(s.Conditions, condition); c == nil || !strings.Contains(c.Message, part) {
		w.t.Errorf("condition %s: %+v, want %q", condition, c, part)
	}
}

func TestTheStatusOfAPolicyCountsThePodsThatNodesEnforce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.policy("web", web)
		w.policy("empty")
		w.expect("web", "0 0 0 Valid AllApplied")
		w.expect("empty", "0 0 0 SelectsNoPod AllApplied")
		w.pod("one", "web", true)
		w.pod("two", "web", false)
		w.says(w.expect("web", "2 1 0 Valid PodsNotEnforced"), v1beta1.ConditionApplied, "1 of 2 pods do not have their groups yet, the first two: node n1 has not set up its network")
		w.pod("two", "web", true)
		w.pod("late", "other", true)
		w.expect("web", "2 2 0 Valid AllApplied")
		w.pod("late", "web", true) // labels changed after it was wired
		w.expect("web", "3 3 0 Valid AllApplied")
		writes := len(w.Requests())
		w.node(func(*trunkline.NodeNetworkStatus) {})
		w.expect("web", "3 3 0 Valid AllApplied")
		if made := w.Requests()[writes:]; slices.ContainsFunc(made, func(r string) bool { return strings.HasPrefix(r, "PATCH") }) {
			w.t.Errorf("without a change: %q", made)
		}
	})
}

func TestAPodCountsAsAppliedOnlyWhileItsNodeEnforces(t *testing.T) {
	inWorld(t, func(w *world) {
		w.policy("web", web)
		w.pod("one", "web", true)
		w.expect("web", "1 1 0 Valid AllApplied")
		for part, change := range map[string]func(*trunkline.NodeNetworkStatus){
			"reports no mode":               func(s *trunkline.NodeNetworkStatus) { s.PodGroups = nil },
			"security-groups-for-pods: off": func(s *trunkline.NodeNetworkStatus) { s.PodGroups = &trunkline.PodGroups{Mode: trunkline.GroupsOff} },
			"does not know its VPC":         func(s *trunkline.NodeNetworkStatus) { s.PodGroups.VPCID = "" },
			"does not report whether":       func(s *trunkline.NodeNetworkStatus) { s.Conditions = nil },
			"enforces nothing now (CannotEnforce)": func(s *trunkline.NodeNetworkStatus) {
				s.Conditions[0].Status, s.Conditions[0].Reason = metav1.ConditionFalse, "CannotEnforce"
			},
		} {
			w.node(change)
			w.says(w.expect("web", "1 0 0 Valid PodsNotEnforced"), v1beta1.ConditionApplied, part)
			w.node(func(*trunkline.NodeNetworkStatus) {})
			w.expect("web", "1 1 0 Valid AllApplied")
		}
		elapse(5 * time.Minute) // the agent is dead
		w.says(w.expect("web", "1 0 0 Valid PodsNotEnforced"), v1beta1.ConditionApplied, "the report of node n1 is")
		w.node(func(*trunkline.NodeNetworkStatus) {})
		w.expect("web", "1 1 0 Valid AllApplied")
		w.Delete(networksAt, "n1")
		w.expect("web", "1 0 0 Valid PodsNotEnforced")
	})
}

// A group that EC2 does not have, one of another VPC, and one that was not read yet.
func TestAGroupThatCannotBeAppliedIsRefusedByName(t *testing.T) {
	inWorld(t, func(w *world) {
		w.policy("web", web, db)
		w.pod("one", "web", true)
		w.says(w.expect("web", "1 0 0 Valid PodsNotEnforced"), v1beta1.ConditionApplied, "has not been read from EC2 yet")
		w.group(db, trunkline.SecurityGroupSpec{Absent: true})
		const absent = `security group "sg-0000000b" does not exist in vpc-1`
		s := w.expect("web", "1 0 1 UnknownGroup PodsRefused")
		w.says(s, v1beta1.ConditionValid, absent)
		if len(s.Refused) != 1 || s.Refused[0].Name != "one" || s.Refused[0].Reason != "UnknownGroup" || !strings.Contains(s.Refused[0].Message, absent) {
			w.t.Errorf("refused %+v", s.Refused)
		}
		w.group(db, trunkline.SecurityGroupSpec{VPCID: "vpc-2"})
		w.says(w.expect("web", "1 0 1 ForeignGroup PodsRefused"), v1beta1.ConditionValid, absent)
		w.group(db, trunkline.SecurityGroupSpec{VPCID: "vpc-1"}) // created later
		w.expect("web", "1 1 0 Valid AllApplied")
		w.policy("web", web, "web")
		w.expect("web", "1 0 1 MalformedGroup PodsRefused")
		w.policy("web", web, db, "sg-00000001", "sg-00000002", "sg-00000003", "sg-00000004")
		w.expect("web", "1 0 1 Valid PodsRefused")
	})
}
