package securitygroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what a decision needs of a pod.
type Pod struct {
	Ref
	UID            types.UID
	Labels         map[string]string
	ServiceAccount string // "" is none, as of a static pod
	HostNetwork    bool
	Ended          bool
}

// FromPod converts a pod. Whether its node can have branches at all, such as one with Windows, is
// the caller's to decide: nothing that a user writes into a pod exempts it but the host's network.
func FromPod(p *corev1.Pod) Pod {
	return Pod{
		Ref: Ref{p.Namespace, p.Name}, UID: p.UID, Labels: p.Labels, ServiceAccount: p.Spec.ServiceAccountName, HostNetwork: p.Spec.HostNetwork,
		Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
}

// Account is a service account.
type Account struct {
	Ref
	Labels map[string]string
}

// Verdict is what becomes of a pod.
type Verdict uint8

// Verdicts.
const (
	NotSelected Verdict = iota // no policy selects it: it is a pod like any other
	Selected                   // it gets Decision.Groups
	Refused                    // it is selected, or may be, and must not run: Decision.Refusal
)

func (v Verdict) String() string {
	switch v {
	case NotSelected:
		return "not selected"
	case Selected:
		return "selected"
	case Refused:
		return "refused"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Match is what one policy of the pod's namespace says about the pod.
type Match struct {
	Policy   Ref
	Selected bool
	Why      string
}

// Decision is that on a pod.
type Decision struct {
	Verdict Verdict
	// Groups of all policies that select the pod, each once, sorted; none unless it is Selected.
	Groups []string
	// Refusal wraps a sentinel of this package.
	Refusal error
	// Why in one sentence.
	Why string
	// Matches of the policies of the pod's namespace, by name. A pod that no policy can apply to
	// has none.
	Matches []Match
}

func (d Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", d.Verdict, d.Why)
	for _, m := range d.Matches {
		fmt.Fprintf(&b, "  %s: %s\n", m.Policy, m.Why)
	}
	return b.String()
}

// ErrNoAccount means that a policy selects by the labels of the pod's service account, which was
// not found.
var ErrNoAccount = errors.New("the service account was not found")

// Select decides for a pod. account is that of the pod, nil if there is none of its name. Callers
// must have read all policies of the pod's namespace: a policy that is missing selects nothing.
//
// A pod without a service account, which only static pods are, counts as of one without labels.
func (s *Set) Select(pod Pod, account *Account) Decision {
	switch {
	case pod.HostNetwork:
		return Decision{Why: "the pod is on its node's network and has no interface of its own"}
	case pod.Ended:
		return Decision{Why: "the pod has ended"}
	}
	d := Decision{Why: "no SecurityGroupPolicy of the namespace selects the pod"}
	var by []string
	for _, p := range s.byNamespace[pod.Namespace] {
		m, err := p.match(pod, account)
		d.Matches = append(d.Matches, m)
		if err != nil && d.Refusal == nil {
			d.Refusal = fmt.Errorf("SecurityGroupPolicy %s: %w", p.ref, err)
		}
		if m.Selected {
			by = append(by, p.ref.Name)
			d.Groups = append(d.Groups, p.groups...)
		}
	}
	switch {
	case d.Refusal != nil:
		d.refuse(d.Refusal)
	case len(by) > 0:
		slices.Sort(d.Groups)
		d.Groups = slices.Compact(d.Groups)
		d.Verdict, d.Why = Selected, fmt.Sprintf("selected by %s: %s", strings.Join(by, ", "), strings.Join(d.Groups, ", "))
	}
	return d
}

func (d *Decision) refuse(err error) {
	d.Verdict, d.Groups, d.Refusal, d.Why = Refused, nil, err, err.Error()
}

// unusable is why the policy selects no pod, "" if it can select some.
func (c compiled) unusable() string {
	if c.invalid == nil {
		return ""
	}
	return fmt.Sprintf("it selects no pod: %v", c.invalid)
}

// match decides for one policy. An error is that it cannot be decided.
func (c compiled) match(pod Pod, account *Account) (Match, error) {
	m := Match{Policy: c.ref}
	if m.Why = c.unusable(); m.Why != "" {
		return m, nil
	}
	var why []string
	if c.pods != nil {
		if !c.pods.Matches(labels.Set(pod.Labels)) {
			m.Why = fmt.Sprintf("podSelector %s does not match the pod's labels", text(c.pods))
			return m, nil
		}
		why = append(why, fmt.Sprintf("podSelector %s matches", text(c.pods)))
	}
	if c.accounts != nil {
		var of labels.Set
		switch {
		case pod.ServiceAccount == "" || c.accounts.Empty(): // the labels are none, or irrelevant
		case account == nil || account.Ref != (Ref{pod.Namespace, pod.ServiceAccount}):
			m.Why = fmt.Sprintf("service account %s was not found, and serviceAccountSelector %s selects by its labels", pod.ServiceAccount, text(c.accounts))
			return m, fmt.Errorf("service account %s: %w", pod.ServiceAccount, ErrNoAccount)
		default:
			of = account.Labels
		}
		if !c.accounts.Matches(of) {
			m.Why = fmt.Sprintf("serviceAccountSelector %s does not match the labels of service account %q", text(c.accounts), pod.ServiceAccount)
			return m, nil
		}
		why = append(why, fmt.Sprintf("serviceAccountSelector %s matches service account %q", text(c.accounts), pod.ServiceAccount))
	}
	m.Selected, m.Why = true, strings.Join(why, ", ")
	return m, nil
}

// text writes a selector; an empty one matches everything.
func text(s labels.Selector) string {
	if s.Empty() {
		return "{}"
	}
	return s.String()
}
