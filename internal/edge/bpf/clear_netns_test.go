//go:build netns

package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An agent that must not enforce, or that leaves the node, opens nothing.
func TestWhatADatapathLeavesIsFoundAndRemovedWithoutIt(t *testing.T) {
	w, ns, o := attachable(t)
	a, b, other := veth(t, ns, "a"), veth(t, ns, "b"), veth(t, ns, "c")
	must(t, w.Attach(a))
	must(t, w.AttachGuard(b))
	foreign := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: other, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 7, Protocol: unix.ETH_P_ALL},
		Name:        "foreign", DirectAction: true, Fd: w.programs[fromPod].FD(),
	}
	must(t, w.links.QdiscAdd(clsact(other)))
	must(t, w.links.FilterAdd(foreign))

	found, err := FindLeftover(o)
	must(t, err)
	slices.Sort(found.Links)
	if !found.Pins || !slices.Equal(found.Links, []int{a, b}) {
		t.Fatalf("found %+v, want pins and the links %d and %d", found, a, b)
	}
	for _, first := range []bool{true, false} {
		removed, err := Clear(o)
		must(t, err)
		if removed.Any() != first {
			t.Errorf("first time %v: removed %s", first, removed)
		}
	}
	w.attached(a, Attachment{})
	w.attached(b, Attachment{})
	if _, err := os.Stat(filepath.Join(o.BPFFS, o.Dir)); !os.IsNotExist(err) {
		t.Errorf("the pins are there still: %v", err)
	}
	list, err := w.links.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: other}}, netlink.HANDLE_MIN_INGRESS)
	if err != nil || len(list) != 1 {
		t.Errorf("another program's filter: %v, %v", list, err)
	}
}

// Pins can be lost with a bpffs, while the filters go on dropping what no chain judges.
func TestFiltersWithoutPinsAreFound(t *testing.T) {
	w, ns, o := attachable(t)
	a := veth(t, ns, "a")
	if found, err := FindLeftover(o); err != nil || !found.Pins || len(found.Links) > 0 {
		t.Fatalf("before anything is attached: %+v, %v", found, err)
	}
	must(t, w.Attach(a))
	must(t, w.Remove())
	if found, err := FindLeftover(o); err != nil || found.Pins || !slices.Equal(found.Links, []int{a}) {
		t.Fatalf("found %+v, %v", found, err)
	}
	removed, err := Clear(o)
	must(t, err)
	if !slices.Equal(removed.Links, []int{a}) {
		t.Errorf("removed %s", removed)
	}
	w.attached(a, Attachment{})
}
