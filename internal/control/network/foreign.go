package network

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// leftByAWS is what is known of the pods of AWS's plugin and of the rules of AWS's daemon.
type leftByAWS struct {
	clean   bool        // of the rules; of Start and the loop
	wired   atomic.Bool // the last comparison found links of foreign-wired pods
	untried atomic.Bool // iptables-legacy has rules that no removal has tried
}

// foreignIn returns the addresses of the node's interfaces and their prefixes that pods of
// another CNI hold, and the interfaces. An address that the node itself has is no pod's.
func foreignIn(s *state.Store) (held map[netip.Addr]bool, enis hostnet.Interfaces) {
	view, _ := s.View(time.Now())
	held = map[netip.Addr]bool{}
	for _, e := range view.ENIs {
		enis.MACs, enis.Subnets = append(enis.MACs, e.MAC), append(enis.Subnets, e.SubnetCIDR)
		for _, c := range e.OfForeign() {
			held[c.Addr] = true
		}
	}
	return held, enis
}

// metadataOf returns the addresses of pods of another CNI that may reach the instance metadata
// service: all, if pods may.
func metadataOf(s *state.Store, may bool) []netip.Addr {
	if !may {
		return nil
	}
	held, _ := foreignIn(s)
	return slices.SortedFunc(maps.Keys(held), netip.Addr.Compare)
}

// leftovers returns the steps that delete the rules of pods of another CNI that have ended.
// The backend has ended their claims at the start of the pass, so the rules are deleted
// before the cool-down of the addresses is over, and no ADD has to look for them.
func (l links) leftovers(have *hostnet.Actual, desired []hostnet.Part) []hostnet.Op {
	if l.n.OtherAgent() {
		return nil
	}
	held, enis := foreignIn(l.n.State)
	l.n.aws.wired.Store(len(have.Foreign(enis)) > 0)
	return have.Leftovers(desired, enis, func(a netip.Addr) bool { return held[a] })
}

// captured returns the steps that delete the rules of other programs which take packets of pods
// away, except those that are made again each time.
func (l links) captured(have *hostnet.Actual, desired []hostnet.Part) []hostnet.Op {
	if l.n.OtherAgent() {
		return nil
	}
	return l.n.theirs.pausedRules(have.Captured(desired))
}

// removeLeftovers deletes the hostPorts of pods of AWS's plugin that have ended, and the SNAT and
// marks of AWS's daemon once no such pod is left. Another failure than that of our own tables
// does not fail the pass. It looks for them again after each time in which that daemon may have
// run, or such a pod was there, claimed or not.
func (n *Controller) removeLeftovers(ctx context.Context) {
	held, enis := foreignIn(n.State)
	other := n.OtherAgent()
	if found := n.aws.untried.Swap(false); found || other || len(held) > 0 || n.aws.wired.Load() {
		n.aws.clean = false
	}
	if n.aws.clean || len(enis.Subnets) == 0 || other {
		return
	}
	ports, err := n.Filter.AWSHostPorts(ctx)
	if err != nil {
		n.Log.Warn("hostPorts of AWS's network are left for the next pass", "error", err)
	}
	ports = slices.DeleteFunc(ports, func(p nft.HostPorts) bool { return held[p.Pod] || !enis.Hold(p.Pod) })
	if len(held) > 0 && len(ports) == 0 {
		return
	}
	have, readErr := n.Links.Read(ctx)
	if readErr != nil {
		return // the comparison has reported the error
	}
	wired := hostnet.NewActual(have).Foreign(enis)
	ports = slices.DeleteFunc(ports, func(p nft.HostPorts) bool { return wired[p.Pod] })
	log := deletions{n.Log}
	failed := log.done(n.Filter.RemoveHostPorts(ctx, ports...))
	if len(held)+len(wired) > 0 {
		return
	}
	n.aws.clean = errors.Join(err, failed, log.done(n.Filter.RemoveAWS(ctx))) == nil
}

// LegacyAWS returns the chains of AWS's daemon in iptables-legacy that could not be removed once no
// pod of its plugin is left, with the reason: they stay, and take packets of our pods. None while
// that daemon may run. The next pass removes chains that no removal has tried.
func (n *Controller) LegacyAWS() (chains []string, why, err error) {
	held, enis := foreignIn(n.State)
	if n.OtherAgent() || len(held) > 0 || n.aws.wired.Load() || len(enis.Subnets) == 0 {
		return nil, nil, nil
	}
	chains, why, err = n.Filter.LegacyAWS()
	if err == nil && why == nil && len(chains) > 0 {
		n.aws.untried.Store(true)
		n.Loop.Mark()
		return nil, nil, nil
	}
	return chains, why, err
}

// deletions is the log of what is deleted of AWS's daemon.
type deletions struct{ *slog.Logger }

// done logs what was deleted, and returns the error.
func (l deletions) done(what []string, err error) error {
	if len(what) > 0 {
		l.Info("deleted what AWS's daemon left", "what", what)
	}
	if err != nil {
		l.Warn("rules of AWS's daemon are left for the next pass", "error", err)
	}
	return err
}
