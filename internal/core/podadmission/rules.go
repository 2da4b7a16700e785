package podadmission

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// What expressions read. A pod that names no account has none: it is static.
const (
	podLabels  = "object.metadata.?labels.orValue({})"
	podAccount = "object.spec.?serviceAccountName.orValue('')"
)

// maxSelector bounds the text of one selector. A policy with a larger one is the webhook's.
const maxSelector = maxExpression / 4

// rule is a policy that the API server can decide by itself: an expression that is true for the
// pods that it selects.
type rule struct{ name, text string }

// rules are the policies of one namespace, compiled.
type rules struct {
	namespace string
	decided   []rule   // by name
	asks      []string // expressions for the pods that the webhook must decide on
	ofUnknown []string // the same, if the pod's account did not exist when the policies were compiled
	unknown   string   // expression for such a pod
	accounts  []string // expressions for accounts that come to be selected
	why       []string // a sentence for each policy that is the webhook's as a whole
}

// accounts are the service accounts of a namespace.
type accounts []securitygroup.Account

// names are those of the accounts that a selector matches; that of a pod without an account, "",
// is among them if the selector matches no labels.
func (a accounts) names(s labels.Selector) (matching []string) {
	if s.Matches(labels.Set{}) {
		matching = append(matching, "")
	}
	for _, account := range a {
		if s.Matches(labels.Set(account.Labels)) {
			matching = append(matching, account.Name)
		}
	}
	return matching
}

// unknown is true for a pod with an account that did not exist when the policies were compiled. It
// is true for every pod if the names do not fit an expression.
func (a accounts) unknown() string {
	names := []string{""}
	for _, account := range a {
		names = append(names, account.Name)
	}
	text := fmt.Sprintf("!(%s in %s)", podAccount, list(names))
	if len(text) > maxExpression/2 {
		return "true"
	}
	return text
}

// comes is true for a service account that a selector matches, and did not match when the policies were
// compiled. It is true for more accounts if the names do not fit an expression.
func (a accounts) comes(s labels.Selector) string {
	text, ok := selects(s)
	if !ok || len(text) > maxSelector {
		return "true"
	}
	var others []string
	for _, account := range a {
		if !s.Matches(labels.Set(account.Labels)) {
			others = append(others, account.Name)
		}
	}
	if names := list(others); len(names) <= maxExpression/4 {
		text = and(text, "object.metadata.name in "+names)
	}
	return text
}

// comes is true for the service accounts that the webhook must be asked about, "" if it is about none.
func (r rules) comes() string {
	switch text := or(r.accounts...); {
	case len(r.accounts) == 0:
		return ""
	case len(text) > maxExpression:
		return "true"
	default:
		return text
	}
}

// compileRules compiles the policies of one namespace. mutates is whether the API server can have
// pods request the resource by itself; otherwise the webhook does so for every selected pod.
func compileRules(namespace string, selections []securitygroup.Selection, known accounts, mutates bool) rules {
	r := rules{namespace: namespace, unknown: known.unknown()}
	size := 0
	for _, s := range selections {
		pods, ok := selects(s.Pods)
		if !ok || len(pods) > maxSelector {
			r.leave(s.Policy.Name, "true", "its podSelector is too large to compile")
			continue
		}
		text := pods
		if s.Accounts != nil && !s.Accounts.Empty() {
			text = and(pods, fmt.Sprintf("%s in %s", podAccount, list(known.names(s.Accounts))))
			r.ofUnknown = append(r.ofUnknown, pods)
			r.accounts = append(r.accounts, known.comes(s.Accounts))
		}
		if size += len(text) + len("() || "); size > maxExpression {
			size -= len(text) + len("() || ")
			r.leave(s.Policy.Name, pods, "the policies and service accounts of the namespace are too many to compile all")
			continue
		}
		r.decided = append(r.decided, rule{s.Policy.Name, text})
		if !mutates {
			r.asks = append(r.asks, text)
		}
	}
	return r
}

// leave has the webhook decide on a policy.
func (r *rules) leave(policy, ask, why string) {
	r.asks = append(r.asks, ask)
	r.why = append(r.why, fmt.Sprintf("SecurityGroupPolicy %s/%s: %s: the webhook decides on the pods that it may select", r.namespace, policy, why))
}

// ask is true for the pods that the webhook must decide on, "" if it decides on none.
func (r rules) ask() string {
	terms := r.asks
	if len(r.ofUnknown) > 0 {
		terms = append(slices.Clone(terms), and("("+or(r.ofUnknown...)+")", r.unknown))
	}
	switch text := or(terms...); {
	case len(terms) == 0:
		return ""
	case len(text) > maxExpression:
		return "true"
	default:
		return text
	}
}

// selected is true if one of the compiled policies selects the pod.
func (r rules) selected() string {
	terms := make([]string, len(r.decided))
	for i, d := range r.decided {
		terms[i] = d.text
	}
	return or(terms...)
}

// by lists the names of the policies that select the pod; the rules are variables.
func (r rules) by() string {
	terms := make([]string, len(r.decided))
	for i, d := range r.decided {
		terms[i] = fmt.Sprintf("(variables.%s ? [%s] : [])", variable(i), literal(d.name))
	}
	return "(" + strings.Join(terms, " + ") + ").join(', ')"
}

func variable(i int) string { return fmt.Sprintf("policy%d", i) }
