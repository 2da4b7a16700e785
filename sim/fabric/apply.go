package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// ErrClosed is returned by a fabric that was closed or destroyed.
var ErrClosed = errors.New("fabric is closed")

// apply is Apply without the serialization. It changes links, then the filter, then
// addresses and routes, and deletes last, so that no packet is lost that is allowed both
// before and after.
func (f *Fabric) apply(want State) error {
	if f.link == nil {
		return ErrClosed
	}
	p, refused, err := newPlan(want)
	if err != nil {
		return fmt.Errorf("apply to fabric %s: %w", f.name, err)
	}
	p.keepNumbers(f.numbers)
	f.numbers = p.number
	errs := make([]error, 0, len(refused)+4)
	for _, e := range refused {
		errs = append(errs, e)
	}
	before := f.changes
	if f.owner == nil {
		if f.owner, err = f.recoverOwners(); err != nil {
			return err
		}
	}
	errs = append(errs, writeSysctls(f.name, routerSysctls()))
	stale, err := f.plug(p)
	errs = append(errs, err)
	changed, err := f.nft.apply(tables(p), p.device)
	f.changes += changed
	errs = append(errs, err)
	index, err := f.applyLayer3(f.link, p.layout(), p.ports())
	errs = append(errs, err)
	f.ndp.known.Store(p.neighbours(index))
	if want.Internet != nil {
		errs = append(errs, f.applyOutside(want.Internet.outsideLayout()))
	}
	errs = append(errs, f.unplug(stale))
	if want.Internet == nil {
		errs = append(errs, netns.Delete(f.internet))
	}
	errs = append(errs, f.endFlows(p.owner), f.endPublicFlows(p))
	if n := f.changes - before; n > 0 {
		f.log.Debug("fabric changed", "fabric", f.name, "changes", n, "ports", len(p.links))
	}
	return errors.Join(errs...)
}

// applyLayer3 applies the layout of one namespace and returns its device indexes.
func (f *Fabric) applyLayer3(h *netlink.Handle, want layout, ports map[string]vpc.ENIID) (map[string]int, error) {
	l, err := newLayer3(h)
	if err != nil {
		return nil, err
	}
	l.ports = ports
	err = l.apply(want)
	f.changes += l.changes
	return l.index, err
}

// applyOutside applies the layout of the outside host's namespace.
func (f *Fabric) applyOutside(want layout) error {
	ns, err := os.Open(netns.Path(f.internet))
	if err != nil {
		return fmt.Errorf("open internet namespace %s: %w", f.internet, err)
	}
	defer ns.Close()
	h, err := handleIn(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", f.internet, err)
	}
	defer h.Close()
	for _, name := range []string{"lo", outsideDevice} {
		l, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", name, f.internet, err)
		}
		if l.Attrs().RawFlags&unix.IFF_UP != 0 {
			continue
		}
		f.changes++
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up in %s: %w", name, f.internet, err)
		}
	}
	_, err = f.applyLayer3(h, want, nil)
	return err
}

// recoverOwners reads from the kernel which port held each address in the last State of
// an earlier process.
func (f *Fabric) recoverOwners() (map[netip.Prefix]vpc.ENIID, error) {
	links, err := ourLinks(f.link)
	if err != nil {
		return nil, err
	}
	l, err := newLayer3(f.link)
	if err != nil {
		return nil, err
	}
	routes, err := l.presentRoutes()
	if err != nil {
		return nil, err
	}
	owner := map[netip.Prefix]vpc.ENIID{}
	for key, to := range routes {
		link, ours := links[to.device]
		if key.table != unix.RT_TABLE_MAIN || !ours {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(link.Attrs().Alias, aliasPrefix), " ")
		owner[key.dst] = vpc.ENIID(id)
	}
	return owner, nil
}

// endFlows deletes the connections of every address that its port no longer holds: on
// EC2, connection state belongs to the interface, not to the address.
func (f *Fabric) endFlows(now map[netip.Prefix]vpc.ENIID) error {
	left := movedAddresses{single: map[netip.Addr]bool{}}
	for prefix, was := range f.owner {
		if now[prefix] == was {
			continue
		}
		if prefix.IsSingleIP() {
			left.single[prefix.Addr()] = true
		} else {
			left.prefixes = append(left.prefixes, prefix)
		}
	}
	if len(left.single)+len(left.prefixes) > 0 {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			ended, err := endFlowsOf(f.link, family, left)
			f.changes += ended
			if err != nil {
				return err
			}
		}
	}
	f.owner = now
	return nil
}

// endFlowsOf deletes the matching connections of one family and returns how many. It repeats
// an interrupted dump, which may lack entries.
func endFlowsOf(link *netlink.Handle, family netlink.InetFamily, which netlink.CustomConntrackFilter) (int, error) {
	total := 0
	_, err := dump(func() ([]struct{}, error) {
		ended, err := link.ConntrackDeleteFilters(netlink.ConntrackTable, family, which)
		total += int(ended)
		return nil, err
	})
	if err != nil {
		return total, fmt.Errorf("end the flows of addresses that left: %w", err)
	}
	return total, nil
}

// movedAddresses matches connections from or to addresses that left their port.
type movedAddresses struct {
	single   map[netip.Addr]bool
	prefixes []netip.Prefix
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (l movedAddresses) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return l.has(addrOf(flow.Forward.SrcIP)) || l.has(addrOf(flow.Forward.DstIP))
}

func (l movedAddresses) has(a netip.Addr) bool {
	if l.single[a] {
		return true
	}
	for _, prefix := range l.prefixes {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}
