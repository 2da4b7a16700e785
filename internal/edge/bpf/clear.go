package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Leftover is what a datapath leaves in the kernel when its process ends.
type Leftover struct {
	Links []int // with filters of ours
	Pins  bool
}

// Any reports whether anything is left.
func (l Leftover) Any() bool { return l.Pins || len(l.Links) > 0 }

func (l Leftover) String() string {
	pins := "no pins"
	if l.Pins {
		pins = "the pins of programs and maps"
	}
	return fmt.Sprintf("programs at %d links, %s", len(l.Links), pins)
}

// FindLeftover finds what is left, of any version. It loads nothing, and needs no feature of the
// kernel. Only BPFFS, Dir and Netns of the options are read.
func FindLeftover(o Options) (Leftover, error) {
	links, err := dial(o.Netns)
	if err != nil {
		return Leftover{}, fmt.Errorf("find policy programs: %w", err)
	}
	defer links.Close()
	return findLeftover(o, links)
}

func findLeftover(o Options, links *netlink.Handle) (l Leftover, err error) {
	entries, err := os.ReadDir(filepath.Join(o.BPFFS, o.Dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l, fmt.Errorf("list pins of policy programs: %w", err)
	}
	l.Pins = len(entries) > 0
	qdiscs, err := dump(func() ([]netlink.Qdisc, error) { return links.QdiscList(nil) })
	if err != nil {
		return l, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		ours, err := filtered(links, q.Attrs().LinkIndex)
		if err != nil {
			return l, err
		}
		if ours {
			l.Links = append(l.Links, q.Attrs().LinkIndex)
		}
	}
	return l, nil
}

// InForce returns the pin of the program forward with the maps that are in force, of any version; empty without one.
// It loads nothing, so that a rule of nftables can go on calling it where Open fails. Only BPFFS and Dir of the
// options are read.
func InForce(o Options) (string, error) {
	parent := filepath.Join(o.BPFFS, o.Dir)
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("list pins of policy programs: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		if uncalled(dir) {
			continue
		}
		if pinned, err := programOf(dir); pinned != "" || err != nil {
			return pinned, err
		}
	}
	return "", nil
}

// filtered reports whether a link has a filter of ours, of any version.
func filtered(links *netlink.Handle, link int) (bool, error) {
	at := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: link}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := dump(func() ([]netlink.Filter, error) { return links.FilterList(at, parent) })
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) { // removed meanwhile
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list filters of link %d: %w", link, err)
		}
		for _, f := range list {
			b, ok := f.(*netlink.BpfFilter)
			if ok && b.Handle == hostnet.FilterHandle && b.Priority == hostnet.FilterPriority && strings.HasPrefix(b.Name, filterPrefix) {
				return true, nil
			}
		}
	}
	return false, nil
}

// Clear removes what is left, and returns what that was; it may be repeated. The filters go
// first: those of pods' links drop what the chain of nftables has not judged. The caller removes
// that chain.
func Clear(o Options) (Leftover, error) {
	links, err := dial(o.Netns)
	if err != nil {
		return Leftover{}, fmt.Errorf("remove policy programs: %w", err)
	}
	defer links.Close()
	found, err := findLeftover(o, links)
	if err != nil {
		return found, err
	}
	d := &Datapath{links: links}
	var errs []error
	for _, link := range found.Links {
		errs = append(errs, d.Detach(link))
	}
	if err := errors.Join(errs...); err != nil || !found.Pins {
		return found, err
	}
	if err := os.RemoveAll(filepath.Join(o.BPFFS, o.Dir)); err != nil {
		return found, fmt.Errorf("remove pins: %w", err)
	}
	return found, nil
}

// dial opens a socket for the links of a namespace; nil is that of the calling thread.
func dial(ns *os.File) (links *netlink.Handle, err error) {
	open := func() (err error) {
		links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}
	if ns == nil {
		err = open()
		return links, err
	}
	err = netns.Do(ns, open)
	return links, err
}
