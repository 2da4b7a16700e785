package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// PrepareFilters has Wire give pods' links the clsact qdisc, and Do the links that it sets up, to which programs can be attached
// later: while it is added, the kernel takes a link that is up out of service for some
// milliseconds, and packets are lost (dev_deactivate, called by qdisc_graft in
// net/sched/sch_api.c). An empty one costs a packet nothing measurable. It is called before Wire.
func (h *Host) PrepareFilters() { h.clsact = true }

// AddClsact adds the qdisc to a link that may be up. One that exists is success. A kernel without
// it is one too: what attaches programs reports that.
func (h *Host) AddClsact(ctx context.Context, index int) error {
	each, err := h.sockets.request(ctx, addClsact(index))
	if err == nil {
		err = clsactError(each[0])
	}
	if err != nil {
		return fmt.Errorf("link %d: %w", index, err)
	}
	return nil
}

// prepare adds the qdisc to a link before it is set up; one that is gone is no error here.
func prepare(ctx context.Context, h *Host, l hostnet.Link) error {
	index, err := h.sockets.index(l.Name, l.MAC)
	if errors.Is(err, ErrNoLink) {
		return nil
	}
	if err == nil {
		err = h.AddClsact(ctx, index)
	}
	return err
}

func addClsact(index int) message {
	msg := &nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	return message{
		kind: unix.RTM_NEWQDISC, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, what: "add clsact qdisc",
		body: []nl.NetlinkRequestData{msg, text(nl.TCA_KIND, "clsact")},
	}
}

// clsactError leaves out that the qdisc exists, or an ingress qdisc in its place, and that the
// kernel has none.
func clsactError(err error) error {
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
