package bpf

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// filterPrefix begins the names of our filters, as tc(8) shows them.
const filterPrefix = "trunkline/"

// hook is where a program runs at a link.
type hook struct {
	parent  uint32
	program string
}

// podHooks are those of a pod's host end, guardHooks those of the node's other links.
func podHooks() []hook {
	return []hook{{netlink.HANDLE_MIN_INGRESS, fromPod}, {netlink.HANDLE_MIN_EGRESS, toPod}}
}

func guardHooks() []hook { return []hook{{netlink.HANDLE_MIN_EGRESS, guard}} }

// Attach attaches from_pod and to_pod to the host end of a pod's link, both directions, and
// replaces those of earlier programs without a gap. Filters of other programs stay. It returns
// ErrNoLink if there is no such link.
func (d *Datapath) Attach(link int) error { return d.attach(link, podHooks()) }

// AttachGuard attaches guard to another link of the node.
func (d *Datapath) AttachGuard(link int) error { return d.attach(link, guardHooks()) }

// ErrNoLink is returned when a link does not exist.
var ErrNoLink = errors.New("no such link")

func (d *Datapath) attach(link int, hooks []hook) error {
	err := d.links.QdiscAdd(clsact(link))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to link %d: %w", link, linkError(err))
	}
	for _, h := range hooks {
		f := filter(link, h)
		f.Fd = d.programs[h.program].FD()
		if err := d.links.FilterReplace(f); err != nil {
			return fmt.Errorf("attach %s to link %d: %w", h.program, link, linkError(err))
		}
	}
	return nil
}

func linkError(err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return ErrNoLink
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w the clsact qdisc or BPF classifiers (modules sch_ingress, cls_bpf), or the link has an ingress qdisc instead of clsact: %w", ErrUnsupported, err)
	}
	return err
}

func clsact(link int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

func filter(link int, h hook) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link, Parent: h.parent, Handle: hostnet.FilterHandle, Priority: hostnet.FilterPriority, Protocol: unix.ETH_P_ALL,
		},
		Name:         filterPrefix + h.program,
		DirectAction: true,
	}
}

// Detach removes our filters of a link. Detaching what is not attached, or of a link that does not
// exist, is success. The clsact qdisc stays: another program may have found it there and rely on
// it; without filters it costs nothing.
func (d *Datapath) Detach(link int) error {
	for _, h := range append(podHooks(), guardHooks()...) {
		err := d.links.FilterDel(filter(link, h))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) { // EINVAL: no clsact
			return fmt.Errorf("detach %s of link %d: %w", h.program, link, err)
		}
	}
	return nil
}

// Attachment is what of ours is at a link.
type Attachment struct {
	Pod   bool // from_pod and to_pod, both the loaded ones
	Guard bool // guard, the loaded one
	Stale bool // a filter of ours has another program, or one of two is missing
	// Ingress: the link has the qdisc ingress of another program. It takes no programs: the kernel
	// would run those of egress at ingress.
	Ingress bool
}

// ErrIngress is the error of a link with Attachment.Ingress.
var ErrIngress = errors.New("the link has the qdisc ingress of another program, in the place of clsact")

// Attached returns the links that have filters of ours, or take none, by index. Links come and go meanwhile.
func (d *Datapath) Attached() (map[int]Attachment, error) {
	qdiscs, err := dump(func() ([]netlink.Qdisc, error) { return d.links.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	ids := map[string]uint32{}
	for name, p := range d.programs {
		if ids[name], err = programID(p); err != nil {
			return nil, err
		}
	}
	all := map[int]Attachment{}
	for _, q := range qdiscs {
		link := q.Attrs().LinkIndex
		if q.Type() == "ingress" {
			all[link] = Attachment{Ingress: true}
		}
		if q.Type() != "clsact" {
			continue
		}
		loaded, other, err := d.filters(link, ids)
		if err != nil {
			return nil, err
		}
		if len(loaded)+other == 0 {
			continue
		}
		all[link] = Attachment{
			Pod:   loaded[fromPod] && loaded[toPod],
			Guard: loaded[guard],
			Stale: other > 0 || loaded[fromPod] != loaded[toPod],
		}
	}
	return all, nil
}

// filters returns which of the loaded programs are attached to a link as ours, and how many other
// filters there are with our handle.
func (d *Datapath) filters(link int, ids map[string]uint32) (loaded map[string]bool, other int, err error) {
	loaded = map[string]bool{}
	at := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: link}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := dump(func() ([]netlink.Filter, error) { return d.links.FilterList(at, parent) })
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) { // removed meanwhile
			return nil, 0, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list filters of link %d: %w", link, err)
		}
		for _, f := range list {
			b, ok := f.(*netlink.BpfFilter)
			if !ok || b.Handle != hostnet.FilterHandle || b.Priority != hostnet.FilterPriority {
				continue
			}
			found := false
			for _, h := range append(podHooks(), guardHooks()...) {
				if h.parent == parent && uint32(b.Id) == ids[h.program] && b.DirectAction {
					loaded[h.program], found = true, true
				}
			}
			if !found {
				other++
			}
		}
	}
	return loaded, other, nil
}

// dump repeats a dump that a concurrent change interrupted.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	const tries = 20
	for range tries {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, fmt.Errorf("links changed during each of %d dumps: %w", tries, netlink.ErrDumpInterrupted)
}

// ProgramIDs returns the IDs of the loaded programs by name, for status.
func (d *Datapath) ProgramIDs() (map[string]uint32, error) {
	ids := map[string]uint32{}
	for name, p := range d.programs {
		id, err := programID(p)
		if err != nil {
			return nil, err
		}
		ids[name] = id
	}
	return ids, nil
}
