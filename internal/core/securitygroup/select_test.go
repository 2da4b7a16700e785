package securitygroup_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// Groups of the tests.
const (
	sgA = "sg-0000000000000000a"
	sgB = "sg-0000000000000000b"
	sgC = "sg-cccccccc"
)

func labelled(pairs ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		s.MatchLabels[pairs[i]] = pairs[i+1]
	}
	return s
}

func expression(key string, op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func policy(name string, pods, accounts *metav1.LabelSelector, groups ...string) securitygroup.Policy {
	return securitygroup.Policy{Ref: securitygroup.Ref{Namespace: "shop", Name: name}, PodSelector: pods, ServiceAccountSelector: accounts, Groups: groups}
}

// web is a pod with the label role=web and a service account with the label tier=front.
func web() (securitygroup.Pod, *securitygroup.Account) {
	return securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: "shop", Name: "web-1"}, UID: "uid-web-1", Labels: map[string]string{"role": "web"}, ServiceAccount: "front",
	}, &securitygroup.Account{
		Ref: securitygroup.Ref{Namespace: "shop", Name: "front"}, Labels: map[string]string{"tier": "front"},
	}
}

func TestWhichPoliciesSelectAPod(t *testing.T) {
	all := &metav1.LabelSelector{}
	elsewhere := policy("p", all, nil, sgA)
	elsewhere.Namespace = "bank"
	for _, tt := range []struct {
		name     string
		policies []securitygroup.Policy
		groups   []string // none is not selected
		why      string   // in the reason of the first policy, or of the decision without one
	}{
		{"without a policy it is a pod like any other", nil, nil, "no SecurityGroupPolicy"},
		{"policies of other namespaces do not count", []securitygroup.Policy{elsewhere}, nil, "no SecurityGroupPolicy"},
		{"a pod selector selects by the pod's labels", []securitygroup.Policy{policy("p", labelled("role", "web"), nil, sgA)}, []string{sgA}, "podSelector role=web matches"},
		{"a pod selector of other labels does not", []securitygroup.Policy{policy("p", labelled("role", "db"), nil, sgA)}, nil, "podSelector role=db does not match the pod's labels"},
		{"a service account selector selects by the account's labels", []securitygroup.Policy{policy("p", nil, labelled("tier", "front"), sgA)}, []string{sgA}, `serviceAccountSelector tier=front matches service account "front"`},
		{"it does not select by the pod's labels", []securitygroup.Policy{policy("p", nil, labelled("role", "web"), sgA)}, nil, "does not match the labels of service account"},
		{"both selectors must match", []securitygroup.Policy{policy("p", labelled("role", "web"), labelled("tier", "front"), sgA)}, []string{sgA}, "matches, serviceAccountSelector"},
		{"the pod's labels alone do not suffice for both", []securitygroup.Policy{policy("p", labelled("role", "web"), labelled("tier", "back"), sgA)}, nil, "tier=back does not match"},
		{"nor do the account's", []securitygroup.Policy{policy("p", labelled("role", "db"), labelled("tier", "front"), sgA)}, nil, "role=db does not match"},
		{"an empty pod selector selects all pods", []securitygroup.Policy{policy("p", all, nil, sgA)}, []string{sgA}, "podSelector {} matches"},
		{"an empty service account selector selects all pods", []securitygroup.Policy{policy("p", nil, all, sgA)}, []string{sgA}, "serviceAccountSelector {} matches"},
		{"neither selector selects no pod", []securitygroup.Policy{policy("p", nil, nil, sgA)}, nil, "podSelector and serviceAccountSelector are both absent"},
		{"a policy without groups selects no pod", []securitygroup.Policy{policy("p", all, nil)}, nil, "groupIds is empty"},
		{"an invalid pod selector selects no pod", []securitygroup.Policy{policy("p", expression("role", "Near"), all, sgA)}, nil, "podSelector: invalid selector"},
		{"an invalid service account selector selects no pod", []securitygroup.Policy{policy("p", all, expression("tier", metav1.LabelSelectorOpIn), sgA)}, nil, "serviceAccountSelector: invalid selector"},
		{"expressions select", []securitygroup.Policy{policy("p", expression("role", metav1.LabelSelectorOpIn, "web", "db"), nil, sgA)}, []string{sgA}, "role in (db,web)"},
		{"an expression that excludes does not", []securitygroup.Policy{policy("p", expression("role", metav1.LabelSelectorOpDoesNotExist), nil, sgA)}, nil, "!role does not match"},
		{"several policies are a union, each group once, sorted", []securitygroup.Policy{policy("z", all, nil, sgC, sgA), policy("a", labelled("role", "web"), nil, sgB, sgA)}, []string{sgA, sgB, sgC}, "role=web matches"},
		{"one that does not match adds nothing", []securitygroup.Policy{policy("a", all, nil, sgA), policy("b", labelled("role", "db"), nil, sgB)}, []string{sgA}, "{} matches"},
		{"an invalid one beside it changes nothing", []securitygroup.Policy{policy("a", all, nil, sgA), policy("b", nil, nil, sgB)}, []string{sgA}, "{} matches"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, account := web()
			d := securitygroup.Compile(tt.policies).Select(pod, account)
			if want := len(tt.groups) > 0; (d.Verdict == securitygroup.Selected) != want || d.Verdict == securitygroup.Refused || !slices.Equal(d.Groups, tt.groups) {
				t.Errorf("%s %v, want %v", d.Verdict, d.Groups, tt.groups)
			}
			why := d.Why
			if len(d.Matches) > 0 {
				why = d.Matches[0].Why
			}
			if !strings.Contains(why, tt.why) {
				t.Errorf("why: %q, want %q in it", why, tt.why)
			}
		})
	}
}

func TestWhichPodsPoliciesDoNotApplyTo(t *testing.T) {
	set := securitygroup.Compile([]securitygroup.Policy{policy("p", &metav1.LabelSelector{}, nil, sgA)})
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   securitygroup.Verdict
	}{
		"a pod that has not started is selected":    {func(*corev1.Pod) {}, securitygroup.Selected},
		"a pod that is being deleted is selected":   {func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, securitygroup.Selected},
		"a pod on its node's network is not":        {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, securitygroup.NotSelected},
		"a pod that has completed is not":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, securitygroup.NotSelected},
		"a pod that has failed is not":              {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, securitygroup.NotSelected},
		"a pod of an unknown phase is selected":     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, securitygroup.Selected},
		"a node selector for Windows is no way out": {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "windows"} }, securitygroup.Selected},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: "u"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			tt.change(pod)
			if d := set.Select(securitygroup.FromPod(pod), nil); d.Verdict != tt.want {
				t.Errorf("%s", d)
			}
		})
	}
}

func TestAPodOfTheAPIIsReadWithAllThatDecides(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "uid", Labels: map[string]string{"role": "web"}},
		Spec:       corev1.PodSpec{ServiceAccountName: "front", HostNetwork: true},
		Status:     corev1.PodStatus{Phase: corev1.PodFailed},
	}
	want := securitygroup.Pod{
		Ref: securitygroup.Ref{Namespace: "shop", Name: "web-1"}, UID: "uid", Labels: map[string]string{"role": "web"},
		ServiceAccount: "front", HostNetwork: true, Ended: true,
	}
	if got := securitygroup.FromPod(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestVerdictsAreReadable(t *testing.T) {
	for verdict, want := range map[securitygroup.Verdict]string{
		securitygroup.NotSelected: "not selected", securitygroup.Selected: "selected", securitygroup.Refused: "refused", 9: "Verdict(9)",
	} {
		if verdict.String() != want {
			t.Errorf("%s, want %s", verdict, want)
		}
	}
}

// AWS's webhook refuses every pod of a missing account, also where no policy depends on it.
func TestAMissingServiceAccountMattersOnlyWhereAPolicySelectsByItsLabels(t *testing.T) {
	all, front := &metav1.LabelSelector{}, labelled("tier", "front")
	absent := expression("tier", metav1.LabelSelectorOpDoesNotExist)
	for _, tt := range []struct {
		name    string
		account string
		policy  securitygroup.Policy
		want    securitygroup.Verdict
	}{
		{"a policy that selects by its labels refuses", "front", policy("p", nil, front, sgA), securitygroup.Refused},
		{"also one that selects accounts without a label", "front", policy("p", nil, absent, sgA), securitygroup.Refused},
		{"also beside a matching pod selector", "front", policy("p", labelled("role", "web"), front, sgA), securitygroup.Refused},
		{"not beside one that does not match", "front", policy("p", labelled("role", "db"), front, sgA), securitygroup.NotSelected},
		{"an empty selector needs no labels", "front", policy("p", nil, all, sgA), securitygroup.Selected},
		{"pod selectors need no account", "front", policy("p", all, nil, sgA), securitygroup.Selected},
		{"a static pod has no account, and no labels of one", "", policy("p", nil, front, sgA), securitygroup.NotSelected},
		{"a static pod is selected where no label is wanted", "", policy("p", nil, absent, sgA), securitygroup.Selected},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, account := web()
			pod.ServiceAccount = tt.account
			account.Name = "other" // an account of another name does not count
			for _, of := range []*securitygroup.Account{nil, account} {
				d := securitygroup.Compile([]securitygroup.Policy{tt.policy}).Select(pod, of)
				if d.Verdict != tt.want || errors.Is(d.Refusal, securitygroup.ErrNoAccount) != (tt.want == securitygroup.Refused) {
					t.Errorf("%s", d)
				}
			}
		})
	}
	pod, _ := web()
	d := securitygroup.Compile([]securitygroup.Policy{policy("c", nil, front, sgC), policy("a", all, nil, sgA), policy("b", nil, front, sgB)}).Select(pod, nil)
	if d.Verdict != securitygroup.Refused || d.Groups != nil {
		t.Errorf("the groups of another policy do not make up for it: %s", d)
	}
	const missing = "service account front was not found, and serviceAccountSelector tier=front selects by its labels"
	const want = "refused: SecurityGroupPolicy shop/b: service account front: the service account was not found\n" +
		"  shop/a: podSelector {} matches\n  shop/b: " + missing + "\n  shop/c: " + missing + "\n"
	if d.String() != want {
		t.Errorf("%s\nwant %s", d, want)
	}
}

func TestPoliciesThatSelectNoPodAreProblems(t *testing.T) {
	set := securitygroup.Compile([]securitygroup.Policy{
		policy("z", nil, nil, sgA), policy("y", labelled(), nil), policy("x", expression("a", "Near"), nil, sgA), policy("ok", labelled(), nil, sgA),
	})
	var got []string
	for _, p := range set.Problems() {
		got = append(got, p.Policy.Name)
		for _, err := range []error{securitygroup.ErrSelector, securitygroup.ErrNoGroups, securitygroup.ErrNoSelector} {
			if errors.Is(p.Err, err) {
				got = append(got, err.Error())
			}
		}
	}
	want := []string{"x", "invalid selector", "y", "securityGroups.groupIds is empty", "z", "podSelector and serviceAccountSelector are both absent"}
	if !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
}

func TestThePoliciesThatCanSelectPodsAreListedByNamespace(t *testing.T) {
	elsewhere := policy("p", labelled("a", "b"), nil, sgA)
	elsewhere.Namespace = "bank"
	set := securitygroup.Compile([]securitygroup.Policy{
		policy("z", labelled("role", "web"), labelled("tier", "front"), sgA), policy("invalid", nil, nil, sgA), policy("a", nil, labelled("tier", "back"), sgB), elsewhere,
	})
	if got := set.Namespaces(); !slices.Equal(got, []string{"bank", "shop"}) {
		t.Errorf("namespaces %q", got)
	}
	for namespace, want := range map[string]string{"shop": "shop/a absent tier=back; shop/z role=web tier=front", "bank": "bank/p a=b absent", "other": ""} {
		text := func(s labels.Selector) string {
			if s == nil {
				return "absent"
			}
			return s.String()
		}
		var got []string
		for _, s := range set.Selections(namespace) {
			got = append(got, s.Policy.String()+" "+text(s.Pods)+" "+text(s.Accounts))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: %q, want %q", namespace, got, want)
		}
	}
}
