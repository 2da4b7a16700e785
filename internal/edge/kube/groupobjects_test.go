package kube

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	groupPoliciesPath = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	securityGroups    = "/apis/trunkline.dev/v1alpha1/securitygroups"
	accountsPath      = "/api/v1/serviceaccounts"
)

// reflecting is GroupObjects that run.
type reflecting struct {
	*GroupObjects
	t       *testing.T
	changed chan struct{}
	stop    func()
}

func reflectGroups(t *testing.T, server *kubetest.Server, snapshot string) *reflecting {
	t.Helper()
	return reflectGroupsWith(t, server, GroupOptions{Accounts: true, Groups: true, SnapshotPath: snapshot})
}

func reflectGroupsWith(t *testing.T, server *kubetest.Server, o GroupOptions) *reflecting {
	t.Helper()
	client, err := FromREST(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	r := &reflecting{t: t, changed: make(chan struct{}, 1)}
	o.Client, o.Log, o.Changed = client, slog.New(slog.DiscardHandler), func() { signal(r.changed) }
	r.GroupObjects = NewGroupObjects(o)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = r.Run(ctx) })
	r.stop = func() { cancel(); done.Wait() }
	t.Cleanup(r.stop)
	return r
}

// until waits until a condition holds after a change.
func (r *reflecting) until(what string, holds func() bool) {
	r.t.Helper()
	end := time.NewTimer(30 * time.Second)
	defer end.Stop()
	for !holds() {
		select {
		case <-r.changed:
		case <-end.C:
			r.t.Fatalf("%s: not so after 30 s; %+v", what, r.State())
		}
	}
}

func groupServer(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.New(t)
	s.Put(groupPoliciesPath, &vpcresources.SecurityGroupPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: vpcresources.KindSecurityGroupPolicy},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: vpcresources.SecurityGroupPolicySpec{
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, SecurityGroups: vpcresources.GroupIDs{Groups: []string{"sg-0000000a"}},
		},
	})
	s.Put(accountsPath, &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default", Labels: map[string]string{"a": "b"}}})
	putGroup(s, trunkline.SecurityGroupSpec{
		Members: []string{"10.0.0.4/32", "10.0.0.300/32"}, NotUsed: []string{"interface eni-1: no address"},
		Rules: []trunkline.SecurityGroupRule{
			{ID: "sgr-1", Direction: trunkline.RuleIngress, Protocol: 6, FromPort: 80, ToPort: 90, Prefixes: []string{"10.0.0.0/8"}},
			{ID: "sgr-2", Direction: trunkline.RuleEgress, Protocol: -1, FromPort: -1, ToPort: -1, GroupID: "sg-0000000a"},
			{ID: "sgr-3", Direction: "Sideways", Protocol: -1, FromPort: -1, ToPort: -1, GroupID: "sg-0000000a"},
		},
	})
	return s
}

func putGroup(s *kubetest.Server, spec trunkline.SecurityGroupSpec) {
	spec.VPCID = "vpc-1"
	s.Put(securityGroups, &trunkline.SecurityGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: trunkline.GroupVersion().String(), Kind: "SecurityGroup"}, ObjectMeta: metav1.ObjectMeta{Name: "sg-0000000a"}, Spec: spec,
	})
}

func TestGroupsArePartlyReadWhereAPartIsOdd(t *testing.T) {
	r := reflectGroups(t, groupServer(t), "")
	r.until("synced", r.Synced)
	g := r.State().Groups["sg-0000000a"]
	if len(g.Group.Members) != 1 || len(g.Group.Rules) != 3 || g.VPC != "vpc-1" {
		t.Fatalf("group %+v", g)
	}
	want := []string{"interface eni-1: no address; it allows nothing", `spec.members: "10.0.0.300/32" is no address range; it allows nothing`}
	if !reflect.DeepEqual(g.Problems, want) {
		t.Errorf("problems %q, want %q", g.Problems, want)
	}
	for i, unusable := range []bool{false, false, true} {
		if rule := g.Group.Rules[i]; (rule.Unusable != "") != unusable {
			t.Errorf("rule %+v: unusable should be %v", rule, unusable)
		}
	}
}

func TestGroupsAreFollowedAndUnchangedStatesAreTheSame(t *testing.T) {
	s := groupServer(t)
	r := reflectGroups(t, s, "")
	r.until("synced", r.Synced)
	before := r.State()
	if r.State() != before {
		t.Error("a state without a change is another")
	}
	putGroup(s, trunkline.SecurityGroupSpec{Members: []string{"10.0.0.9/32"}})
	r.until("the members changed", func() bool {
		members := r.State().Groups["sg-0000000a"].Group.Members
		return len(members) == 1 && members[0].String() == "10.0.0.9/32"
	})
	if len(before.Groups["sg-0000000a"].Group.Rules) != 3 {
		t.Error("a state that was returned has changed")
	}
	s.Delete(groupPoliciesPath, "shop/web")
	s.Delete(accountsPath, "shop/default")
	r.until("policy and account are gone", func() bool { return len(r.State().Policies)+len(r.State().Accounts) == 0 })
}

func TestADefinitionThatIsNotServedIsNoAbsence(t *testing.T) {
	for _, path := range []string{groupPoliciesPath, securityGroups, accountsPath} {
		for _, status := range []int{http.StatusNotFound, http.StatusServiceUnavailable} {
			s := groupServer(t)
			s.Refuse(path, status)
			r := reflectGroups(t, s, "")
			r.until("two of three are listed", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				listed := 0
				for _, is := range []bool{r.known.policies.listed, r.known.accounts.listed, r.known.groups.listed} {
					if is {
						listed++
					}
				}
				return listed == 2
			})
			if r.Known() || r.Synced() {
				t.Errorf("%s answers %d: known %v, synced %v", path, status, r.Known(), r.Synced())
			}
			r.stop()
		}
	}
}

func TestASnapshotOfGroupsServesWithoutTheAPIServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "groups.json")
	s := groupServer(t)
	first := reflectGroups(t, s, path)
	first.until("synced", first.Synced)
	for end := time.Now().Add(30 * time.Second); ; { // written after the last list
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "sgr-3") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no snapshot")
		}
	}
	want := first.State()
	first.stop()
	s.SetDown(true)
	second := reflectGroups(t, s, path)
	if !second.Known() || second.Synced() {
		t.Fatalf("known %v, synced %v", second.Known(), second.Synced())
	}
	got := second.State()
	if !reflect.DeepEqual(got.Groups, want.Groups) || len(got.Policies) != 1 || !reflect.DeepEqual(got.Accounts, want.Accounts) {
		t.Errorf("state %+v, want %+v", got, want)
	}
	if got.Policies[0].Ref != (securitygroup.Ref{Namespace: "shop", Name: "web"}) || got.Policies[0].ServiceAccountSelector != nil {
		t.Errorf("policy %+v", got.Policies[0])
	}
	second.stop()
	for _, text := range []string{"{", `{"version":1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		third := reflectGroups(t, s, path)
		if third.Known() {
			t.Errorf("%s: it is known", text)
		}
		third.stop()
		if aside, err := os.ReadFile(path + ".corrupt"); err != nil || string(aside) != text {
			t.Errorf("set aside: %q, %v", aside, err)
		}
	}
}

// The check at ADD of pods with branches does not depend on SecurityGroups.
func TestPodsAreDecidedWithoutSecurityGroupsWhereNoneAreNeeded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "groups.json")
	s := groupServer(t)
	s.Refuse(securityGroups, http.StatusNotFound)
	web := securitygroup.Pod{Ref: securitygroup.Ref{Namespace: "shop", Name: "web-0"}, Labels: map[string]string{"app": "web"}, ServiceAccount: "default"}
	r := reflectGroupsWith(t, s, GroupOptions{Accounts: true, SnapshotPath: path})
	r.until("synced", r.Synced)
	if d, known := r.Decide(web); !known || d.Verdict != securitygroup.Selected || len(d.Groups) != 1 {
		t.Errorf("known %v: %s", known, d)
	}
	s.Delete(groupPoliciesPath, "shop/web")
	r.until("not selected", func() bool { d, _ := r.Decide(web); return d.Verdict == securitygroup.NotSelected })
	for end := time.Now().Add(30 * time.Second); ; {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), `"policies":[]`) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no snapshot")
		}
	}
	r.stop()
	s.SetDown(true)
	if again := reflectGroupsWith(t, s, GroupOptions{Accounts: true, SnapshotPath: path}); !again.Known() {
		t.Error("the snapshot is not used")
	}
	with := reflectGroupsWith(t, s, GroupOptions{Accounts: true, Groups: true, SnapshotPath: path})
	if _, known := with.Decide(web); with.Known() || known {
		t.Error("a snapshot without groups is taken for one of a cluster that has none")
	}
}

func TestPodsAreWatchedWithoutPoliciesOnRequest(t *testing.T) {
	s := kubetest.New(t)
	s.Put("/api/v1/pods", &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.PodSpec{NodeName: "n", ServiceAccountName: "payments"}, Status: corev1.PodStatus{PodIP: "10.0.0.9"},
	})
	client, err := FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	p := NewPolicyObjects(PolicyOptions{Client: client, Log: slog.New(slog.DiscardHandler), Changed: func() { signal(changed) }})
	p.NeedPods(true)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = p.Run(ctx) })
	defer done.Wait()
	defer cancel()
	end := time.NewTimer(30 * time.Second)
	defer end.Stop()
	for {
		if changes := p.Take(); len(changes.Pods) > 0 {
			for ref, pod := range changes.Pods {
				if pod == nil || changes.Accounts[ref] != "payments" {
					t.Errorf("pod %s: %v of account %q", ref, pod, changes.Accounts[ref])
				}
			}
			return
		}
		select {
		case <-changed:
		case <-end.C:
			t.Fatal("no pod")
		}
	}
}

// An agent that was rolled out without its rights knows which pods have groups, and refuses no other pods. One
// refusal alone may be of a server that has not read its roles yet.
func TestSecurityGroupsThatMayNotBeReadAreNamed(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound} {
		s := groupServer(t)
		s.Refuse(securityGroups, status)
		r := reflectGroups(t, s, "")
		r.until("policies and accounts are listed", func() bool { _, known := r.Decide(securitygroup.Pod{}); return known })
		if r.Copied() {
			t.Error("there is a copy")
		}
		r.until("the refusal is known", func() bool { return r.Denied() != "" })
		if !r.Known() || !r.Synced() || len(r.State().Policies) == 0 || len(r.State().Groups) != 0 {
			t.Errorf("known %v, synced %v, %+v", r.Known(), r.Synced(), r.State())
		}
		if text := r.Denied(); !strings.Contains(text, "securitygroups.trunkline.dev") || !strings.Contains(text, "deploy/components/node-groups") {
			t.Errorf("denied: %s", text)
		}
		s.Refuse(securityGroups, 0)
		r.until("the groups are listed", func() bool { return len(r.State().Groups) > 0 })
		if r.Denied() != "" || !r.Synced() {
			t.Errorf("denied: %s", r.Denied())
		}
	}
	s := groupServer(t)
	s.RefuseNext(securityGroups, http.StatusForbidden, 2) // of a list by a watch, and of the list after it
	r := reflectGroups(t, s, "")
	r.until("the groups are listed", func() bool { return len(r.State().Groups) > 0 || r.Denied() != "" })
	if r.Denied() != "" {
		t.Errorf("after one refusal: %s", r.Denied())
	}
}

// The rights are lost while the agent runs: what was read stays, and it is named.
func TestSecurityGroupsThatMayNotBeReadAnyMoreAreNamed(t *testing.T) {
	s := groupServer(t)
	r := reflectGroups(t, s, "")
	r.until("the groups are listed", func() bool { return len(r.State().Groups) > 0 })
	s.Refuse(securityGroups, http.StatusForbidden)
	s.Expire(securityGroups)
	r.until("the refusal is known", func() bool { return r.Denied() != "" })
	if !r.Synced() || len(r.State().Groups) == 0 {
		t.Errorf("synced %v, %+v", r.Synced(), r.State())
	}
	s.Refuse(securityGroups, 0)
	r.until("the groups are listed again", func() bool { return r.Denied() == "" })
}

// Policies that were created while SecurityGroups may not be read are in the copy, with and without groups of
// an earlier one.
func TestWhatSelectsPodsIsSavedWithoutSecurityGroupsToo(t *testing.T) {
	for _, before := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "groups.json")
		s := groupServer(t)
		if before {
			r := reflectGroups(t, s, path)
			r.until("synced", r.Synced)
			r.stop() // saves
		}
		s.Refuse(securityGroups, http.StatusForbidden)
		r := reflectGroups(t, s, path)
		r.until("the refusal is known", func() bool { return r.Denied() != "" })
		policies := len(r.State().Policies)
		s.Put(groupPoliciesPath, &vpcresources.SecurityGroupPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: vpcresources.KindSecurityGroupPolicy},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "later"},
			Spec: vpcresources.SecurityGroupPolicySpec{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "later"}}, SecurityGroups: vpcresources.GroupIDs{Groups: []string{"sg-0000000a"}},
			},
		})
		r.until("the new policy is known", func() bool { return len(r.State().Policies) == policies+1 })
		r.stop()
		s.SetDown(true)
		r = reflectGroups(t, s, path)
		if !r.Known() || !r.Copied() || len(r.State().Policies) != policies+1 || (len(r.State().Groups) > 0) != before {
			t.Errorf("with an earlier copy %v: known %v, copied %v, %+v", before, r.Known(), r.Copied(), r.State())
		}
	}
}

// The last groups of pods are in the snapshot. What no pod can have is not read from it.
func TestTheLastGroupsOfPodsAreSavedAndChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "groups.json")
	s := groupServer(t)
	r := reflectGroups(t, s, path)
	r.until("synced", r.Synced)
	want := map[string][]vpc.SecurityGroupID{"uid-1": {"sg-0000000a", "sg-0000000b"}}
	r.Keep(want)
	r.stop() // saves
	s.SetDown(true)
	again := reflectGroups(t, s, path)
	if got := again.Kept(); !reflect.DeepEqual(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	again.stop()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat(`"sg-0000000a",`, 16) + `"sg-0000000a"`
	wrong := strings.Replace(string(text), `"kept":{`, `"kept":{"":["sg-0000000a"],"uid-2":["web"],"uid-3":[],"uid-4":[`+long+`],"uid-5":["sg-0000000a","../x"],`, 1)
	if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil || wrong == string(text) {
		t.Fatal(err, string(text))
	}
	last := reflectGroups(t, s, path)
	if got := last.Kept(); !reflect.DeepEqual(got, want) || !last.Known() {
		t.Errorf("kept %v, want %v; known %v", got, want, last.Known())
	}
}
