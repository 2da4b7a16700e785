package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// What takes pods away lets ADDs go first: it waits for a lull, and not for ever. Nobody
// waits for a pod that ends, and many wait together.
const (
	lull      = 25 * time.Millisecond
	addsFirst = time.Second
)

// del takes a pod's interface away. What is not there is gone already. The
// address stays in quarantine until the kernel has deleted the link, which the
// reaper does in groups, and cools down after that.
func (a *Agent) del(ctx context.Context, key ipam.Key) error {
	t, ok := a.book.get(key)
	if !ok {
		return nil
	}
	if err := a.detach(ctx, t); err != nil {
		return fmt.Errorf("delete pod %s: %w", t.Owner.Pod(), err)
	}
	a.log.Info("pod unwired", "pod", t.Owner.Pod(), "ip", t.Addr)
	return nil
}

// detach writes down that the attachment goes, then cuts it off. It may be called
// again at any time.
func (a *Agent) detach(ctx context.Context, t attachment) error {
	if err := a.phase("DEL", "journal", func() error { return a.book.quarantine(t, time.Now()).Wait(ctx) }); err != nil {
		return err
	}
	// A pod of the same name may have the link by now; the filter's elements are
	// keyed by link and MAC, and the MAC is the attachment's own.
	if err := a.phase("DEL", "filter", func() error {
		return a.filter.Remove(ctx, ruleset.PodOf(t.pod(), a.cfg.PodMetadata).Elements()...)
	}); err != nil {
		a.log.Warn("filter elements are left for the next pass", "pod", t.Owner.Pod(), "error", err)
		a.kernel.MarkFull()
	}
	var queued bool
	if err := a.phase("DEL", "unwire", func() (err error) { queued, err = a.host.Unwire(ctx, t.pod()); return err }); err != nil {
		a.kernel.MarkFull()
		return err
	}
	if !queued {
		a.freed(t.Owner.Key())
	}
	return nil
}

// phase observes how long a part of a command takes.
func (a *Agent) phase(command, name string, f func() error) error {
	began := time.Now()
	err := f()
	a.metrics.phases.WithLabelValues(command, name).Observe(time.Since(began).Seconds())
	return err
}

// linkGone is told by the reaper, which must not be kept waiting.
func (a *Agent) linkGone(w link.Wired) {
	a.freed(ipam.Key{ContainerID: w.ContainerID, IfName: w.IfName})
}

func (a *Agent) freed(key ipam.Key) {
	if a.book.gone(key, time.Now()) {
		a.line.Wake() // a cool-down of zero frees it at once
		a.pool.Mark()
	}
}

// gc detaches every attachment of the network that the runtime does not know, and goes
// on when one fails. Those whose ADD is under way are not among them.
func (a *Agent) gc(ctx context.Context, conf netConf) error {
	valid, err := conf.valid()
	if err != nil {
		return err
	}
	var problems error
	a.host.LetADDsFirst(ctx, lull, addsFirst)
	for _, t := range a.book.attachments() {
		key := t.Owner.Key()
		if t.network() != cmp.Or(conf.Name, networkName) {
			continue // the list is of one network's attachments
		}
		if valid[types.GCAttachment{ContainerID: key.ContainerID, IfName: key.IfName}] || a.calls.Busy(key) > 0 {
			continue
		}
		a.log.Info("attachment is not known to the runtime any more", "pod", t.Owner.Pod(), "ip", t.Addr)
		problems = errors.Join(problems, a.calls.Preempt(ctx, key, func(ctx context.Context) error { return a.del(ctx, key) }))
	}
	return problems
}

// drainSpool carries out the DELs that plugins wrote down while no agent answered, and
// collects what killed plugins left there. A DEL whose attachment the runtime is busy
// with waits for the next pass: what is asked now may be newer.
func (a *Agent) drainSpool(ctx context.Context) error {
	spooled, problems := cnirpc.ReadSpool(a.spoolDir())
	problems = errors.Join(problems, cnirpc.SweepSpool(a.spoolDir(), time.Now().Add(-time.Minute)))
	if len(spooled) > 0 {
		a.host.LetADDsFirst(ctx, lull, addsFirst)
	}
	for _, s := range spooled {
		key := ipam.Key{ContainerID: s.Request.ContainerID, IfName: s.Request.IfName}
		if a.calls.Busy(key) > 0 {
			continue
		}
		err := a.calls.Do(ctx, key, func(ctx context.Context) error { return a.delSpooled(ctx, key, s.Request.SpooledAt) })
		if err == nil {
			err = s.Remove()
		}
		a.metrics.spooled.Inc()
		problems = errors.Join(problems, err)
	}
	return problems
}

// delSpooled is del for a request of the past, in Unix milliseconds: what was added
// since is not meant.
func (a *Agent) delSpooled(ctx context.Context, key ipam.Key, at int64) error {
	if t, ok := a.book.get(key); ok && at > 0 && t.Asked.UnixMilli() > at {
		a.log.Info("a spooled DEL is older than the attachment, which stays", "pod", t.Owner.Pod(), "ip", t.Addr)
		return nil
	}
	return a.del(ctx, key)
}
