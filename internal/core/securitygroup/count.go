package securitygroup

import (
	"errors"
	"fmt"
	"strings"
)

// Reasons of a policy's condition Applied while pods do not have their groups, by who enforces these.
const (
	ReasonWithoutBranch = "PodsWithoutBranch" // the VPC
	ReasonNotEnforced   = "PodsNotEnforced"   // nodes
)

// ErrExcluded is why a policy of a namespace is not enforced.
var ErrExcluded = errors.New("the namespace is excluded")

// LongestText is how many bytes a text of a status may have.
const LongestText = 1024

// Cut returns the first LongestText bytes of a text, or fewer, so that no character is cut.
func Cut(text string) string {
	if len(text) <= LongestText {
		return text
	}
	return strings.ToValidUTF8(text[:LongestText], "")
}

// PodState is whether a pod has exactly the groups of its policies.
type PodState struct {
	Applied bool
	// RefusedBy is a reason in CamelCase for which it cannot have them, besides that of its decision;
	// empty without one. Message is why the pod is refused, or why it waits.
	RefusedBy, Message string
}

// RefusedPod is a pod that cannot have its groups, with a reason in CamelCase.
type RefusedPod struct{ Name, Reason, Message string }

// PodCount is how many pods a policy selects, and how many of them have all of their groups or cannot
// have them.
type PodCount struct {
	Matched, Applied, Refused int
	// Shown are the first of the refused pods.
	Shown   []RefusedPod
	waiting string // the first pod that waits, and why
}

// refusedShown is how many refused pods a count names.
const refusedShown = 10

// PodCounts are those of policies, with the same meaning where the VPC and where nodes enforce their groups.
// The zero value has no pod.
type PodCounts struct{ of map[Ref]*PodCount }

// Add counts a pod for each policy that selects it.
func (c *PodCounts) Add(pod string, d Decision, is PodState) {
	for _, m := range d.Matches {
		if !m.Selected {
			continue
		}
		if c.of == nil {
			c.of = map[Ref]*PodCount{}
		}
		if c.of[m.Policy] == nil {
			c.of[m.Policy] = &PodCount{}
		}
		c.of[m.Policy].add(pod, d, is)
	}
}

// Of is the count of a policy.
func (c *PodCounts) Of(policy Ref) PodCount {
	if counted := c.of[policy]; counted != nil {
		return *counted
	}
	return PodCount{}
}

func (c *PodCount) add(pod string, d Decision, is PodState) {
	c.Matched++
	r := RefusedPod{Name: pod}
	switch {
	case d.Verdict == Refused && !errors.Is(d.Refusal, ErrGroupNotRead):
		r.Reason, r.Message = reasonOf(d.Refusal), Cut(d.Why)
	case is.RefusedBy != "":
		r.Reason, r.Message = is.RefusedBy, Cut(is.Message)
	case is.Applied:
		c.Applied++
		return
	default:
		if c.waiting == "" && is.Message != "" {
			c.waiting = fmt.Sprintf(", the first %s: %s", pod, is.Message)
		}
		return
	}
	c.Refused++
	if len(c.Shown) < refusedShown {
		c.Shown = append(c.Shown, r)
	}
}

// Condition is one of a policy: whether it is true, with a reason in CamelCase.
type Condition struct {
	True            bool
	Reason, Message string
}

// AppliedCondition is whether all pods have their groups. reason is that while pods wait.
func (c PodCount) AppliedCondition(reason string) Condition {
	switch {
	case c.Refused > 0:
		return Condition{Reason: "PodsRefused", Message: fmt.Sprintf("%d of %d pods are refused, the first %s: %s", c.Refused, c.Matched, c.Shown[0].Name, c.Shown[0].Reason)}
	case c.Applied < c.Matched:
		return Condition{Reason: reason, Message: Cut(fmt.Sprintf("%d of %d pods do not have their groups yet%s", c.Matched-c.Applied, c.Matched, c.waiting))}
	}
	return Condition{True: true, Reason: "AllApplied"}
}

// ValidCondition is whether a policy, as it is written, gives pods its groups; problem is why it gives
// none.
func ValidCondition(problem error) Condition {
	if problem == nil {
		return Condition{True: true, Reason: "Valid"}
	}
	reason := "SelectsNoPod"
	if r := reasonOf(problem); r != reasonRefused {
		reason = r
	}
	return Condition{Reason: reason, Message: Cut(problem.Error())}
}

// reasonRefused is that of a refusal without a reason of its own.
const reasonRefused = "Refused"

// reasonOf is a refusal in CamelCase.
func reasonOf(err error) string {
	for _, r := range []struct {
		err  error
		name string
	}{
		{ErrMalformedGroup, "MalformedGroup"},
		{ErrUnknownGroup, "UnknownGroup"},
		{ErrForeignGroup, "ForeignGroup"},
		{ErrTooManyGroups, "TooManyGroups"},
		{ErrNoAccount, "NoServiceAccount"},
		{ErrExcluded, "NamespaceExcluded"},
	} {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return reasonRefused
}
