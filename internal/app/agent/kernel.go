package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
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
	view, _ := a.state.View(time.Now())
	for _, e := range view.ENIs {
		if want, ok := a.eniState(e.ENI); ok {
			states = append(states, want)
		}
	}
	for _, e := range a.state.Endpoints() {
		if e.Wired() {
			states = append(states, hostnet.ForEndpoint(routed(e, view)))
		}
	}
	return hostnet.Join(states...)
}

// routed is an endpoint at the route table where its interface is now.
func (a *Agent) routed(e endpoint.Endpoint) endpoint.Endpoint {
	view, _ := a.state.View(time.Now())
	return routed(e, view)
}

// routed is an endpoint at the route table of its interface, which may have come back at
// another device index after someone detached it.
func routed(e endpoint.Endpoint, view ipam.View) endpoint.Endpoint {
	for _, i := range view.ENIs {
		if i.Phase != ipam.Ready {
			continue
		}
		holds := slices.ContainsFunc(i.Addresses, func(a ipam.Address) bool {
			return a.Holder.Endpoint == e.ID && e.ID != 0 && (a.State == ipam.Assigned || a.State == ipam.Quarantined)
		})
		if holds {
			e.Attachment.Interface, e.Attachment.Table = i.ID, hostnet.ENI{Device: i.Device}.Table()
		}
	}
	return e
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
	for _, e := range a.state.Endpoints() {
		if e.Wired() {
			c.Pods = append(c.Pods, ruleset.PodOf(e, a.cfg.PodMetadata))
		}
	}
	return ruleset.Compile(c)
}

// reconcileKernel makes links, routes, rules and nftables agree with the state. It
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
		a.requestEC2Resync("the node's links are not as the ledger says")
	}
	err = errors.Join(claimErr, linkErr, filterErr)
	if full && err == nil {
		err = errors.Join(a.agree(began), a.cni.ReleaseGone(ctx))
	}
	return next, err
}

// requestEC2Resync has EC2 observed soon: an interface may have been detached from the
// node. For the same reason it does so once a minute: the last observation did not help.
func (a *Agent) requestEC2Resync(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if why == a.sight.doubted && time.Since(a.sight.doubtedAt) < lookEvery {
		return
	}
	a.sight.doubt, a.sight.doubted, a.sight.doubtedAt = why, why, time.Now()
	a.observe.Mark()
}

// setUpENIs finds the links of the interfaces that are on the instance.
func (a *Agent) setUpENIs(ctx context.Context) error {
	view, _ := a.state.View(time.Now())
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
