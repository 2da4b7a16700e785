// Package groupstatus writes the status of SecurityGroupPolicies where nodes enforce the groups of all
// pods, without branches.
//
// It decides which pods have exactly the groups of their policies: those of which the node reports that
// it enforces, and knows, all of their groups. It reads no table and writes none. It drives edge/kube:
// pods, policies, service accounts, the reports of nodes and the SecurityGroups that nodes judge by.
// The elected leader of app/controller runs it. Where pods have branches, control/trunk writes the
// status instead.
package groupstatus

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Intervals: the least time between two passes, and the time to the next one without a change, by which
// reports of nodes become stale.
const (
	minInterval = 2 * time.Second
	every       = time.Minute
)

// Writer writes the status of policies.
type Writer struct {
	selection *kube.SelectionObjects
	nodes     *kube.NodeGroupObjects
	loop      *loop.Loop
}

// New returns a writer. Run starts it.
func New(c *kube.Client, log *slog.Logger) *Writer {
	w := &Writer{}
	w.loop = loop.New(w.pass)
	w.loop.MinInterval, w.loop.Every = minInterval, every
	w.loop.Report = func(err error, pause time.Duration) {
		log.Warn("status of SecurityGroupPolicies not written, retrying", "in", pause, "err", err)
	}
	w.selection = kube.NewSelectionObjects(c, func(kube.BranchChange) { w.loop.Mark() }, log)
	w.nodes = kube.NewNodeGroupObjects(c, w.loop.Mark, log)
	return w
}

// Run writes until ctx ends. Nothing is written before everything was read.
func (w *Writer) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { w.selection.Run(ctx) })
	wg.Go(func() { w.nodes.Run(ctx) })
	if w.selection.Wait(ctx) && w.nodes.Wait(ctx) {
		_ = w.loop.Run(ctx) // returns nil
	}
	wg.Wait()
}

// pass writes the status of each policy that has another one than it should.
func (w *Writer) pass(ctx context.Context, _ bool) (time.Time, error) {
	now := time.Now()
	var counted securitygroup.PodCounts
	for _, p := range w.selection.Pods() {
		d := w.selection.Select(p)
		if d.Verdict == securitygroup.NotSelected {
			continue
		}
		d, why := w.nodes.Judge(p, d, now)
		counted.Add(p.Name, d, securitygroup.PodState{Applied: why == "", Message: why})
	}
	known := w.nodes.Known()
	return time.Time{}, w.selection.WriteStatus(ctx, &counted, securitygroup.ReasonNotEnforced, func(p *v1beta1.SecurityGroupPolicy) error {
		return securitygroup.Unusable(p.Spec.SecurityGroups.Groups, known)
	})
}
