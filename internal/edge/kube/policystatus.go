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

// policyStatus is the status that a policy should have. Conditions that do not change keep the time of their
// last change.
func policyStatus(p *v1beta1.SecurityGroupPolicy, counted securitygroup.PodCount, reason string, problem error) v1beta1.SecurityGroupPolicyStatus {
	out := v1beta1.SecurityGroupPolicyStatus{
		ObservedGeneration: p.Generation, Conditions: slices.Clone(p.Status.Conditions),
		MatchedPods: int32(counted.Matched), AppliedPods: int32(counted.Applied), RefusedPods: int32(counted.Refused),
	}
	for _, r := range counted.Shown {
		out.Refused = append(out.Refused, v1beta1.RefusedPod{Name: r.Name, Reason: r.Reason, Message: r.Message})
	}
	set := func(kind string, c securitygroup.Condition) {
		next := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: c.Reason, Message: c.Message, ObservedGeneration: p.Generation}
		if c.True {
			next.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out.Conditions, next)
	}
	set(v1beta1.ConditionValid, securitygroup.ValidCondition(problem))
	set(v1beta1.ConditionApplied, counted.AppliedCondition(reason))
	return out
}

// WriteStatus writes the status of each policy that has another one than it should. reason is that of
// the condition Applied while pods do not have their groups, and problem is why a policy, as it is written,
// gives no pod its groups.
func (s *SelectionObjects) WriteStatus(ctx context.Context, counted *securitygroup.PodCounts, reason string, problem func(*v1beta1.SecurityGroupPolicy) error) error {
	problems := map[securitygroup.Ref]error{}
	for _, p := range s.Set().Problems() {
		problems[p.Policy] = p.Err
	}
	var errs []error
	for _, p := range s.Policies() {
		next := p.DeepCopy()
		ref := securitygroup.Ref{Namespace: p.Namespace, Name: p.Name}
		why := problems[ref]
		if why == nil {
			why = problem(p)
		}
		next.Status = policyStatus(p, counted.Of(ref), reason, why)
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
