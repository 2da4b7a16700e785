package report

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// Reasons of the conditions below, one CamelCase word each.
const (
	reasonAnswers     = "EC2Answers"
	reasonRefuses     = "EC2Refuses"
	reasonUnreachable = "EC2Unreachable"
	reasonInSync      = "InSync"
	reasonAtEC2       = "DiffersFromEC2"
	reasonInKernel    = "KernelNotRepaired"
	reasonInUse       = "PluginInUse"

	reasonNotConfigured = "NotConfigured"

	reasonHasSpace      = "HasSpace"
	reasonDiskFull      = "DiskFull"
	reasonEnforced      = "Enforced"
	reasonNoPolicies    = "NoPolicies"
	reasonCannotEnforce = "CannotEnforce"
	reasonNotKnown      = "PoliciesNotKnown"
	reasonLoading       = "PoliciesLoading"

	reasonServiceAnswers = "Answers"
	reasonOutage         = "Outage"
)

func condition(kind string, holds bool, c ipam.Condition) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: string(c.Reason), Message: c.Message, LastTransitionTime: metav1.Now()}
}

// reachable is the condition EC2Reachable: of the last observation, and before the first
// one of the services that it needs.
func reachable(p state.Pool, outages []introspection.Outage) metav1.Condition {
	c := answering(trunkline.ConditionEC2Reachable, state.EC2, outages)
	c.Reason = reasonUnreachable
	if c.Status == metav1.ConditionTrue {
		c.Reason, c.Message = reasonAnswers, "the last observation of EC2 succeeded"
	}
	if p.Unobserved != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonUnreachable, p.Unobserved
		if p.Refused {
			c.Reason = reasonRefuses
		}
	}
	return c
}

// answering is the condition of a service. Nothing that it prevents makes the node
// unready.
func answering(kind string, service state.SourceName, outages []introspection.Outage) metav1.Condition {
	c := metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: reasonServiceAnswers,
		Message: "the last call succeeded", LastTransitionTime: metav1.Now(),
	}
	for _, o := range outages {
		if o.Service == string(service) {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOutage, o.String()
		}
	}
	return c
}

// notUsed is the condition EC2Reachable of a node that does not use EC2.
func notUsed(why string) metav1.Condition {
	return metav1.Condition{
		Type: trunkline.ConditionEC2Reachable, Status: metav1.ConditionUnknown, Reason: trunkline.ReasonEC2NotUsed,
		Message: why, LastTransitionTime: metav1.Now(),
	}
}

// configured is the condition CNIConfigured.
func configured(problems []cniconf.Problem) metav1.Condition {
	c := metav1.Condition{
		Type: trunkline.ConditionCNIConfigured, Status: metav1.ConditionTrue, Reason: reasonInUse,
		Message: "the container runtime uses Trunkline's configuration", LastTransitionTime: metav1.Now(),
	}
	if len(problems) == 0 {
		return c
	}
	var all []string
	for _, p := range problems {
		all = append(all, p.Message)
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, problems[0].Reason, strings.Join(all, "; ")
	return c
}

// writable is the condition JournalWritable.
func writable(full bool, dir string) metav1.Condition {
	c := metav1.Condition{
		Type: trunkline.ConditionJournalWritable, Status: metav1.ConditionTrue, Reason: reasonHasSpace,
		Message: "the agent records what it adds and removes", LastTransitionTime: metav1.Now(),
	}
	if full {
		c.Status, c.Reason = metav1.ConditionFalse, reasonDiskFull
		c.Message = "the file system of " + dir + " is full: no pod is added until it has space; pods that run are not affected, and pods can end"
	}
	return c
}

// Enforcement is what a node does with network policies. The zero value knows of none yet.
type Enforcement struct {
	Off     bool   // by the settings
	Known   bool   // the policies of the cluster
	Any     bool   // the cluster has policies
	On      bool   // they are enforced
	Problem string // why they are not
	Spares  bool   // pods with a branch, and those without groups, start while they are not
	Faults  string // what hinders a part of it; empty if nothing does
}

// enforced is the condition PoliciesEnforced. origin is the source of the setting.
func enforced(e Enforcement, origin string) metav1.Condition {
	c := metav1.Condition{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now()}
	switch {
	case e.Off:
		c.Reason, c.Message = trunkline.ReasonPolicyOff, "network policies are not enforced on this node: network-policy is off ("+origin+")"
	case e.Problem != "" && e.Spares:
		c.Reason, c.Message = reasonCannotEnforce, "network policies, and security groups of pods without a branch, cannot be enforced; new pods are refused, but without network policies not those with a branch and those that no SecurityGroupPolicy selects: "+e.Problem
	case e.Problem != "":
		c.Reason, c.Message = reasonCannotEnforce, "network policies cannot be enforced, and new pods are refused: "+e.Problem
	case e.On && e.Faults != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, trunkline.ReasonPolicyFaults, "the network policies of the cluster are enforced on pods that Trunkline wired, with faults: "+e.Faults
	case e.On:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonEnforced, "the network policies of the cluster are enforced on pods that Trunkline wired"
	case e.Any:
		c.Reason, c.Message = reasonLoading, "the first network policies are being loaded; pods that are added wait for them"
	case e.Known && e.Faults != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, trunkline.ReasonPolicyFaults, "the cluster has no network policies; of what would enforce them, and security groups of pods: "+e.Faults
	case e.Known:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonNoPolicies, "the cluster has no network policies"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, reasonNotKnown, "the API server has not answered since the agent started, and the node has no copy of the network policies: new pods are refused"
	}
	return c
}

// driftOf is the condition Drift: true while a difference is not, or cannot be,
// repaired. A difference that was repaired at once is an event.
func driftOf(inKernel []string) metav1.Condition {
	c := metav1.Condition{
		Type: trunkline.ConditionDrift, Status: metav1.ConditionFalse, Reason: reasonInSync,
		Message: "the kernel and the agent's record agree", LastTransitionTime: metav1.Now(),
	}
	if len(inKernel) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonInKernel, drift.Summary(inKernel)
	}
	return c
}

// driftAtEC2 is driftOf on an EC2 instance. Differences at EC2 are shown first.
func driftAtEC2(atEC2, inKernel []string) metav1.Condition {
	c := driftOf(inKernel)
	switch {
	case len(atEC2) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonAtEC2, drift.Summary(atEC2)
	case len(inKernel) == 0:
		c.Message = "EC2, the kernel and the agent's record agree"
	}
	return c
}

// lastError is EC2's last refusal; nil once a call of the same action succeeded.
func lastError(r *state.Refusal) *trunkline.CallError {
	if r == nil {
		return nil
	}
	return &trunkline.CallError{
		Action: r.Action, Code: r.Code, Message: r.Message, RequestID: r.RequestID,
		Time: metav1.NewTime(r.At), Count: int32(r.Count),
	}
}
