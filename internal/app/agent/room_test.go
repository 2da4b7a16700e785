package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/steps"
)

// late is a room whose rules are not in force.
type late struct{}

func (late) Admit(context.Context, kube.Pod) error { return nil }
func (late) Ready(context.Context, hostnet.Pod) error {
	return errors.New("policy of default/web is not loaded yet")
}

func TestAPodIsNotLetOutBeforeEveryRoomIsReady(t *testing.T) {
	a, _ := restarted(t)
	a.deps.Rooms, a.metrics = []Room{late{}}, newMetrics(prometheus.NewRegistry(), a)
	var order []string
	for _, s := range a.addSteps().Steps {
		order = append(order, s.Name)
	}
	wire, pending, up := slices.Index(order, "wire"), slices.Index(order, "policy pending"), slices.Index(order, "up")
	if wire < 0 || wire > pending || pending > up {
		t.Fatalf("steps %v: policy pending is not between wire and up", order)
	}
	list := a.addSteps()
	list.Steps = list.Steps[pending:]
	let := false
	list.Steps[1] = steps.Step[*addition]{Name: "up", Do: func(context.Context, *addition) error { let = true; return nil }}
	err := list.Run(t.Context(), &addition{})
	var failure *cnirpc.Error
	if !errors.As(err, &failure) || failure.Code != cnirpc.CodeTryAgain || let {
		t.Errorf("%v; let out: %v", err, let)
	}
}
