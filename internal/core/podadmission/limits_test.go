package podadmission

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// selectorOf returns a selector with an expression of this length.
func selectorOf(t *testing.T, length int) *metav1.LabelSelector {
	t.Helper()
	const wide = 50 // of all values but the first
	s := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{""}}}}
	rest := length - len(expressionOf(t, s))
	values := []string{strings.Repeat("x", rest%(wide+len("'', ")))}
	for i := range rest / (wide + len("'', ")) {
		values = append(values, fmt.Sprintf("%0*d", wide, i))
	}
	s.MatchExpressions[0].Values = values
	if n := len(expressionOf(t, s)); n != length {
		t.Fatalf("%d characters, want %d", n, length)
	}
	return s
}

func expressionOf(t *testing.T, s *metav1.LabelSelector) string {
	t.Helper()
	read, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := selects(read)
	if !ok {
		t.Fatalf("%v is not compiled", s)
	}
	return text
}

func ofPods(name string, pods *metav1.LabelSelector) securitygroup.Policy {
	p := byLabels("shop", name, nil)
	p.PodSelector = pods
	return p
}

// asksFor is the expression for the pods that the webhook is asked about; "" if it is not asked.
func asksFor(o Objects) string {
	if len(o.Webhooks) == 0 {
		return ""
	}
	return o.Webhooks[0].Webhooks[0].MatchConditions[2].Expression
}

func TestASelectorIsCompiledUpToItsBound(t *testing.T) {
	for length, fits := range map[int]bool{maxSelector: true, maxSelector + 1: false} {
		o := Compile(Input{Policies: []securitygroup.Policy{ofPods("p", selectorOf(t, length))}}, config())
		if (len(o.Mutating) == 1) != fits || (asksFor(o) == "") != fits || (len(o.Why) == 0) != fits {
			t.Errorf("%d characters: %d policies, the webhook is asked for %q, %q", length, len(o.Mutating), asksFor(o), o.Why)
		}
	}
	account := byAccount("shop", "p", nil)
	for length, fits := range map[int]bool{maxSelector: true, maxSelector + 1: false} {
		account.ServiceAccountSelector = selectorOf(t, length)
		o := Compile(Input{Policies: []securitygroup.Policy{account}}, config())
		if other := (subject{name: "till"}); asks(t, o, "serviceaccounts", other) == fits {
			t.Errorf("a service account selector of %d characters: the webhook is asked about other accounts: %v", length, !fits)
		}
	}
}

// The first policies by name are compiled while they fit together, also smaller ones after one that does not.
func TestPoliciesAreCompiledUpToTheBoundOfAllTogether(t *testing.T) {
	part := maxExpression/4 - len("() || ")
	small := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for name, tt := range map[string]struct {
		sizes []int
		left  string // the policies that are left to the webhook
	}{
		"that fit exactly":       {[]int{part, part, part, part}, "small"},
		"one character too many": {[]int{part, part, part, part + 1, part}, "policy-3 small"},
		"with space for a small": {[]int{part, part, part, part + 1}, "policy-3"},
	} {
		t.Run(name, func(t *testing.T) {
			var policies []securitygroup.Policy
			for i, size := range tt.sizes {
				policies = append(policies, ofPods(fmt.Sprint("policy-", i), selectorOf(t, size)))
			}
			o := Compile(Input{Policies: append(policies, ofPods("small", small))}, config())
			left := strings.Fields(tt.left)
			if len(o.Why) != len(left) {
				t.Fatalf("%q, want one for each of %q", o.Why, left)
			}
			for i, policy := range left {
				if !strings.Contains(o.Why[i], "SecurityGroupPolicy shop/"+policy+": the policies and service accounts of the namespace are too many") {
					t.Errorf("%q, want %s", o.Why[i], policy)
				}
			}
			if n := len(o.Validating[1].Spec.Variables); n != len(policies)+1-len(left) {
				t.Errorf("%d policies are compiled", n)
			}
		})
	}
}

func TestNamesOfAccountsAreCompiledUpToTheirBounds(t *testing.T) {
	one := func(name string) accounts { return accounts{{Ref: securitygroup.Ref{Namespace: "shop", Name: name}}} }
	selector := labels.SelectorFromSet(labels.Set{"team": "pay"})
	for name, tt := range map[string]struct {
		most    int
		compile func(accounts) string
		tooMany string // the expression without names
	}{
		"of all accounts":        {maxExpression / 2, accounts.unknown, "true"},
		"of accounts that come":  {maxExpression / 4, func(a accounts) string { return names(a.comes(selector)) }, ""},
		"whichever names it has": {maxExpression / 2, func(a accounts) string { return append(a, one("till")...).unknown() }, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			fixed := len(tt.compile(one("a"))) - 1
			if got := tt.compile(one(strings.Repeat("a", tt.most-fixed))); len(got) != tt.most {
				t.Errorf("%d characters of %d: %.60s", len(got), tt.most, got)
			}
			if got := tt.compile(one(strings.Repeat("a", tt.most-fixed+1))); got != tt.tooMany {
				t.Errorf("one character too many: %.60s, want %q", got, tt.tooMany)
			}
		})
	}
}

// names is the list of names in an expression for accounts; "" without one.
func names(comes string) string {
	_, list, _ := strings.Cut(comes, " && object.metadata.name in ")
	return list
}

// An expression that would be too long is true: the webhook decides for more objects.
func TestTheWebhookIsAskedAboutMoreIfItsExpressionIsTooLong(t *testing.T) {
	for name, of := range map[string]func(text string) string{
		"pods":     func(text string) string { return rules{asks: []string{text}}.ask() },
		"accounts": func(text string) string { return rules{accounts: []string{text}}.comes() },
	} {
		longest := strings.Repeat("x", maxExpression-len("()"))
		if got := of(longest); got != "("+longest+")" {
			t.Errorf("%s: an expression of %d characters", name, len(got))
		}
		if got := of(longest + "x"); got != "true" {
			t.Errorf("%s: an expression of %d characters, want true", name, len(got))
		}
	}
	if ask, comes := (rules{}).ask(), (rules{}).comes(); ask != "" || comes != "" {
		t.Errorf("without a reason to ask: %q, %q", ask, comes)
	}
}

func TestAPolicyWithAnUnknownOperatorIsTheWebhooks(t *testing.T) {
	unknown, err := labels.Parse("a>1")
	if err != nil {
		t.Fatal(err)
	}
	p := securitygroup.Selection{Policy: securitygroup.Ref{Namespace: "shop", Name: "p"}, Pods: unknown}
	if r := compileRules("shop", []securitygroup.Selection{p}, nil, true); len(r.decided) != 0 || r.ask() != "true" || len(r.why) != 1 {
		t.Errorf("a pod selector: %d compiled, the webhook is asked for %q, %q", len(r.decided), r.ask(), r.why)
	}
	p.Pods, p.Accounts = nil, unknown
	if r := compileRules("shop", []securitygroup.Selection{p}, nil, true); r.comes() != "true" {
		t.Errorf("a service account selector: the webhook is asked for %q", r.comes())
	}
}
