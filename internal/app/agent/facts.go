package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/imds"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// facts about the node that do not change while it runs.
type facts struct {
	identity imds.Identity
	primary  imds.Interface
	limits   vpc.Limits
	node     ec2.Node
}

// hostENI is an interface's link on the node.
type hostENI struct {
	id   vpc.ENIID
	link string
}

// learn reads who this node is and what EC2 shows of it. It waits for both: a
// node without them can do nothing.
func (a *Agent) learn(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"instance metadata", a.learnIdentity},
		{"limits of the instance type", func(ctx context.Context) (err error) {
			a.facts.limits, err = a.ec2.InstanceLimits(ctx, a.facts.identity.Type)
			return err
		}},
		{"interfaces at EC2", func(ctx context.Context) error { return a.look(ctx, true) }},
	} {
		began := time.Now()
		err := a.untilDone(ctx, step.name, step.do)
		if err != nil {
			return fmt.Errorf("learn %s: %w", step.name, err)
		}
		a.log.Info("learned", "what", step.name, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// errStopped ends a start that was told to stop.
var errStopped = errors.New("stopped while starting")

// untilDone repeats f with growing pauses until it succeeds or ctx ends.
func (a *Agent) untilDone(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	succeeded := false
	l := loop.New(func(ctx context.Context, _ bool) (time.Time, error) {
		err := f(ctx)
		if err == nil {
			succeeded = true
			done()
		}
		return time.Time{}, err
	})
	l.Backoff, l.MaxBackoff = 200*time.Millisecond, 10*time.Second
	l.Report = func(err error, pause time.Duration) {
		a.log.Warn("starting waits", "for", what, "error", err, "pause", pause)
		a.events.NodeWarning("TrunklineStarting", fmt.Sprintf("The agent waits for %s: %v", what, err))
	}
	if err := l.Run(ctx); err != nil {
		return err
	}
	if !succeeded {
		return errStopped
	}
	return nil
}

func (a *Agent) learnIdentity(ctx context.Context) (err error) {
	if a.facts.identity, err = a.metadata.Identity(ctx); err != nil {
		return err
	}
	if a.facts.primary, err = a.metadata.Interface(ctx, a.facts.identity.PrimaryMAC); err != nil {
		return err
	}
	a.facts.node = ec2.Node{Instance: a.facts.identity.Instance, Cluster: a.cfg.ClusterName}
	return nil
}

// settle brings what an earlier process left to rest before anything new begins:
// pods found in the kernel and not in the book are adopted, ADDs it died over are
// taken back, DELs it took are finished, and the kernel agrees with the book.
func (a *Agent) settle(ctx context.Context) error {
	if err := a.adoptLinks(ctx); err != nil {
		return err
	}
	if err := a.setUpENIs(ctx); err != nil {
		return err
	}
	if _, err := a.reconcileKernel(ctx, true); err != nil {
		return err
	}
	for _, t := range a.book.attachments() {
		switch {
		case a.book.journal.Found.Rebooted && t.Stage != deleting:
			// The link died with the old boot; its DEL may never come.
			a.log.Info("pod of an earlier boot", "pod", t.Owner.Pod(), "ip", t.Addr)
		case t.Stage == wired:
			continue
		case t.Stage == adding:
			a.log.Info("taking an interrupted ADD back", "pod", t.Owner.Pod(), "ip", t.Addr)
		}
		if err := a.detach(ctx, t); err != nil {
			return fmt.Errorf("finish pod %s: %w", t.Owner.Pod(), err)
		}
	}
	if err := a.drainSpool(ctx); err != nil {
		a.log.Warn("spooled DELs are left for the next pass", "error", err)
	}
	return nil
}

// adoptLinks books the pods that are in the kernel and not in the book.
func (a *Agent) adoptLinks(ctx context.Context) error {
	links, err := a.host.Pods(ctx)
	if err != nil {
		return fmt.Errorf("list pods' links: %w", err)
	}
	for _, w := range links {
		key := ipam.Key{ContainerID: w.ContainerID, IfName: w.IfName}
		if _, known := a.book.get(key); known || w.Half || w.Dying || len(w.Addresses) == 0 {
			continue
		}
		if err := a.adopt(ctx, key, w.Link, w.Table, w.Addresses[0]); err != nil {
			a.log.Warn("a pod's link cannot be taken over", "link", w.Link, "ip", w.Addresses[0], "error", err)
		}
	}
	return nil
}

// adopt books an attachment that only the kernel knows: the journal was lost.
func (a *Agent) adopt(ctx context.Context, key ipam.Key, linkName string, table uint32, addr netip.Addr) error {
	owner := ipam.Owner{ContainerID: key.ContainerID, IfName: key.IfName}
	for _, p := range a.cluster.Pods() {
		if hostnet.LinkName(a.cfg.VethPrefix, p.Namespace, p.Name) == linkName {
			owner.Namespace, owner.Name, owner.PodUID = p.Namespace, p.Name, p.UID
		}
	}
	a.book.mu.Lock()
	lease, rows, err := a.book.ledger.Adopt(owner, addr, time.Now())
	a.book.mu.Unlock()
	if err != nil {
		return err
	}
	a.log.Warn("pod taken over from the kernel", "pod", owner.Pod(), "ip", addr, "link", linkName)
	if table == 0 {
		table = hostnet.ENI{Device: lease.Device}.Table()
	}
	return a.book.put(attachment{
		Owner: owner, Addr: addr, Table: table, MTU: a.podMTU(), Link: linkName, Stage: wired, Since: time.Now(),
	}, rows...).Wait(ctx)
}

func (a *Agent) spoolDir() string { return filepath.Join(a.cfg.StateDir, "spool") }

// spoolLoop carries out DELs that were spooled while the agent was starting.
func (a *Agent) spoolLoop(ctx context.Context) error {
	l := loop.New(func(ctx context.Context, _ bool) (time.Time, error) { return time.Time{}, a.drainSpool(ctx) })
	l.Every, l.MaxBackoff = 5*time.Second, 30*time.Second
	l.Report = func(err error, pause time.Duration) {
		a.log.Warn("spooled DELs are left", "error", err, "pause", pause)
	}
	return l.Run(ctx)
}

// firstAddress waits until an ADD could be served.
func (a *Agent) firstAddress(ctx context.Context) error {
	return retry(ctx, 20*time.Millisecond, func() (again bool, err error) {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		view, leases := a.book.view(time.Now())
		free := len(leases) // a full node serves DELs, and its pods live
		for _, e := range view.ENIs {
			if e.Phase == ipam.Ready {
				free += e.Count(ipam.Free)
			}
		}
		if free == 0 {
			return true, errors.New("no address yet")
		}
		return false, nil
	})
}
