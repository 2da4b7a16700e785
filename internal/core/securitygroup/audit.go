package securitygroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Wired is a running pod as its node has wired it.
type Wired struct {
	Pod
	// Branch is the interface of its branch; empty: it has the groups of its node.
	Branch string
	// Annotated is the branch of its annotation; empty without one.
	Annotated string
	// Record is why the record of the branch's controller contradicts the wiring; empty if it does not.
	Record string
	// Groups of the branch by the record, and Known whether the record has them: AWS's has none.
	Groups []string
	Known  bool
	// Unable is why the node, which is to enforce the groups of pods without a branch, cannot, and what that
	// means for a pod; empty if it is not to.
	Unable string
}

// ViolationKind is how a running pod differs from what policies say.
type ViolationKind string

// Kinds of violations.
const (
	// Unprotected: a policy selects the pod, and it has no branch.
	Unprotected ViolationKind = "unprotected"
	// OtherGroups: its branch has other groups than those of the policies that select it.
	OtherGroups ViolationKind = "groups"
	// OtherBranch: it is wired with another branch than its annotation or the record names.
	OtherBranch ViolationKind = "branch"
)

// ViolationKinds are all of them.
func ViolationKinds() []ViolationKind { return []ViolationKind{Unprotected, OtherGroups, OtherBranch} }

// Violation is a running pod that does not have exactly what policies say, and why.
type Violation struct {
	Pod  Ref
	UID  types.UID
	Kind ViolationKind
	Why  string
}

func (v Violation) String() string { return fmt.Sprintf("%s %s: %s", v.Pod, v.Kind, v.Why) }

// Audit compares pods with the decisions on them, which decide returns, and lists the violations by pod
// and kind. Pods that no policy selects have none: one that has a branch keeps it until it ends. A pod
// of which it cannot be decided is unprotected if it has no branch.
func Audit(pods []Wired, decide func(Pod) Decision) (list []Violation) {
	for _, p := range pods {
		d := decide(p.Pod)
		add := func(kind ViolationKind, format string, args ...any) {
			list = append(list, Violation{p.Ref, p.UID, kind, fmt.Sprintf(format, args...)})
		}
		if p.Branch == "" {
			switch {
			case d.Verdict == NotSelected:
			case p.Unable != "":
				add(Unprotected, "%s, and %s", d.Why, p.Unable)
			default:
				add(Unprotected, "%s, and the pod runs with the groups of its node", d.Why)
			}
			continue
		}
		if p.Annotated != p.Branch {
			add(OtherBranch, "the pod is wired with %s, and its annotation names %s", p.Branch, cmp.Or(p.Annotated, "none"))
		}
		if p.Record != "" {
			add(OtherBranch, "the pod is wired with %s, and the record disagrees: %s", p.Branch, p.Record)
		}
		if groups := slices.Sorted(slices.Values(p.Groups)); d.Verdict == Selected && p.Known && !slices.Equal(groups, d.Groups) {
			add(OtherGroups, "%s, and %s has [%s]", d.Why, p.Branch, strings.Join(groups, " "))
		}
	}
	slices.SortFunc(list, func(a, b Violation) int { return cmp.Or(compareRefs(a.Pod, b.Pod), cmp.Compare(a.Kind, b.Kind)) })
	return list
}
