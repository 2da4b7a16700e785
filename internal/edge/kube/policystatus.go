package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// Reasons of the condition Applied while pods do not have their groups, by who enforces these.
const (
	ReasonWithoutBranch = "PodsWithoutBranch" // the VPC
	ReasonNotEnforced   = "PodsNotEnforced"   // nodes
)

// PolicyStatus counts pods for the status of SecurityGroupPolicies, with the same meaning where the VPC
// and where nodes enforce their groups.
type PolicyStatus struct {
	// Reason of the condition Applied while pods do not have their groups.
	Reason string
	counts map[securitygroup.Ref]*policyCount
}

type policyCount struct {
	v1beta1.SecurityGroupPolicyStatus
	waiting string // the first pod that waits, and why
}

// PodGroupState is whether a pod has exactly the groups of its policies.
type PodGroupState struct {
	Applied bool
	// RefusedBy is a reason in CamelCase for which it cannot have them, besides that of its decision;
	// empty without one. Message is why the pod is refused, or why it waits.
	RefusedBy, Message string
}

// refusedShown is how many refused pods a status names.
const refusedShown = 10

// Add counts a pod for each policy that selects it.
func (s *PolicyStatus) Add(pod string, d securitygroup.Decision, is PodGroupState) {
	for _, m := range d.Matches {
		if !m.Selected {
			continue
		}
		if s.counts == nil {
			s.counts = map[securitygroup.Ref]*policyCount{}
		}
		if s.counts[m.Policy] == nil {
			s.counts[m.Policy] = &policyCount{}
		}
		s.counts[m.Policy].add(pod, d, is)
	}
}

func (c *policyCount) add(pod string, d securitygroup.Decision, is PodGroupState) {
	c.MatchedPods++
	r := v1beta1.RefusedPod{Name: pod}
	switch {
	case d.Verdict == securitygroup.Refused && !errors.Is(d.Refusal, securitygroup.ErrGroupNotRead):
		r.Reason, r.Message = reasonOf(d.Refusal), cutStatus(d.Why)
	case is.RefusedBy != "":
		r.Reason, r.Message = is.RefusedBy, cutStatus(is.Message)
	case is.Applied:
		c.AppliedPods++
		return
	default:
		if c.waiting == "" && is.Message != "" {
			c.waiting = fmt.Sprintf(", the first %s: %s", pod, is.Message)
		}
		return
	}
	c.RefusedPods++
	if len(c.Refused) < refusedShown {
		c.Refused = append(c.Refused, r)
	}
}

// ErrExcluded is why a policy of a namespace is not enforced.
var ErrExcluded = errors.New("the namespace is excluded")

// reasonRefused is that of a refusal without a reason of its own.
const reasonRefused = "Refused"

// reasonOf is a refusal in CamelCase.
func reasonOf(err error) string {
	for _, r := range []struct {
		err  error
		name string
	}{
		{securitygroup.ErrMalformedGroup, "MalformedGroup"},
		{securitygroup.ErrUnknownGroup, "UnknownGroup"},
		{securitygroup.ErrForeignGroup, "ForeignGroup"},
		{securitygroup.ErrTooManyGroups, "TooManyGroups"},
		{securitygroup.ErrNoAccount, "NoServiceAccount"},
		{ErrExcluded, "NamespaceExcluded"},
	} {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return reasonRefused
}

// longestStatus is how long a text of a status may be.
const longestStatus = 1024

func cutStatus(text string) string { return text[:min(len(text), longestStatus)] }

// of is the status that a policy should have. Conditions that do not change keep the time of their
// last change.
func (s *PolicyStatus) of(p *v1beta1.SecurityGroupPolicy, problem error) v1beta1.SecurityGroupPolicyStatus {
	counted := s.counts[securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}]
	if counted == nil {
		counted = &policyCount{}
	}
	out := counted.SecurityGroupPolicyStatus
	out.ObservedGeneration = p.Generation
	out.Conditions = slices.Clone(p.Status.Conditions)
	valid := metav1.Condition{Type: v1beta1.ConditionValid, Status: metav1.ConditionTrue, Reason: "Valid", ObservedGeneration: p.Generation}
	if problem != nil {
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, "SelectsNoPod", cutStatus(problem.Error())
		if r := reasonOf(problem); r != reasonRefused {
			valid.Reason = r
		}
	}
	done := metav1.Condition{Type: v1beta1.ConditionApplied, Status: metav1.ConditionTrue, Reason: "AllApplied", ObservedGeneration: p.Generation}
	switch {
	case out.RefusedPods > 0:
		done.Status, done.Reason = metav1.ConditionFalse, "PodsRefused"
		done.Message = fmt.Sprintf("%d of %d pods are refused, the first %s: %s", out.RefusedPods, out.MatchedPods, out.Refused[0].Name, out.Refused[0].Reason)
	case out.AppliedPods < out.MatchedPods:
		done.Status, done.Reason = metav1.ConditionFalse, s.Reason
		done.Message = cutStatus(fmt.Sprintf("%d of %d pods do not have their groups yet%s", out.MatchedPods-out.AppliedPods, out.MatchedPods, counted.waiting))
	}
	meta.SetStatusCondition(&out.Conditions, valid)
	meta.SetStatusCondition(&out.Conditions, done)
	return out
}

// WriteStatus writes the status of each policy that has another one than it should. problem is why a
// policy, as it is written, gives no pod its groups.
func (s *SelectionObjects) WriteStatus(ctx context.Context, counted *PolicyStatus, problem func(*v1beta1.SecurityGroupPolicy) error) error {
	problems := map[securitygroup.Ref]error{}
	for _, p := range s.Set().Problems() {
		problems[p.Policy] = p.Err
	}
	var errs []error
	for _, p := range s.Policies() {
		next := p.DeepCopy()
		why := problems[securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}]
		if why == nil {
			why = problem(p)
		}
		next.Status = counted.of(p, why)
		if !apiequality.Semantic.DeepEqual(next.Status, p.Status) {
			errs = append(errs, writePolicyStatus(ctx, s.client, next))
		}
	}
	return errors.Join(errs...)
}

// writePolicyStatus writes the status of a SecurityGroupPolicy. A definition without a status is
// no error: there is none to write.
func writePolicyStatus(ctx context.Context, c *Client, p *v1beta1.SecurityGroupPolicy) error {
	status := map[string]any{
		"observedGeneration": p.Status.ObservedGeneration, "matchedPods": p.Status.MatchedPods, "appliedPods": p.Status.AppliedPods,
		"refusedPods": p.Status.RefusedPods, "refused": nil, "conditions": p.Status.Conditions,
	}
	if len(p.Status.Refused) > 0 {
		status["refused"] = p.Status.Refused
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode status of SecurityGroupPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	err = c.Policies.Patch(types.MergePatchType).Namespace(p.Namespace).Resource(v1beta1.ResourceSecurityGroupPolicies).Name(p.Name).
		SubResource("status").Param("fieldManager", controllerOwner).Body(body).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of SecurityGroupPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
