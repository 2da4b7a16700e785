package podadmission

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// shop is a namespace with policies and the accounts that existed when they were compiled.
type shop struct{ Input }

func drawLabels(t *rapid.T, what string) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "example.com/Tier"}), rapid.SampledFrom([]string{"x", "y", "", "v1.2_3"}), 0, 2).Draw(t, what)
}

func drawSelector(t *rapid.T, what string) *metav1.LabelSelector {
	if rapid.IntRange(0, 3).Draw(t, what+" is absent") == 0 {
		return nil
	}
	s := &metav1.LabelSelector{}
	if rapid.Bool().Draw(t, what+" has labels") {
		s.MatchLabels = drawLabels(t, what)
	}
	for range rapid.IntRange(0, 2).Draw(t, "expressions") {
		e := metav1.LabelSelectorRequirement{
			Key:      rapid.SampledFrom([]string{"a", "example.com/Tier"}).Draw(t, "key"),
			Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator"),
		}
		if e.Operator == "In" || e.Operator == "NotIn" {
			e.Values = rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", ""}), 0, 2).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func drawShop(t *rapid.T) (s shop) {
	for i := range rapid.IntRange(1, 3).Draw(t, "policies") {
		s.Policies = append(s.Policies, securitygroup.Policy{
			Ref: securitygroup.Ref{Namespace: "shop", Name: fmt.Sprintf("policy-%d", i)}, Groups: []string{"sg-1"},
			PodSelector: drawSelector(t, "podSelector"), ServiceAccountSelector: drawSelector(t, "serviceAccountSelector"),
		})
	}
	for _, name := range []string{"one", "two"} {
		s.Accounts = append(s.Accounts, securitygroup.Account{Ref: securitygroup.Ref{Namespace: "shop", Name: name}, Labels: drawLabels(t, "account labels")})
	}
	return s
}

// account is the one of a name, nil if it did not exist.
func (s shop) account(name string) *securitygroup.Account {
	for i := range s.Accounts {
		if s.Accounts[i].Name == name {
			return &s.Accounts[i]
		}
	}
	return nil
}

// drawPod draws a pod, as conditions read it.
func drawPod(t *rapid.T) subject {
	return subject{
		name: "p", labels: drawLabels(t, "pod labels"), account: rapid.SampledFrom([]string{"", "one", "two", "unknown"}).Draw(t, "account"),
		hostNetwork: rapid.IntRange(0, 9).Draw(t, "host network") == 0, requests: rapid.IntRange(0, 9).Draw(t, "requests") == 0,
	}
}

func (s subject) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: s.name, Labels: s.labels},
		Spec:       corev1.PodSpec{ServiceAccountName: s.account, HostNetwork: s.hostNetwork},
	}
}

// asks reports whether the webhook for a resource is asked about an object.
func asks(t rapid.TB, o Objects, resource string, about subject) bool {
	t.Helper()
	for _, c := range o.Webhooks {
		for _, w := range c.Webhooks {
			if w.Rules[0].Resources[0] == resource {
				return about.matches(t, w.MatchConditions)
			}
		}
	}
	return false
}

// mutates reports whether the API server has a pod request a branch; it then also refuses one that does not.
func mutates(t rapid.TB, o Objects, pod subject) bool {
	t.Helper()
	refuses := len(o.Validating) > 1 && pod.matches(t, o.Validating[1].Spec.MatchConditions)
	if len(o.Mutating) == 0 {
		return false
	}
	mutates := pod.matches(t, o.Mutating[0].Spec.MatchConditions)
	if mutates != refuses {
		t.Fatalf("pod %+v is mutated: %v, and refused without the mutation: %v", pod, mutates, refuses)
	}
	return mutates
}

// test/crds/podadmission has the same test against an API server, which takes minutes.
func TestConditionsDecideAsSecurityGroupPoliciesDo(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := drawShop(t)
		set := securitygroup.Compile(s.Policies)
		served, cfg := Compile(s.Input, config()), config()
		cfg.Mutates = false
		unserved := Compile(s.Input, cfg)
		for range 8 {
			pod := drawPod(t)
			d := set.Select(securitygroup.FromPod(pod.pod()), s.account(pod.account))
			concerns := !pod.hostNetwork && !pod.requests
			mutated, asked := mutates(t, served, pod), asks(t, served, "pods", pod)
			seen[fmt.Sprint(d.Verdict, " ", mutated, " ", asked)]++
			switch {
			case d.Verdict == securitygroup.Refused && concerns: // its account did not exist
				if !asked {
					t.Fatalf("pod %+v: %s, and the webhook is not asked", pod, d)
				}
			case mutated != (concerns && d.Verdict == securitygroup.Selected) || asked:
				t.Fatalf("pod %+v is mutated: %v, the webhook is asked: %v; %s", pod, mutated, asked, d)
			}
			if got, want := asks(t, unserved, "pods", pod), concerns && d.Verdict != securitygroup.NotSelected; got != want || mutates(t, unserved, pod) {
				t.Fatalf("pod %+v, and the API server cannot mutate: the webhook is asked: %v, want %v; %s", pod, got, want, d)
			}
		}
	})
	for _, kind := range []string{"selected true false", "not selected false false", "refused false true"} {
		if seen[kind] < 5 {
			t.Errorf("%d pods were %s of %v: the check is not valid", seen[kind], kind, seen)
		}
	}
}

func TestTheWebhookIsAskedBeforeAnAccountComesToBeSelected(t *testing.T) {
	comes := 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawShop(t)
		o := Compile(s.Input, config())
		for _, before := range append(s.Accounts, s.Accounts...) {
			after := subject{name: before.Name, labels: drawLabels(t, "new labels")}
			want := false
			for _, selection := range securitygroup.Compile(s.Policies).Selections("shop") {
				selector := selection.Accounts
				want = want || selector != nil && selector.Matches(labels.Set(after.labels)) && !selector.Matches(labels.Set(before.Labels))
			}
			if want {
				comes++
			}
			if got := asks(t, o, "serviceaccounts", after); got != want {
				t.Fatalf("account %s from %v to %v: the webhook is asked: %v, want %v", before.Name, before.Labels, after.labels, got, want)
			}
		}
		created := subject{name: "new", labels: drawLabels(t, "labels of a new account")}
		if asks(t, o, "serviceaccounts", created) {
			t.Fatalf("the webhook is asked about a new account, of which it is asked pod by pod")
		}
	})
	if comes < 5 {
		t.Errorf("%d accounts come to be selected: the check is not valid", comes)
	}
}
