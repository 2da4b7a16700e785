package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/serial"
)

// forbidding is a room that admits nobody.
type forbidding struct{ late }

func (forbidding) Admit(context.Context, kube.Pod) error {
	return errors.New("security group sg-9, which SecurityGroupPolicy default/web names, does not exist in the VPC")
}

// Every way an ADD can end without a network is told to the pod's owner: what, which
// pod and node, why, what to do.
func TestEveryRefusalSaysWhatWhyAndWhatToDo(t *testing.T) {
	full := ipam.Condition{Reason: ipam.ReasonNodeFull, Message: "all 15 addresses that this instance type allows (3 interfaces x 5) are in use; remove pods, or use a larger instance type"}
	wire := func(err error) error {
		return fmt.Errorf("wire default/web: interface eth0 is in the pod already: %w", err)
	}
	refused := func(do func(*Agent, *addition) error) error {
		a, server := restarted(t)
		a.deps.Rooms = []Room{forbidding{}}
		server.SetDown(false)
		return do(a, addOf("web", "8d2c4d5ef8ea2b9a1f7c3a3f4d1e0b55"))
	}
	for name, c := range map[string]struct {
		err  error
		code uint
		why  string
		todo string
	}{
		"a full node":       {full.Err(), cnirpc.CodeTryAgain, "the node has no free address: ", "use a larger instance type"},
		"others came first": {fmt.Errorf("%w: others came first", ipam.ErrNoAddress), cnirpc.CodeTryAgain, "others came first", "tries again"},
		"an interface in the way": {
			wire(link.ErrInterfaceExists), cnirpc.CodeInvalidEnv, "interface eth0 is in the pod already", "Delete the pod",
		},
		"the sandbox went":       {wire(link.ErrNamespaceGone), cnirpc.CodeUnknownContainer, "sandbox went away", "new sandbox"},
		"not a pod's namespace":  {wire(link.ErrNotNamespace), cnirpc.CodeInvalidNetns, "not a pod's network namespace", "runtime's log"},
		"too late":               {fmt.Errorf("wire default/web: %w", context.DeadlineExceeded), cnirpc.CodeTryAgain, "longer than the plugin waits", "tries again"},
		"a full disk":            {fmt.Errorf("write journal: %w", errors.New("no space left on device")), cnirpc.CodeInternal, "no space left on device", "log of the Trunkline agent"},
		"a room that forbids it": {refused(func(a *Agent, add *addition) error { return a.admit(t.Context(), add) }), cnirpc.CodeRefused, "sg-9", "Change what the reason names"},
		"a room that is not ready": {
			refused(func(a *Agent, add *addition) error {
				a.deps.Rooms = []Room{late{}}
				return a.ready(t.Context(), add)
			}), cnirpc.CodeTryAgain, "policy of default/web is not loaded yet", "tries again",
		},
		"a static pod without its mirror": {
			refused(func(a *Agent, add *addition) error { return a.identify(t.Context(), add) }), cnirpc.CodeTryAgain, "mirror", "tries again",
		},
		"the API does not answer": {
			refused(func(a *Agent, _ *addition) error {
				down, _ := restarted(t)
				return down.identify(t.Context(), addOf("stranger", "u7"))
			}), cnirpc.CodeTryAgain, "the Kubernetes API does not answer", "tries again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, told := looking(t)
			a.cfg.NodeName = "n1"
			add := addOf("web", "u1")
			add.owner = ipam.Owner{Namespace: "default", Name: "web", PodUID: "u1"}
			a.tell(add, fmt.Errorf("add pod default/web: %w", c.err))
			if len(told.events) != 1 {
				t.Fatalf("told %q", told.events)
			}
			for _, part := range []string{"pod default/web u1 NetworkNotReady: Pod default/web has no network on node n1 yet: ", c.why, c.todo} {
				if !strings.Contains(told.events[0], part) {
					t.Errorf("%q does not say %q", told.events[0], part)
				}
			}
			if got := asError(c.err).Code; got != c.code {
				t.Errorf("CNI code %d, want %d", got, c.code)
			}
		})
	}
}

func TestWhatIsOfNoInterestAnyMoreIsNotTold(t *testing.T) {
	for _, err := range []error{cniserver.ErrPluginGone, cniserver.ErrStopping, serial.ErrPreempted} {
		a, told := looking(t)
		a.tell(addOf("web", "u1"), fmt.Errorf("wire: %w: %w", err, io.EOF))
		if len(told.events) > 0 {
			t.Errorf("%v: told %q", err, told.events)
		}
	}
}
