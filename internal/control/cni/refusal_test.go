package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/serial"
)

func TestErrorsCarryTheCodeFromWhichTheRuntimeDecides(t *testing.T) {
	for _, c := range []struct {
		err  error
		code uint
	}{
		{fmt.Errorf("attach: %w", ipam.ErrNodeFull), cnirpc.CodeTryAgain},
		{fmt.Errorf("wire: %w", link.ErrInterfaceExists), cnirpc.CodeInvalidEnv},
		{fmt.Errorf("wire: %w", link.ErrNamespaceGone), cnirpc.CodeUnknownContainer},
		{fmt.Errorf("wire: %w", link.ErrNotNamespace), cnirpc.CodeInvalidNetns},
		{fmt.Errorf("admit: %w", &cnirpc.Error{Code: cnirpc.CodeRefused, Msg: "no"}), cnirpc.CodeRefused},
		{fmt.Errorf("up: %w", link.ErrNotWired), cnirpc.CodeTryAgain},
		{fmt.Errorf("attach: %w", serial.ErrPreempted), cnirpc.CodeTryAgain},
		{context.DeadlineExceeded, cnirpc.CodeTryAgain},
		{errors.New("disk full"), cnirpc.CodeInternal},
	} {
		if got := asError(c.err); got.Code != c.code || got.Msg == "" {
			t.Errorf("%v: %+v, want code %d", c.err, got, c.code)
		}
	}
}

// Every way an ADD can end without a network is an event on the pod: what, which pod
// and node, why, what to do.
func TestEveryRefusalSaysWhatWhyAndWhatToDo(t *testing.T) {
	full := ipam.Condition{Reason: ipam.ReasonNodeFull, Message: "all 15 addresses that this instance type allows (3 interfaces x 5) are in use; remove pods, or use a larger instance type"}
	wire := func(err error) error {
		return fmt.Errorf("wire default/web: interface eth0 is in the pod already: %w", err)
	}
	refused := func(do func(*harness, *addition) error, components ...Component) error {
		h := newHarness(t, components...)
		h.server.SetDown(false)
		return do(h, addOf("web", "8d2c4d5ef8ea2b9a1f7c3a3f4d1e0b55"))
	}
	for name, c := range map[string]struct {
		err  error
		code uint
		why  string
		todo string
	}{
		"a full node":       {full.Err(), cnirpc.CodeTryAgain, "the node has no free address: ", "use a larger instance type"},
		"others came first": {fmt.Errorf("%w: ADDs that came earlier took them", ipam.ErrNoAddress), cnirpc.CodeTryAgain, "came earlier", "tries again"},
		"an interface in the way": {
			wire(link.ErrInterfaceExists), cnirpc.CodeInvalidEnv, "interface eth0 is in the pod already", "Delete the pod",
		},
		"the sandbox went":      {wire(link.ErrNamespaceGone), cnirpc.CodeUnknownContainer, "sandbox was removed", "new sandbox"},
		"not a pod's namespace": {wire(link.ErrNotNamespace), cnirpc.CodeInvalidNetns, "not a pod's network namespace", "runtime's log"},
		"too late":              {fmt.Errorf("wire default/web: %w", context.DeadlineExceeded), cnirpc.CodeTryAgain, "within the time that the plugin waits", "tries again"},
		"a full disk":           {fmt.Errorf("write journal: %w", errors.New("no space left on device")), cnirpc.CodeInternal, "no space left on device", "log of the Trunkline agent"},
		"a component that forbids it": {
			refused(func(h *harness, a *addition) error { return a.on(h).admit(t.Context()) }, forbidding{}), cnirpc.CodeRefused, "sg-9", "Change what the reason names",
		},
		"a component that is not ready": {
			refused(func(h *harness, a *addition) error { return a.on(h).ready(t.Context()) }, late{}), cnirpc.CodeTryAgain, "policy of default/web is not loaded yet", "tries again",
		},
		"a pod with security groups of its own": {
			refused(func(h *harness, a *addition) error {
				a.pod.BranchInterface = true
				return a.on(h).admit(t.Context())
			}), cnirpc.CodeRefused, "vpc.amazonaws.com/pod-eni", "Change what the reason names",
		},
		"a hostPort that nothing serves": {
			refused(func(h *harness, a *addition) error {
				a.conf.RuntimeConfig = []byte(`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`)
				return a.on(h).admit(t.Context())
			}), cnirpc.CodeRefused, "hostPort 8080/tcp would be lost", "Change what the reason names",
		},
		"a static pod without its mirror": {
			refused(func(h *harness, a *addition) error { return a.on(h).identify(t.Context()) }), cnirpc.CodeTryAgain, "mirror", "tries again",
		},
		"the API does not answer": {
			addOf("stranger", "u7").on(newHarness(t)).identify(t.Context()), cnirpc.CodeTryAgain, "the Kubernetes API does not answer", "tries again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, a := newHarness(t), addOf("web", "u1")
			a.e.Pod = endpoint.Pod{Namespace: "default", Name: "web", UID: "u1"}
			a.on(h).report(fmt.Errorf("add pod default/web: %w", c.err))
			if len(h.events.events) != 1 {
				t.Fatalf("events %q", h.events.events)
			}
			for _, part := range []string{"pod default/web u1 NetworkNotReady: Pod default/web has no network on node n1 yet: ", c.why, c.todo} {
				if !strings.Contains(h.events.events[0], part) {
					t.Errorf("%q does not say %q", h.events.events[0], part)
				}
			}
			if got := asError(c.err).Code; got != c.code {
				t.Errorf("CNI code %d, want %d", got, c.code)
			}
		})
	}
}

func TestACallThatWasGivenUpIsNoEvent(t *testing.T) {
	for _, err := range []error{cniserver.ErrPluginGone, cniserver.ErrStopping, serial.ErrPreempted} {
		h, a := newHarness(t), addOf("web", "u1")
		a.e.Pod = endpoint.Pod{Namespace: "default", Name: "web"}
		if a.on(h).report(fmt.Errorf("wire: %w: %w", err, io.EOF)); len(h.events.events) > 0 {
			t.Errorf("%v: events %q", err, h.events.events)
		}
	}
}
