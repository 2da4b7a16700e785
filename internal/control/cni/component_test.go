package cni

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// late is a component with rules that are not in force yet.
type late struct{}

func (late) Admit(context.Context, kube.Pod) error { return nil }
func (late) Ready(context.Context, endpoint.Endpoint, int) error {
	return errors.New("policy of default/web is not loaded yet")
}

// forbidding is a component that refuses every pod.
type forbidding struct{ late }

func (forbidding) Admit(context.Context, kube.Pod) error {
	return errors.New("security group sg-9, which SecurityGroupPolicy default/web names, does not exist in the VPC")
}

func TestALinkStaysDownUntilEveryComponentIsReady(t *testing.T) {
	h := newHarness(t, late{})
	_, failure := h.call(t, request("ADD", "known"))
	if failure == nil || failure.Code != cnirpc.CodeTryAgain {
		t.Errorf("%v, want CNI code %d", failure, cnirpc.CodeTryAgain)
	}
	if done := h.wires.done; !slices.Equal(done, []string{"wire", "put", "remove", "unwire"}) {
		t.Errorf("steps %v: want that the link is not set up", done)
	}
}
