package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Read returns the actual state of the kernel: links, addresses, permanent neighbours,
// routes of every table, of the local one only those to addresses of the node, rules, and the
// named sysctls.
func (h *Host) Read(ctx context.Context, sysctls ...string) (hostnet.State, error) {
	s, err := readWith(ctx, h.sockets.dump)
	if err != nil {
		return s, err
	}
	if len(sysctls) > 0 {
		err = netns.Do(h.ns, func() error {
			s.Sysctls, err = readSysctls(sysctls)
			return err
		})
	}
	return s, err
}

// Settings returns the named sysctls, without those that the kernel does not have.
func (h *Host) Settings(names ...string) (list []hostnet.Sysctl, err error) {
	err = netns.Do(h.ns, func() error {
		list, err = readSysctls(names)
		return err
	})
	return list, err
}

// readPodSide reads a pod's namespace.
func readPodSide(ns *os.File) (s hostnet.State, err error) {
	err = netns.Do(ns, func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer handle.Close()
		s, err = readWith(context.Background(), handle)
		return err
	})
	return s, err
}

func readWith(ctx context.Context, handle *netlink.Handle) (hostnet.State, error) {
	var s hostnet.State
	links, err := again(ctx, func() ([]netlink.Link, error) { return handle.LinkList() })
	if err != nil {
		return s, fmt.Errorf("list links: %w", err)
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return cmp.Compare(a.Attrs().Index, b.Attrs().Index) })
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		s.Links = append(s.Links, linkOf(l.Attrs()))
	}
	for _, read := range []func(context.Context, *netlink.Handle, map[int]string, *hostnet.State) error{
		readAddresses, readNeighbours, readRoutes, readRules,
	} {
		if err := read(ctx, handle, names, &s); err != nil {
			return s, err
		}
	}
	return s, nil
}

func linkOf(a *netlink.LinkAttrs) hostnet.Link {
	l := hostnet.Link{Name: a.Name, MTU: a.MTU, Admin: hostnet.AdminDown, Alias: a.Alias, Group: a.Group}
	if len(a.HardwareAddr) == len(l.MAC) {
		l.MAC = vpc.MAC(a.HardwareAddr)
	}
	if a.Flags&net.FlagUp != 0 {
		l.Admin = hostnet.AdminUp
	}
	return l
}

func dying(a *netlink.LinkAttrs) bool { return linkOf(a).Dying() }

// wiredOf converts a pod's link; Half is set if it has no alias of a pod.
func wiredOf(a *netlink.LinkAttrs) Wired {
	have := linkOf(a)
	mark, marked := hostnet.ParseAlias(have.Alias)
	return Wired{
		Alias: mark, Link: a.Name, Index: a.Index,
		Up: have.Admin == hostnet.AdminUp, Half: !marked, Dying: have.Dying(), Table: hostnet.TableMain,
	}
}

// Pods returns the links of pods with their attachments, including those of interrupted
// ADDs and those that wait to be deleted. CNI GC and a restart without a journal need
// them.
func (h *Host) Pods(ctx context.Context) ([]Wired, error) {
	links, err := h.sockets.links(ctx)
	if err != nil {
		return nil, err
	}
	list := podLinks(links)
	if len(list) == 0 {
		return nil, nil
	}
	var s hostnet.State
	if err := readRules(ctx, h.sockets.dump, nil, &s); err != nil {
		return nil, err
	}
	tables := map[netip.Addr]uint32{}
	for _, r := range s.Rules {
		if r.Priority == hostnet.RuleFromPod && r.From.IsSingleIP() {
			tables[r.From.Addr()] = r.Table
		}
	}
	for i := range list {
		for _, a := range list[i].Addresses {
			if t, ok := tables[a]; ok {
				list[i].Table = t
			}
		}
	}
	return list, nil
}

// podLinks selects pods' links; their Wired.Table is not known.
func podLinks(links []netlink.Link) (list []Wired) {
	for _, l := range links {
		if w := wiredOf(l.Attrs()); !w.Half || linkOf(l.Attrs()).Group == hostnet.LinkGroupPod || w.Dying {
			list = append(list, w)
		}
	}
	return list
}

func readAddresses(ctx context.Context, handle *netlink.Handle, names map[int]string, s *hostnet.State) error {
	list, err := again(ctx, func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		p, ok := prefixOf(a.IPNet)
		if name := names[a.LinkIndex]; ok && name != "" {
			s.Addresses = append(s.Addresses, hostnet.Address{Link: name, Prefix: p, NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0})
		}
	}
	return nil
}

func readNeighbours(ctx context.Context, handle *netlink.Handle, names map[int]string, s *hostnet.State) error {
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := again(ctx, func() ([]netlink.Neigh, error) { return handle.NeighList(0, f) })
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, n := range list {
			ip, ok := netip.AddrFromSlice(n.IP)
			if name := names[n.LinkIndex]; ok && name != "" && n.State&unix.NUD_PERMANENT != 0 && len(n.HardwareAddr) == 6 {
				s.Neighbours = append(s.Neighbours, hostnet.Neighbour{Link: name, Address: ip.Unmap(), MAC: vpc.MAC(n.HardwareAddr)})
			}
		}
	}
	return nil
}

func readRoutes(ctx context.Context, handle *netlink.Handle, names map[int]string, s *hostnet.State) error {
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		list, err := again(ctx, func() ([]netlink.Route, error) {
			return handle.RouteListFiltered(f, filter, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			if route, ok := routeOf(r, f, names); ok {
				s.Routes = append(s.Routes, route)
			} else if to, ok := localAddress(r); ok {
				s.Local = append(s.Local, hostnet.Route{
					Table: hostnet.TableLocal, To: netip.PrefixFrom(to, to.BitLen()), Link: names[r.LinkIndex], Protocol: uint8(r.Protocol),
				})
			}
		}
	}
	return nil
}

// routeOf converts a unicast route with one next hop. Others cannot be ours.
func routeOf(r netlink.Route, f int, names map[int]string) (hostnet.Route, bool) {
	if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST || len(r.MultiPath) > 0 {
		return hostnet.Route{}, false
	}
	out := hostnet.Route{
		Table: uint32(r.Table), To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Link: names[r.LinkIndex],
		Metric: uint32(r.Priority), Protocol: uint8(r.Protocol),
	}
	if f == unix.AF_INET6 {
		out.To = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if out.Metric == ipv6Metric {
			out.Metric = 0 // the kernel's default
		}
	} else if r.Scope == netlink.SCOPE_LINK {
		out.Scope = hostnet.ScopeLink
	}
	if r.Dst != nil {
		p, ok := prefixOf(r.Dst)
		if !ok {
			return out, false
		}
		out.To = p
	}
	if via, ok := netip.AddrFromSlice(r.Gw); ok {
		out.Via = via.Unmap()
	}
	return out, true
}

// ipv6Metric is the kernel's metric for IPv6 routes without one (IP6_RT_PRIO_USER).
const ipv6Metric = 1024

func readRules(ctx context.Context, handle *netlink.Handle, _ map[int]string, s *hostnet.State) error {
	for _, f := range []vpc.Family{vpc.IPv4, vpc.IPv6} {
		number := unix.AF_INET
		if f == vpc.IPv6 {
			number = unix.AF_INET6
		}
		list, err := again(ctx, func() ([]netlink.Rule, error) { return handle.RuleList(number) })
		if f == vpc.IPv6 && errors.Is(err, unix.EAFNOSUPPORT) {
			continue // a kernel without IPv6: it has no such rules
		}
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range list {
			if rule, ok := ruleOf(r, f); ok {
				s.Rules = append(s.Rules, rule)
			}
		}
	}
	return nil
}

// ruleOf converts a rule with the selectors of hostnet.Rule only. One with others cannot
// be ours.
func ruleOf(r netlink.Rule, f vpc.Family) (hostnet.Rule, bool) {
	suppresses := r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0
	if suppresses || selectsMore(r) {
		return hostnet.Rule{}, false
	}
	out := hostnet.Rule{Family: f, Priority: max(r.Priority, 0), In: r.IifName, IPProto: uint8(r.IPProto), Table: uint32(r.Table), Protocol: r.Protocol}
	if p, ok := prefixOf(r.Src); ok {
		out.From = p
	}
	if p, ok := prefixOf(r.Dst); ok {
		out.To = p
	}
	if r.Mask != nil && *r.Mask != 0 {
		out.Mark, out.Mask = r.Mark, *r.Mask
	}
	return out, true
}

// selectsMore reports whether a rule has selectors that hostnet.Rule has not.
func selectsMore(r netlink.Rule) bool {
	return r.OifName != "" || r.Invert || r.Tos != 0 || r.Goto > 0 || r.Sport != nil || r.Dport != nil || r.UIDRange != nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	ip = ip.Unmap()
	if bits == 128 && ip.Is4() {
		ones -= 96
	}
	return netip.PrefixFrom(ip, ones), true
}

const sysctlRoot = "/proc/sys"

// readSysctls reads settings of the calling thread's namespace. Those that the kernel does
// not have are omitted.
func readSysctls(names []string) ([]hostnet.Sysctl, error) {
	var list []hostnet.Sysctl
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(sysctlRoot, filepath.Clean("/"+name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read sysctl %s: %w", name, err)
		}
		list = append(list, hostnet.Sysctl{Name: name, Value: strings.TrimSpace(string(b))})
	}
	return list, nil
}
