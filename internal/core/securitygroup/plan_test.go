package securitygroup_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// shop has two pods with branches, db and web, and one without, job.
func shop() (securitygroup.Snapshot, map[types.UID][]string) {
	pod := func(name string, labels ...string) securitygroup.Pod {
		return securitygroup.Pod{Ref: securitygroup.Ref{Namespace: "shop", Name: name}, UID: types.UID("uid-" + name), Labels: labelled(labels...).MatchLabels, ServiceAccount: name}
	}
	account := func(name string, labels ...string) securitygroup.Account {
		return securitygroup.Account{Ref: securitygroup.Ref{Namespace: "shop", Name: name}, Labels: labelled(labels...).MatchLabels}
	}
	return securitygroup.Snapshot{
		Policies: []securitygroup.Policy{policy("by-pod", labelled("role", "web"), nil, sgA, sgB), policy("by-account", nil, labelled("tier", "back"), sgC)},
		Accounts: []securitygroup.Account{account("web"), account("db", "tier", "back"), account("job")},
		Pods:     []securitygroup.Pod{pod("web", "role", "web"), pod("db"), pod("job")},
		Known:    known(),
	}, map[types.UID][]string{"uid-web": {sgB, sgA}, "uid-db": {sgC}}
}

func TestWhatIsAppliedAgainAfterAChange(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(s *securitygroup.Snapshot, applied map[types.UID][]string)
		want   []string
	}{
		{"nothing without a change, in whichever order EC2 lists groups", func(*securitygroup.Snapshot, map[types.UID][]string) {}, nil},
		{"a policy's groups: its pods", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Policies[0].Groups = []string{sgA} }, []string{"reapply shop/web [" + sgA + "]"}},
		{"the order of a policy's groups: none", func(s *securitygroup.Snapshot, _ map[types.UID][]string) {
			s.Policies[0].Groups = []string{sgB, sgA, sgB}
		}, nil},
		{"a pod's labels: the pod that came to be selected, which has no branch", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Pods[2].Labels = s.Pods[0].Labels }, []string{"protect shop/job [" + sgA + " " + sgB + "]"}},
		{"a pod's labels: the pod that is not selected any more", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Pods[0].Labels = nil }, []string{"release shop/web []"}},
		{"a pod's labels: the pod that a second policy selects too", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Pods[1].Labels = s.Pods[0].Labels }, []string{"reapply shop/db [" + sgA + " " + sgB + " " + sgC + "]"}},
		{"a service account's labels: its pods", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Accounts[2].Labels = s.Accounts[1].Labels }, []string{"protect shop/job [" + sgC + "]"}},
		{"a service account that is deleted: its pods keep what they have, and new ones are refused", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Accounts = s.Accounts[:1] }, []string{"refuse shop/db []", "refuse shop/job []"}},
		{"a policy that is deleted: its pods", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Policies = s.Policies[:1] }, []string{"release shop/db []"}},
		{"a new policy: all of its pods", func(s *securitygroup.Snapshot, _ map[types.UID][]string) {
			s.Policies = append(s.Policies, policy("all", labelled(), nil, sgC))
		}, []string{"protect shop/job [" + sgC + "]", "reapply shop/web [" + sgA + " " + sgB + " " + sgC + "]"}},
		{"a group that is deleted at EC2: its pods are refused", func(s *securitygroup.Snapshot, _ map[types.UID][]string) {
			s.Known.Groups[sgC] = securitygroup.Group{}
		}, []string{"refuse shop/db []"}},
		{"groups changed at EC2 by another program: the pod", func(_ *securitygroup.Snapshot, applied map[types.UID][]string) {
			applied["uid-web"] = []string{sgA}
		}, []string{"reapply shop/web [" + sgA + " " + sgB + "]"}},
		{"a branch that is lost: the pod", func(_ *securitygroup.Snapshot, applied map[types.UID][]string) { delete(applied, "uid-web") }, []string{"protect shop/web [" + sgA + " " + sgB + "]"}},
		{"a pod that has ended: none", func(s *securitygroup.Snapshot, _ map[types.UID][]string) { s.Pods[0].Ended = true }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, applied := shop()
			tt.change(&s, applied)
			var got []string
			for _, a := range securitygroup.Plan(applied, s.Decide()) {
				got = append(got, fmt.Sprintf("%s %s %v", a.Kind, a.Pod, a.To))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("plan %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPodsAreCountedForEachPolicyThatSelectsThem(t *testing.T) {
	s, _ := shop()
	s.Policies = append(s.Policies, policy("all", labelled(), nil, sgC), policy("none", labelled("role", "none"), nil, sgC))
	s.Known.Groups[sgB] = securitygroup.Group{}
	got := securitygroup.Tally(s.Decide())
	want := map[string]securitygroup.Count{"by-pod": {Matched: 1, Refused: 1}, "by-account": {Matched: 1}, "all": {Matched: 3, Refused: 1}, "none": {}}
	for name, count := range want {
		if c := got[securitygroup.Ref{Namespace: "shop", Name: name}]; c != count {
			t.Errorf("policy %s: %+v, want %+v", name, c, count)
		}
	}
}

func TestActionsAndDecisionsAreReadable(t *testing.T) {
	s, applied := shop()
	s.Policies[0].Groups = []string{sgA}
	decided := s.Decide()
	const action = "reapply shop/web: [" + sgA + " " + sgB + "] -> [" + sgA + "]: selected by by-pod: " + sgA
	if list := securitygroup.Plan(applied, decided); len(list) != 1 || list[0].String() != action {
		t.Errorf("%v, want %s", list, action)
	}
	const decision = "selected: selected by by-pod: " + sgA + "\n" +
		"  shop/by-account: serviceAccountSelector tier=back does not match the labels of service account \"web\"\n" +
		"  shop/by-pod: podSelector role=web matches\n"
	if got := decided["uid-web"].String(); got != decision {
		t.Errorf("%s\nwant %s", got, decision)
	}
}

// What protects comes first, and the same pods always give the same list.
func TestActionsAreOrderedByKindPodAndUID(t *testing.T) {
	applied, decided := map[types.UID][]string{}, map[types.UID]securitygroup.Decided{}
	add := func(uid types.UID, namespace, name string, verdict securitygroup.Verdict, groups ...string) {
		pod := securitygroup.Pod{Ref: securitygroup.Ref{Namespace: namespace, Name: name}, UID: uid}
		decided[uid] = securitygroup.Decided{Pod: pod, Decision: securitygroup.Decision{Verdict: verdict, Groups: groups}}
	}
	add("8", "shop", "r", securitygroup.NotSelected)
	add("7", "shop", "q", securitygroup.Refused)
	add("6", "shop", "p", securitygroup.Selected, sgA)
	applied["8"], applied["6"] = []string{sgA}, []string{sgB}
	for i, ref := range []securitygroup.Ref{{Namespace: "bank", Name: "b"}, {Namespace: "bank", Name: "c"}, {Namespace: "shop", Name: "a"}, {Namespace: "shop", Name: "a"}, {Namespace: "shop", Name: "z"}} {
		add(types.UID(fmt.Sprint(i+1)), ref.Namespace, ref.Name, securitygroup.Selected, sgA)
	}
	want := []string{"protect bank/b 1", "protect bank/c 2", "protect shop/a 3", "protect shop/a 4", "protect shop/z 5", "reapply shop/p 6", "refuse shop/q 7", "release shop/r 8"}
	var got []string
	for _, a := range securitygroup.Plan(applied, decided) {
		got = append(got, fmt.Sprintf("%s %s %s", a.Kind, a.Pod, a.UID))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
