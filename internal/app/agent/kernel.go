package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// families served.
func families() []vpc.Family { return []vpc.Family{vpc.IPv4} }

// wantHost is the whole of the node's network as it should be now.
func (a *Agent) wantHost() hostnet.State {
	states := []hostnet.State{hostnet.ForNode(families(), a.cfg.ExternalCIDRs)}
	view, leases := a.book.view(time.Now())
	tables := tablesOf(view, leases)
	for _, e := range view.ENIs {
		if want, ok := a.eniState(e.ENI); ok {
			states = append(states, want)
		}
	}
	for _, t := range a.book.attachments() {
		if t.Stage != deleting {
			states = append(states, hostnet.ForPod(t.podAt(tables)))
		}
	}
	return hostnet.Join(states...)
}

// wantPod is the pod of an attachment as the kernel should have it now.
func (a *Agent) wantPod(t attachment) hostnet.Pod {
	return t.podAt(tablesOf(a.book.view(time.Now())))
}

// podAt is the pod at the table where its interface is now.
func (t attachment) podAt(tables map[ipam.Key]uint32) hostnet.Pod {
	p := t.pod()
	if table, ok := tables[t.Owner.Key()]; ok {
		p.Table = table
	}
	return p
}

// tablesOf says which table each pod's traffic leaves by: that of its interface,
// which may have come back at another device index after somebody detached it.
func tablesOf(view ipam.View, leases []ipam.Lease) map[ipam.Key]uint32 {
	tables := map[ipam.Key]uint32{}
	for _, l := range leases {
		for _, e := range view.ENIs {
			if e.ID == l.ENI && e.Phase == ipam.Ready {
				tables[l.Owner.Key()] = hostnet.ENI{Device: e.Device}.Table()
			}
		}
	}
	return tables
}

// eniState is the network of an interface whose link has been found and that is
// on the instance.
func (a *Agent) eniState(e ipam.ENI) (hostnet.State, bool) {
	a.mu.Lock()
	found, ok := a.enis[e.MAC.String()]
	a.mu.Unlock()
	if !ok || e.Unmanaged || e.Phase == ipam.Attaching || e.Phase == ipam.Detaching || e.Phase == ipam.Deleting {
		return hostnet.State{}, false
	}
	return hostnet.ForENI(hostnet.ENI{
		ID: e.ID, Link: found.link, MAC: e.MAC, Device: e.Device, MTU: a.cfg.MTU,
		Addresses: []netip.Prefix{netip.PrefixFrom(e.PrimaryIP, e.SubnetCIDR.Bits())},
		Gateways:  []netip.Addr{vpc.Gateway(e.SubnetCIDR)},
	}), true
}

// wantFilter is the whole of our nftables as it should be now.
func (a *Agent) wantFilter() ruleset.Ruleset {
	a.mu.Lock()
	node := a.facts
	primary := a.enis[node.identity.PrimaryMAC.String()].link
	a.mu.Unlock()
	c := ruleset.Config{
		PrimaryLink: primary, PrimaryIPv4: node.identity.PrimaryIP, VPCCIDRs: node.primary.VPCv4CIDRs,
		ExcludeSNAT: a.cfg.ExcludeSNATCIDRs, ExternalSNAT: a.cfg.ExternalSNAT,
		Random: ruleset.Randomize(a.cfg.RandomizeSNAT), NoNodePort: !a.cfg.NodePort,
	}
	for _, t := range a.book.attachments() {
		if t.Stage != deleting {
			c.Pods = append(c.Pods, ruleset.PodOf(t.pod(), a.cfg.PodMetadata))
		}
	}
	return ruleset.Compile(c)
}

// reconcileKernel makes links, routes, rules and nftables agree with the book. It
// is the loop's work; every pass is a whole one, for reading everything costs a
// few milliseconds.
func (a *Agent) reconcileKernel(ctx context.Context, full bool) (next time.Time, err error) {
	began := time.Now()
	claimErr := a.claim(ctx)
	next, linkErr := a.applyLinks(ctx)
	filterNext, filterErr := a.applyFilter(ctx)
	a.metrics.kernelPass.Observe(time.Since(began).Seconds())
	if !filterNext.IsZero() && (next.IsZero() || filterNext.Before(next)) {
		next = filterNext
	}
	if linkErr != nil {
		a.doubtEC2("the node's links are not as the ledger says")
	}
	err = errors.Join(claimErr, linkErr, filterErr)
	if full && err == nil {
		err = errors.Join(a.book.agree(agreement{At: began, By: a.maker()}), a.sweepQuarantine(ctx))
	}
	return next, err
}

// doubtEC2 has EC2 looked at soon: an interface may have been taken off the node. For
// the same reason it does so once a minute: that look did not help.
func (a *Agent) doubtEC2(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if why == a.sight.doubted && time.Since(a.sight.doubtedAt) < lookEvery {
		return
	}
	a.sight.doubt, a.sight.doubted, a.sight.doubtedAt = why, why, time.Now()
	a.observe.Mark()
}

// sweepQuarantine frees the addresses of pods that went and whose link is no
// more, though nobody said so: it was deleted with its namespace, or by hand.
func (a *Agent) sweepQuarantine(ctx context.Context) error {
	before, waiting := a.book.attachments(), a.book.quarantined() // first: a link made later is not missed
	links, err := a.host.Pods(ctx)
	if err != nil {
		return fmt.Errorf("list pods' links: %w", err)
	}
	there, held, unknown := map[ipam.Key]bool{}, map[netip.Addr]bool{}, false
	for _, w := range links {
		unknown = unknown || w.Half // whose it is, and what address it has
		there[ipam.Key{ContainerID: w.ContainerID, IfName: w.IfName}] = true
		for _, addr := range w.Addresses {
			held[addr] = true
		}
	}
	for _, t := range before {
		if t.Stage == deleting && !there[t.Owner.Key()] && a.calls.Busy(t.Owner.Key()) == 0 {
			a.freed(t.Owner.Key())
		}
	}
	for _, l := range waiting {
		if !held[l.Addr] && !unknown && a.calls.Busy(l.Owner.Key()) == 0 {
			a.freed(l.Owner.Key())
		}
	}
	return nil
}

// setUpENIs finds the links of the interfaces that are on the instance.
func (a *Agent) setUpENIs(ctx context.Context) error {
	view, _ := a.book.view(time.Now())
	for _, e := range view.ENIs {
		if !e.Unmanaged && e.Phase == ipam.Ready {
			if err := a.findENI(ctx, e.ENI); err != nil {
				a.log.Warn("an interface has no link on the node", "eni", e.ID, "error", err)
				if e.Primary {
					return err
				}
			}
		}
	}
	return nil
}

// rename takes over the names that interfaces' links have now.
func (a *Agent) rename(ctx context.Context) error {
	names, err := a.host.Names(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for mac, name := range names {
		if e, ours := a.enis[mac.String()]; ours && e.link != name {
			a.log.Info("an interface has another name now", "eni", e.id, "was", e.link, "link", name)
			e.link = name
			a.enis[mac.String()] = e
		}
	}
	return nil
}

// findENI waits for an interface's link: the device appears some time after EC2
// says it is attached.
func (a *Agent) findENI(ctx context.Context, e ipam.ENI) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	name, err := a.host.FindENI(ctx, e.MAC)
	if err != nil {
		return fmt.Errorf("find the link of %s (%s): %w", e.ID, e.MAC, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enis[e.MAC.String()] = hostENI{id: e.ID, link: name}
	return nil
}
