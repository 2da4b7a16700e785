package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
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

// The runtime gives up, or a DEL comes, while the attachment is being written.
func TestAnAddressThatIsGivenBackLeavesNoAttachment(t *testing.T) {
	a, _ := restarted(t)
	a.cfg = defaults(t)
	a.book, a.metrics = filled(t, a.cfg), newMetrics(prometheus.NewRegistry(), a)
	a.pool = loop.New(nil)
	observe(t, a.book)
	if err := a.book.journal.Close(); err != nil {
		t.Fatal(err)
	}
	add := addOf("known", "u1")
	if err := a.addSteps().Run(t.Context(), add); err == nil {
		t.Fatal("it was written")
	}
	if at, there := a.book.get(add.owner.Key()); there {
		t.Errorf("%s is free for others, and a DEL would take its rules away from them", at.Addr)
	}
	if view, leases := a.book.view(time.Now()); len(leases) > 0 || view.ENIs[0].Count(ipam.Free) != 2 {
		t.Errorf("leases %v, addresses %v", leases, view.ENIs[0].Addresses)
	}
}
