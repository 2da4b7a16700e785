//go:build netns

package bpf

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

// veth makes a link in a namespace.
func veth(t testing.TB, ns *testns.NS, name string) (index int) {
	t.Helper()
	ns.Do(t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}))
		index = up(t, name)
	})
	return index
}

func attachable(t testing.TB) (*world, *testns.NS, Options) {
	t.Helper()
	ns := testns.New(t, "node")
	o := options(bpffs(t))
	o.Netns = ns.Open(t)
	d, _, err := Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return worldOf(d, t), ns, o
}

func (w *world) attached(link int, want Attachment) {
	w.t.Helper()
	all, err := w.Attached()
	must(w.t, err)
	if all[link] != want {
		w.t.Errorf("at link %d: %+v, want %+v", link, all[link], want)
	}
}

func TestProgramsAreAttachedOnceAndDetached(t *testing.T) {
	w, ns, _ := attachable(t)
	a, b := veth(t, ns, "a"), veth(t, ns, "b")
	w.attached(a, Attachment{})
	must(t, w.Detach(a)) // without clsact
	for range 2 {
		must(t, w.Attach(a))
		must(t, w.AttachGuard(b))
		w.attached(a, Attachment{Pod: true})
		w.attached(b, Attachment{Guard: true})
		if n := len(filters(t, w, a)); n != 2 {
			t.Errorf("%d filters, want 2", n)
		}
	}
	for range 2 {
		must(t, w.Detach(a))
		w.attached(a, Attachment{})
		w.attached(b, Attachment{Guard: true})
	}
	const absent = 9999
	must(t, w.Detach(absent))
	if err := w.Attach(absent); !errors.Is(err, ErrNoLink) {
		t.Errorf("attach to a link that does not exist: %v", err)
	}
}

// filters lists all filters of a link.
func filters(t testing.TB, w *world, link int) (all []netlink.Filter) {
	t.Helper()
	at := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: link}}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		list, err := w.links.FilterList(at, parent)
		must(t, err)
		all = append(all, list...)
	}
	return all
}

func TestFiltersOfOthersStay(t *testing.T) {
	w, ns, _ := attachable(t)
	a := veth(t, ns, "a")
	must(t, w.links.QdiscAdd(clsact(a)))
	foreign := func(priority uint16, handle uint32) *netlink.BpfFilter {
		return &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: a, Parent: netlink.HANDLE_MIN_EGRESS, Priority: priority, Handle: handle, Protocol: unix.ETH_P_ALL},
			Fd:          w.programs[guard].FD(), Name: "other", DirectAction: true,
		}
	}
	must(t, w.links.FilterAdd(foreign(1, 1))) // of our priority
	must(t, w.links.FilterAdd(foreign(2, 1)))
	w.attached(a, Attachment{})
	must(t, w.Attach(a))
	w.attached(a, Attachment{Pod: true})
	if n := len(filters(t, w, a)); n != 4 {
		t.Errorf("%d filters, want 4", n)
	}
	must(t, w.Detach(a))
	if n := len(filters(t, w, a)); n != 2 {
		t.Errorf("%d filters are left, want 2", n)
	}
}

func TestEarlierProgramsAreStaleUntilTheyAreReplaced(t *testing.T) {
	w, ns, o := attachable(t)
	a, b := veth(t, ns, "a"), veth(t, ns, "b")
	must(t, w.Attach(a))
	must(t, w.Attach(b))
	must(t, w.links.FilterDel(filter(b, podHooks()[0])))
	w.attached(b, Attachment{Stale: true})
	must(t, w.Remove())
	d, _, err := Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	next := worldOf(d, t)
	next.attached(a, Attachment{Stale: true})
	next.attached(b, Attachment{Stale: true})
	must(t, next.Attach(a))
	must(t, next.Attach(b))
	next.attached(a, Attachment{Pod: true})
	next.attached(b, Attachment{Pod: true})
	if n := len(filters(t, next, a)); n != 2 {
		t.Errorf("%d filters, want 2", n)
	}
}

// Programs are replaced under traffic: a pod that may not communicate sends all the time, and one
// that may loses nothing.
func TestReplacingProgramsLeavesNoGap(t *testing.T) {
	n := newNode(t)
	closed, open, server := n.pod(1, SetPending), n.pod(2, SetOpen), n.pod(3, SetOpen)
	server.serve(t, 80)
	c, err := open.dial(t, "udp", addrPort(server.v4, 80), arrival)
	must(t, err)
	received, stop := counter(t, n, 9), make(chan struct{})
	sent := make(chan int, 1)
	flood, err := closed.dial(t, "udp", addrPort(addr("10.0.1.1"), 9), arrival)
	must(t, err)
	go func() {
		count := 0
		for {
			select {
			case <-stop:
				sent <- count
				return
			default:
				_, _ = flood.Write([]byte("?"))
				count++
			}
		}
	}()
	for range 200 {
		must(t, n.Attach(closed.link))
		must(t, n.Attach(open.link))
		must(t, n.Attach(server.link))
		if !exchange(t, c, 10, arrival) {
			t.Fatal("a packet of the open pod is lost")
		}
	}
	close(stop)
	if count := <-sent; count < 200 {
		t.Errorf("%d packets were sent: the test proves nothing", count)
	}
	if got := received(); got != 0 {
		t.Errorf("%d packets of the closed pod arrived", got)
	}
	n.State.SetInForce(1, SetOpen)
	_, err = flood.Write([]byte("?"))
	must(t, err)
	if got := received(); got != 1 {
		t.Errorf("%d packets arrived after it was opened, want 1: the test proves nothing", got)
	}
}
