//go:build netns

package link

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

// reaper deletes discarded links until the test ends and records the reports.
type reaper struct {
	mu   sync.Mutex
	gone []Wired
}

func reap(t testing.TB, h *Host) *reaper {
	t.Helper()
	r := &reaper{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = h.DeleteDiscarded(ctx, func() int { return 8 }, func(w Wired) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.gone = append(r.gone, w)
			})
			select {
			case <-ctx.Done():
			case <-h.Discarded():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *reaper) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.gone)
}

func many(t testing.TB, h *Host, n int) []endpoint.Endpoint {
	t.Helper()
	podNS := testns.New(t, "pods").Open(t) // one namespace for all
	var list []endpoint.Endpoint
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		p := sandbox(name, netip.AddrFrom4([4]byte{10, 0, byte(2 + i>>8), byte(i)}).String(), endpoint.Key{ContainerID: "c-" + name, IfName: fmt.Sprintf("eth%d", i)})
		list = append(list, p)
		if i == 0 {
			wire(t, h, podNS, p)
			continue
		}
		index := 0
		// Only the first can have the namespace's default route.
		each, err := h.sockets.request(context.Background(), createVeth(p, int(podNS.Fd()), func(host, _ int) { index = host }))
		if err == nil {
			err = firstError(each)
		}
		w := wiring{sockets: h.sockets, e: p, want: hostnet.ForEndpoint(p).Links[0]}
		if err == nil {
			err = w.mark(context.Background())
		}
		if err == nil {
			err = w.rules(context.Background(), hostnet.ForEndpoint(p).Rules)
		}
		if err == nil {
			err = h.Up(context.Background(), p, index)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

func TestUnwireDisconnectsAPodAndItsLinkIsReportedOnceDeleted(t *testing.T) {
	h, node := open(t)
	pods := many(t, h, 70)
	for _, p := range pods[:66] {
		if queued, err := h.Unwire(context.Background(), p); !queued || err != nil {
			t.Fatalf("Unwire %s: queued %v, %v", p.Pod.Name, queued, err)
		}
	}
	if left := ip(t, node, "rule show prio 512"); strings.Count(left, "\n") != 4 {
		t.Errorf("rules left:\n%s", left)
	}
	if left := ip(t, node, "route"); strings.Count(left, "\n") != 4 {
		t.Errorf("routes left:\n%s", left)
	}
	wired, err := h.Pods(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dying := 0
	for _, w := range wired {
		if w.Dying {
			dying++
		}
	}
	if dying != 66 || len(wired) != 70 {
		t.Errorf("%d of %d links are dying, want 66 of 70", dying, len(wired))
	}
	r := reap(t, h)
	eventually(t, "66 links gone", func() bool { return r.count() == 66 })
	if left := ip(t, node, "-o link show type veth"); strings.Count(left, "\n") != 4 {
		t.Errorf("links left:\n%s", left)
	}
	seen := map[string]bool{}
	for _, w := range r.gone {
		if seen[w.ContainerID] || len(w.Addresses) != 1 {
			t.Errorf("reported twice or without its address: %+v", w)
		}
		seen[w.ContainerID] = true
	}
}

func TestALinkDiscardedDuringADeletionIsDeletedToo(t *testing.T) {
	h, node := open(t)
	pods := many(t, h, 40)
	r := reap(t, h)
	for _, p := range pods {
		if _, err := h.Unwire(context.Background(), p); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all links gone", func() bool { return r.count() == len(pods) })
	if left := ip(t, node, "-o link show type veth"); left != "" {
		t.Errorf("links left:\n%s", left)
	}
}

func TestOnlyOurLinksAreDeleted(t *testing.T) {
	h, node := open(t)
	pods := many(t, h, 2)
	ip(t, node, "link add theirs type veth peer name theirs2")
	ip(t, node, "link set theirs group 7")
	r := reap(t, h)
	for _, p := range pods {
		_, _ = h.Unwire(context.Background(), p)
	}
	eventually(t, "links gone", func() bool { return r.count() == 2 })
	ip(t, node, "link show theirs")
}

func TestTheRuntimeMayDeleteTheNamespaceFirst(t *testing.T) {
	h, _ := open(t)
	podNS := testns.New(t, "pod")
	p := pod("web", "10.0.1.7")
	wire(t, h, podNS.Open(t), p)
	if _, err := h.Unwire(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	ip(t, podNS, "link delete eth0")
	if queued, err := h.Unwire(context.Background(), p); queued || err != nil {
		t.Errorf("Unwire of a deleted link: queued %v, %v", queued, err)
	}
	r := reap(t, h)
	eventually(t, "the link reported gone", func() bool { return r.count() == 1 })
	if got := r.gone[0]; got.ContainerID != "c-web" || got.Addresses[0] != p.Addresses.IPv4 {
		t.Errorf("reported %+v", got)
	}
}

func TestANewPodOfTheSameNameDoesNotWaitForTheReaper(t *testing.T) {
	h, _ := open(t)
	old, fresh := testns.New(t, "old").Open(t), testns.New(t, "new").Open(t)
	p := pod("db-0", "10.0.1.7")
	wire(t, h, old, p)
	if _, err := h.Unwire(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	next := sandbox("db-0", "10.0.1.9", endpoint.Key{ContainerID: "c-second", IfName: "eth0"})
	wire(t, h, fresh, next)
	correct(t, h, fresh, next)
	r := reap(t, h)
	eventually(t, "the old link reported gone", func() bool { return r.count() == 1 })
	if got := r.gone[0]; got.ContainerID != "c-db-0" {
		t.Errorf("reported %+v", got)
	}
}

func TestPodsReturnsTheLinksOfTheKernel(t *testing.T) {
	h, _ := open(t)
	podNS := testns.New(t, "pod").Open(t)
	p := pod("web", "10.0.1.7")
	p.Attachment.Table = 3
	wire(t, h, podNS, p)
	pods, err := h.Pods(context.Background())
	if err != nil || len(pods) != 1 {
		t.Fatalf("Pods: %+v, %v", pods, err)
	}
	w := pods[0]
	if w.ContainerID != "c-web" || w.IfName != "eth0" || w.Addresses[0] != p.Addresses.IPv4 || w.Link != p.Link || w.Table != 3 || !w.Up || w.Half || w.Dying {
		t.Errorf("Pods returns %+v", w)
	}
}
