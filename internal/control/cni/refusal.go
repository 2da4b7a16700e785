package cni

import (
	"context"
	"errors"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/serial"
)

// meaning is what an error means to the runtime and to the pod's owner.
type meaning struct {
	is   error
	code uint
	msg  string
}

// meanings are of the errors of other packages that an ADD or DEL may end with.
func meanings() []meaning {
	return []meaning{
		{ipam.ErrNoAddress, cnirpc.CodeTryAgain, "the node has no free address"},
		{link.ErrInterfaceExists, cnirpc.CodeInvalidEnv, "an interface of that name exists and does not belong to this sandbox"},
		{errNewerSandbox, cnirpc.CodeTryAgain, "a newer sandbox of the pod is being added"},
		{errRemoved, cnirpc.CodeTryAgain, "the pod's network was removed while it was added"},
		{link.ErrNotWired, cnirpc.CodeTryAgain, "the pod's link was removed meanwhile"},
		{link.ErrNamespaceGone, cnirpc.CodeUnknownContainer, "the pod's sandbox was removed meanwhile"},
		{link.ErrNotNamespace, cnirpc.CodeInvalidNetns, "the runtime passed something that is not a pod's network namespace"},
		{serial.ErrPreempted, cnirpc.CodeTryAgain, "a DEL of the same interface preempted it"},
		{journal.ErrDisk, cnirpc.CodeTryAgain, "the node's disk takes no record; free space on the file system of the agent's state directory (/var/lib/trunkline)"},
		{context.DeadlineExceeded, cnirpc.CodeTryAgain, "not done within the time that the plugin waits"},
		{context.Canceled, cnirpc.CodeTryAgain, "the call was cancelled"},
	}
}

// asError gives an error the CNI code from which the runtime decides whether to retry.
func asError(err error) *cnirpc.Error {
	var known *cnirpc.Error
	if errors.As(err, &known) {
		return known
	}
	for _, r := range meanings() {
		if errors.Is(err, r.is) {
			return &cnirpc.Error{Code: r.code, Msg: r.msg, Details: err.Error()}
		}
	}
	return &cnirpc.Error{Code: cnirpc.CodeInternal, Msg: "internal error of the node's agent", Details: err.Error()}
}

// advice is what the owner of a pod that was refused with a code can do.
func advice(code uint) string {
	switch code {
	case cnirpc.CodeTryAgain:
		return "The kubelet tries again by itself."
	case cnirpc.CodeUnknownContainer:
		return "The kubelet makes a new sandbox if the pod is still wanted."
	case cnirpc.CodeInvalidEnv, cnirpc.CodeInvalidNetns:
		return "Delete the pod to give it a new sandbox; if it happens again, see the container runtime's log and other CNI plugins on the node."
	case cnirpc.CodeRefused:
		return "Change what the reason names; the kubelet tries again by itself."
	}
	return "The kubelet tries again by itself; if it stays, see the log of the Trunkline agent on the node and `trunkline status`."
}

// report creates an event on a pod that could not be wired, unless the call was
// abandoned: then another call has replaced it.
func (a *addition) report(err error) {
	for _, ours := range []error{cniserver.ErrPluginGone, cniserver.ErrStopping, serial.ErrPreempted} {
		if errors.Is(err, ours) {
			return
		}
	}
	a.c.warn(a.e.Pod, err)
}

// warn reports why a pod has no network yet.
func (c *Controller) warn(pod endpoint.Pod, err error) {
	if pod.Name == "" {
		return
	}
	c.Events.PodWarning(kube.PodRef{Namespace: pod.Namespace, Name: pod.Name}, pod.UID, "NetworkNotReady", refusalText(pod.String(), c.NodeName, asError(err)))
}

// refusalText says which pod has no network, where, why and what to do.
func refusalText(pod, node string, failure *cnirpc.Error) string {
	why := failure.Msg
	if failure.Details != "" {
		why += ": " + failure.Details
	}
	return fmt.Sprintf("Pod %s has no network on node %s yet: %s. %s", pod, node, why, advice(failure.Code))
}
