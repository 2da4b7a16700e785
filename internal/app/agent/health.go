package agent

import (
	"errors"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/drift"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// Reasons of the conditions below, one CamelCase word each.
const (
	reasonAnswers     = "EC2Answers"
	reasonRefuses     = "EC2Refuses"
	reasonUnreachable = "EC2Unreachable"
	reasonInSync      = "InSync"
	reasonAtEC2       = "DiffersFromEC2"
	reasonInKernel    = "KernelNotRepaired"
)

// reachable is the condition EC2Reachable, from the last look.
func reachable(failed error) metav1.Condition {
	c := metav1.Condition{
		Type: trunkline.ConditionEC2Reachable, Status: metav1.ConditionTrue, Reason: reasonAnswers,
		Message: "the last look at EC2 succeeded", LastTransitionTime: metav1.Now(),
	}
	if failed != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonUnreachable, failed.Error()
		if ec2.Code(failed) != "" {
			c.Reason = reasonRefuses
		}
	}
	return c
}

// driftNow is the condition Drift: true while something differs and is not, or
// cannot be, put right. What was repaired in the same moment is an event.
func driftNow(atEC2, inKernel []string) metav1.Condition {
	c := metav1.Condition{
		Type: trunkline.ConditionDrift, Status: metav1.ConditionFalse, Reason: reasonInSync,
		Message: "EC2, the kernel and the agent's record agree", LastTransitionTime: metav1.Now(),
	}
	switch {
	case len(atEC2) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonAtEC2, drift.Summary(atEC2)
	case len(inKernel) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonInKernel, drift.Summary(inKernel)
	}
	return c
}

// lastError is what EC2 last refused, as it is reported; nil when nothing stands.
func (a *Agent) lastError() *trunkline.CallError {
	r, ok := a.ec2.LastRefusal()
	if !ok {
		return nil
	}
	return &trunkline.CallError{
		Action: r.Action, Code: r.Code, Message: r.Message, RequestID: r.RequestID,
		Time: metav1.NewTime(r.At), Count: int32(r.Count),
	}
}

// versions of what runs on the node. The plugin's is that of its last call.
func (a *Agent) versions() (trunkline.Versions, error) {
	node, _ := a.cluster.Node()
	v := trunkline.Versions{Agent: a.deps.Version, Plugin: a.cni.Plugin(), CNI: conflistVersion(a.cfg.CNIVersion, node.Runtime)}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return v, errors.Join(errors.New("read the kernel's version"), err)
	}
	v.Kernel = unix.ByteSliceToString(name.Release[:])
	return v, nil
}
