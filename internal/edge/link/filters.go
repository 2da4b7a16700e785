package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clsact is the qdisc by which programs such as AWS's network policy agent attach filters to
// links. They stay when the program ends. Source: aws/aws-ebpf-sdk-go, pkg/tc.
const clsact = "clsact"

// Filtered returns the addresses that are routed to links with filters at clsact and are not
// ours, with the link and its filters. Pods that another CNI wired are among them; Trunkline
// attaches no filters.
func (h *Host) Filtered(ctx context.Context) (map[netip.Addr]string, error) {
	used, err := h.Used(ctx, nil) // of interfaces' routes, none leads to a pod's address
	if err != nil || len(used.Routed) == 0 {
		return nil, err
	}
	qdiscs, err := again(ctx, func() ([]netlink.Qdisc, error) { return h.sockets.dump.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	links, err := h.sockets.links(ctx)
	if err != nil {
		return nil, err
	}
	filters := map[string][]string{} // by the link's name
	for _, l := range links {
		mayHave := slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == clsact && q.Attrs().LinkIndex == l.Attrs().Index })
		if !mayHave {
			continue
		}
		if filters[l.Attrs().Name], err = h.filtersOf(ctx, l); err != nil {
			return nil, err
		}
	}
	out := map[netip.Addr]string{}
	for addr, on := range used.Routed {
		if names := filters[on]; len(names) > 0 {
			out[addr] = on + ": " + strings.Join(names, ", ")
		}
	}
	return out, nil
}

// filtersOf names the filters at clsact of a link: eBPF programs by their names, others by
// their kinds.
func (h *Host) filtersOf(ctx context.Context, l netlink.Link) (names []string, err error) {
	for _, hook := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := again(ctx, func() ([]netlink.Filter, error) { return h.sockets.dump.FilterList(l, hook) })
		if err != nil {
			if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) { // the link, or its qdisc, was removed meanwhile
				return nil, nil
			}
			return nil, fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
		}
		for _, f := range list {
			name := f.Type()
			if program, ok := f.(*netlink.BpfFilter); ok && program.Name != "" {
				name = program.Name
			}
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
