// Package securitygroup decides which pods get security groups of their own, and which groups.
//
// Compile reads SecurityGroupPolicies, Set.Select decides for one pod by the rules of AWS's
// controller, Known.Judge refuses groups that cannot be applied, and Plan is what has to be applied
// to pods, or again after policies, labels or groups have changed. A decision says for each policy why it
// selects the pod or does not. A pod that is selected and cannot have all of its groups is
// refused: it never gets some of them, nor those of its node.
//
// Pure: values in, values out. Admission, the controller of branches and the node's check at ADD
// call it with what they have read, so that all three decide alike.
package securitygroup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Ref names an object of a namespace.
type Ref struct{ Namespace, Name string }

func (r Ref) String() string { return r.Namespace + "/" + r.Name }

func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Policy is a SecurityGroupPolicy. A nil selector is one that the object does not have.
type Policy struct {
	Ref
	PodSelector            *metav1.LabelSelector
	ServiceAccountSelector *metav1.LabelSelector
	Groups                 []string
}

// Why a policy selects no pod at all, as it is written.
var (
	// ErrNoSelector: the policy has neither selector.
	ErrNoSelector = errors.New("podSelector and serviceAccountSelector are both absent")
	// ErrNoGroups: the policy names no security group.
	ErrNoGroups = errors.New("securityGroups.groupIds is empty")
	// ErrSelector: a selector cannot be read.
	ErrSelector = errors.New("invalid selector")
)

// EventNotApplied is the reason of the event on a pod that its node refused.
const EventNotApplied = "SGPNotApplied"

// Problem is a policy that selects no pod, and why.
type Problem struct {
	Policy Ref
	Err    error
}

func (p Problem) String() string { return fmt.Sprintf("SecurityGroupPolicy %s: %v", p.Policy, p.Err) }

// Set is compiled policies. It never changes.
type Set struct {
	byNamespace map[string][]compiled // by name
	problems    []Problem
}

// compiled is a policy with its selectors read; nil is an absent one.
type compiled struct {
	ref            Ref
	pods, accounts labels.Selector
	groups         []string
	invalid        error
}

// Compile reads policies. One that is invalid selects no pod, as in AWS's controller, and is among
// the problems.
//
// Source: filterPodSecurityGroups in pkg/utils/helper.go of aws/amazon-vpc-resource-controller-k8s.
func Compile(policies []Policy) *Set {
	s := &Set{byNamespace: map[string][]compiled{}}
	for _, p := range policies {
		c := compile(p)
		if c.invalid != nil {
			s.problems = append(s.problems, Problem{p.Ref, c.invalid})
		}
		s.byNamespace[p.Namespace] = append(s.byNamespace[p.Namespace], c)
	}
	for _, list := range s.byNamespace {
		slices.SortFunc(list, func(a, b compiled) int { return compareRefs(a.ref, b.ref) })
	}
	slices.SortFunc(s.problems, func(a, b Problem) int { return compareRefs(a.Policy, b.Policy) })
	return s
}

// Problems are the policies that select no pod, by namespace and name.
func (s *Set) Problems() []Problem { return s.problems }

func compile(p Policy) compiled {
	c := compiled{ref: p.Ref, groups: p.Groups}
	c.pods, c.invalid = selector("podSelector", p.PodSelector)
	if c.invalid == nil {
		c.accounts, c.invalid = selector("serviceAccountSelector", p.ServiceAccountSelector)
	}
	switch {
	case c.invalid != nil:
	case c.pods == nil && c.accounts == nil:
		c.invalid = ErrNoSelector
	case len(c.groups) == 0:
		c.invalid = ErrNoGroups
	}
	return c
}

func selector(field string, s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	read, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", field, ErrSelector, err)
	}
	return read, nil
}
