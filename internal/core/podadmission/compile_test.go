package podadmission

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

func byLabels(namespace, name string, labels map[string]string) securitygroup.Policy {
	return securitygroup.Policy{
		Ref: securitygroup.Ref{Namespace: namespace, Name: name}, Groups: []string{"sg-1"}, PodSelector: &metav1.LabelSelector{MatchLabels: labels},
	}
}

func byAccount(namespace, name string, labels map[string]string) securitygroup.Policy {
	p := byLabels(namespace, name, nil)
	p.PodSelector, p.ServiceAccountSelector = nil, &metav1.LabelSelector{MatchLabels: labels}
	return p
}

func config() Config {
	return Config{Excluded: []string{"kube-system", "trunkline"}, Mutates: true, Webhook: Webhook{Namespace: "trunkline", Service: "trunkline-admission", CABundle: []byte("pem")}}
}

func TestWithoutAPolicyOnlyTheAnnotationIsGuarded(t *testing.T) {
	o := Compile(Input{}, config())
	if len(o.Validating) != 1 || o.Validating[0].Name != annotationName || len(o.Mutating)+len(o.Webhooks) != 0 {
		t.Errorf("%+v", o)
	}
}

func TestAnExcludedNamespaceHasNoObjectAndAReason(t *testing.T) {
	for _, namespace := range config().Excluded {
		o := Compile(Input{Policies: []securitygroup.Policy{byLabels(namespace, "p", nil), byAccount(namespace, "q", map[string]string{"a": "b"})}}, config())
		if len(o.Validating) != 1 || len(o.Mutating)+len(o.Webhooks) != 0 || len(o.Why) != 1 || !strings.Contains(o.Why[0], namespace) {
			t.Errorf("%s: %d validating, %d mutating, %d webhooks, %q", namespace, len(o.Validating), len(o.Mutating), len(o.Webhooks), o.Why)
		}
	}
}

// A policy that selects no pod needs no object: there is nothing that the namespace lacks either.
func TestPoliciesThatSelectNoPodHaveNoObjectAndNoReason(t *testing.T) {
	for _, namespace := range []string{"kube-system", "shop"} {
		p := byLabels(namespace, "p", nil)
		p.Groups = nil
		o := Compile(Input{Policies: []securitygroup.Policy{p}}, config())
		if len(o.Validating) != 1 || len(o.Mutating)+len(o.Webhooks)+len(o.Why) != 0 {
			t.Errorf("%s: %+v", namespace, o)
		}
	}
}

func TestAPolicyForTheMutationIsCompiledOnlyIfItIsServed(t *testing.T) {
	cfg := config()
	cfg.Mutates = false
	o := Compile(Input{Policies: []securitygroup.Policy{byLabels("shop", "p", nil)}}, cfg)
	if len(o.Mutating)+len(o.MutatingBindings) != 0 || len(o.Validating) != 2 || len(o.Webhooks) != 1 {
		t.Errorf("%d mutating, %d validating, %d webhooks", len(o.Mutating), len(o.Validating), len(o.Webhooks))
	}
}

// An object of one namespace never concerns pods of another one.
func TestEveryObjectOfANamespaceIsForThatNamespaceOnly(t *testing.T) {
	o := Compile(Input{Policies: []securitygroup.Policy{
		byLabels("shop", "p", nil), byAccount("shop", "q", map[string]string{"a": "b"}), byAccount("bank", "p", map[string]string{"a": "b"}),
	}}, config())
	var selectors []*metav1.LabelSelector
	for _, p := range o.Mutating {
		selectors = append(selectors, p.Spec.MatchConstraints.NamespaceSelector)
	}
	for _, p := range o.Validating[1:] {
		selectors = append(selectors, p.Spec.MatchConstraints.NamespaceSelector)
	}
	for _, c := range o.Webhooks {
		selectors = append(selectors, c.Webhooks[0].NamespaceSelector)
	}
	seen := map[string]int{}
	for _, s := range selectors {
		seen[metav1.FormatLabelSelector(s)]++
	}
	if len(selectors) != 6 || seen["kubernetes.io/metadata.name in (shop)"] != 3 || seen["kubernetes.io/metadata.name in (bank)"] != 3 {
		t.Errorf("%v", seen)
	}
}

func TestOnlyAServiceAccountSelectorNeedsTheWebhook(t *testing.T) {
	for name, tt := range map[string]struct {
		policy securitygroup.Policy
		change func(*Config)
		want   int
	}{
		"pod selector":                           {policy: byLabels("shop", "p", map[string]string{"a": "b"})},
		"empty service account selector":         {policy: byAccount("shop", "p", nil)},
		"service account selector":               {policy: byAccount("shop", "p", map[string]string{"a": "b"}), want: 1},
		"pod selector, mutation is not served":   {policy: byLabels("shop", "p", nil), change: func(c *Config) { c.Mutates = false }, want: 1},
		"service account selector, no authority": {policy: byAccount("shop", "p", map[string]string{"a": "b"}), change: func(c *Config) { c.Webhook.CABundle = nil }},
	} {
		cfg := config()
		if tt.change != nil {
			tt.change(&cfg)
		}
		if o := Compile(Input{Policies: []securitygroup.Policy{tt.policy}}, cfg); len(o.Webhooks) != tt.want {
			t.Errorf("%s: %d webhooks, want %d", name, len(o.Webhooks), tt.want)
		}
	}
}

// What does not fit an expression is decided by the webhook for more pods, never for fewer.
func TestPoliciesThatAreTooLargeAreTheWebhooks(t *testing.T) {
	many := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}}
	for i := range 3000 {
		many.MatchExpressions[0].Values = append(many.MatchExpressions[0].Values, fmt.Sprintf("value-%d", i))
	}
	large := byLabels("shop", "large", nil)
	large.PodSelector = many
	o := Compile(Input{Policies: []securitygroup.Policy{large}}, config())
	if len(o.Mutating) != 0 || len(o.Webhooks) != 1 || o.Webhooks[0].Webhooks[0].MatchConditions[2].Expression != "true" || len(o.Why) != 1 {
		t.Errorf("a large selector: %d mutating, %+v, %q", len(o.Mutating), o.Webhooks, o.Why)
	}
	var all []securitygroup.Policy
	for i := range 2000 {
		all = append(all, byLabels("shop", fmt.Sprintf("policy-%d", i), map[string]string{"app": fmt.Sprintf("app-%d", i)}))
	}
	o = Compile(Input{Policies: all}, config())
	ask := o.Webhooks[0].Webhooks[0].MatchConditions[2].Expression
	decided := strings.Count(o.Mutating[0].Spec.MatchConditions[2].Expression, "app-")
	if decided+len(o.Why) != len(all) || decided == 0 || len(o.Why) == 0 || ask != "true" {
		t.Errorf("of %d policies %d compiled, %d not; the webhook is asked for %.40s", len(all), decided, len(o.Why), ask)
	}
	var accounts []securitygroup.Account
	for i := range 2000 {
		accounts = append(accounts, securitygroup.Account{Ref: securitygroup.Ref{Namespace: "shop", Name: fmt.Sprintf("service-account-%d", i)}})
	}
	o = Compile(Input{Policies: []securitygroup.Policy{byAccount("shop", "p", map[string]string{"a": "b"})}, Accounts: accounts}, config())
	if got := o.Webhooks[0].Webhooks[0].MatchConditions[2].Expression; got != "true" {
		t.Errorf("with too many accounts the webhook is asked for %.80s", got)
	}
	for _, text := range []string{ask, o.Mutating[0].Spec.MatchConditions[2].Expression} {
		if len(text) > maxExpression {
			t.Errorf("an expression of %d characters", len(text))
		}
	}
}

var safe = regexp.MustCompile(`^'(?:[a-zA-Z0-9_./:, ()-]|\\u[0-9a-f]{4}|\\U[0-9a-f]{8})*'$`)

func FuzzALiteralEndsOnlyAtItsEnd(f *testing.F) {
	for _, s := range []string{"", "it's", `\`, "\n", "é", "\U0001f600", "\xff", `' || true || '`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := literal(s); !safe.MatchString(got) {
			t.Errorf("%q is %s", s, got)
		}
	})
}
