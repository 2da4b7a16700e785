package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// layer3 makes one namespace's addresses, neighbours, routes and rules equal to a
// layout. It reads the actual state each time and changes only the difference.
type layer3 struct {
	link    *netlink.Handle
	index   map[string]int // devices by name
	name    map[int]string
	ports   map[string]vpc.ENIID // ports by device, for PortErrors
	changes int
}

// newLayer3 lists the devices of the namespace.
func newLayer3(h *netlink.Handle) (*layer3, error) {
	links, err := dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	l := &layer3{link: h, index: map[string]int{}, name: map[int]string{}}
	for _, link := range links {
		a := link.Attrs()
		l.index[a.Name], l.name[a.Index] = a.Index, a.Name
	}
	return l, nil
}

// dump repeats a dump, a few times at most, until no change interrupts it: an
// interrupted dump may lack entries.
func dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// apply adds before it deletes. It skips entries of a device that does not exist: that
// device has its own error.
func (l *layer3) apply(want layout) error {
	return errors.Join(
		l.addresses(want),
		l.neighbours(want),
		l.routes(want),
		l.rules(want),
	)
}

func (l *layer3) addresses(want layout) error {
	have, err := dump(func() ([]netlink.Addr, error) { return l.link.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	present := map[address]netlink.Addr{}
	for _, a := range have {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			present[address{l.name[a.LinkIndex], addr.Unmap()}] = a
		}
	}
	var errs []error
	for a := range want.addresses {
		index, exists := l.index[a.device]
		if _, ok := present[a]; ok || !exists {
			continue
		}
		err := l.link.AddrAdd(byIndex(index), &netlink.Addr{IPNet: ipNet(full(a.addr)), Flags: unix.IFA_F_NODAD})
		errs = append(errs, l.did(a.device, err, "add address %s", a.addr))
	}
	for a, entry := range present {
		if want.addresses[a] || a.addr.IsLoopback() || l.foreign(a.device, want) {
			continue
		}
		err := l.link.AddrDel(byIndex(entry.LinkIndex), &entry)
		errs = append(errs, l.did(a.device, err, "delete address %s", a.addr))
	}
	return errors.Join(errs...)
}

// foreign reports whether the layout does not contain the device.
func (l *layer3) foreign(device string, want layout) bool {
	if device == "lo" {
		return false
	}
	for n := range want.neighbours {
		if n.device == device {
			return false
		}
	}
	return true
}

func (l *layer3) neighbours(want layout) error {
	present := map[neighbour]vpc.MAC{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		entries, err := dump(func() ([]netlink.Neigh, error) { return l.link.NeighList(0, family) })
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, e := range entries {
			addr, ok := netip.AddrFromSlice(e.IP)
			if !ok || e.State&netlink.NUD_PERMANENT == 0 || len(e.HardwareAddr) != 6 {
				continue
			}
			present[neighbour{l.name[e.LinkIndex], addr.Unmap()}] = vpc.MAC(e.HardwareAddr)
		}
	}
	var errs []error
	for n, mac := range want.neighbours {
		index, exists := l.index[n.device]
		if have, ok := present[n]; (ok && have == mac) || !exists {
			continue
		}
		err := l.link.NeighSet(&netlink.Neigh{
			LinkIndex: index, State: netlink.NUD_PERMANENT,
			IP: n.addr.AsSlice(), HardwareAddr: mac.HardwareAddr(),
		})
		errs = append(errs, l.did(n.device, err, "set neighbour %s", n.addr))
	}
	return errors.Join(errs...)
}

func (l *layer3) routes(want layout) error {
	present, err := l.presentRoutes()
	if err != nil {
		return err
	}
	var errs []error
	for key, to := range want.routes {
		if have, ok := present[key]; ok && have == to {
			continue
		}
		if _, exists := l.index[to.device]; to.device != "" && !exists {
			continue
		}
		errs = append(errs, l.did(to.device, l.link.RouteReplace(l.message(key, to)), "set route %s", key.dst))
	}
	for key, to := range present {
		if _, ok := want.routes[key]; !ok {
			err := l.link.RouteDel(l.message(key, to))
			if errors.Is(err, unix.ESRCH) {
				err = nil
			}
			errs = append(errs, l.did(to.device, err, "delete route %s", key.dst))
		}
	}
	return errors.Join(errs...)
}

// presentRoutes are the routes that carry our protocol number.
func (l *layer3) presentRoutes() (map[routeKey]hop, error) {
	present := map[routeKey]hop{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		ours := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: routeProtocol}
		routes, err := dump(func() ([]netlink.Route, error) {
			return l.link.RouteListFiltered(family, ours, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			key := routeKey{table: r.Table, dst: prefixOf(r.Dst, family)}
			to := hop{onward: r.Type == unix.RTN_THROW}
			if r.Type == unix.RTN_UNICAST {
				to.device = l.name[r.LinkIndex]
				to.via = addrOf(r.Gw)
				to.source = addrOf(r.Src)
			}
			present[key] = to
		}
	}
	return present, nil
}

func (l *layer3) message(key routeKey, to hop) *netlink.Route {
	r := &netlink.Route{Table: key.table, Dst: ipNet(key.dst), Protocol: routeProtocol}
	switch {
	case to.onward:
		r.Type = unix.RTN_THROW
		return r
	case to.device == "":
		r.Type = unix.RTN_BLACKHOLE
		return r
	}
	r.Type = unix.RTN_UNICAST
	r.LinkIndex = l.index[to.device]
	if to.via.IsValid() {
		r.Gw = to.via.AsSlice()
		r.Flags = int(netlink.FLAG_ONLINK)
	}
	if to.source.IsValid() {
		r.Src = to.source.AsSlice()
	}
	return r
}

func (l *layer3) rules(want layout) error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := dump(func() ([]netlink.Rule, error) { return l.link.RuleList(family) })
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		present := map[int]bool{}
		for _, r := range rules {
			if r.Priority != rulePriority && r.Priority != redirectPriority {
				continue
			}
			if have := (lookup{r.Priority, int(r.Mark)}); want.tables[r.Table] == have && !present[r.Table] {
				present[r.Table] = true
				continue
			}
			r.Family = family
			errs = append(errs, l.did("", l.link.RuleDel(&r), "delete rule to table %d", r.Table))
		}
		for table, at := range want.tables {
			if present[table] {
				continue
			}
			r := netlink.NewRule()
			r.Family, r.Priority, r.Mark, r.Table, r.Protocol = family, at.priority, uint32(at.mark), table, routeProtocol
			errs = append(errs, l.did("", l.link.RuleAdd(r), "add rule to table %d", table))
		}
	}
	return errors.Join(errs...)
}

// did counts a change and returns its error as that of the device's port: a guest may be
// deleted at the same time.
func (l *layer3) did(device string, err error, format string, args ...any) error {
	l.changes++
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if port, ok := l.ports[device]; ok {
		return &PortError{Port: port, Err: fmt.Errorf("%s: %w", what, err)}
	}
	return fmt.Errorf("%s on %s: %w", what, device, err)
}

func byIndex(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

func full(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// prefixOf reads a route's destination; nil is the default route.
func prefixOf(n *net.IPNet, family int) netip.Prefix {
	if n == nil {
		if family == unix.AF_INET {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}
