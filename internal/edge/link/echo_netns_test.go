//go:build netns

package link

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

// The ends have different indexes: the node's namespace has had one more link.
func TestThePodsEndIsFoundWithAndWithoutAnEcho(t *testing.T) {
	h, node := open(t)
	ip(t, node, "link add tl-other type veth peer name tl-other2")
	p := pod("web", "10.0.1.7")
	w := wiring{sockets: h.sockets, e: p, want: hostnet.ForEndpoint(p).Links[0], ns: testns.New(t, "pod").Open(t)}
	echoedHost, echoed := 0, 0
	each, err := h.sockets.request(t.Context(), createVeth(p, int(w.ns.Fd()), func(host, pod int) { echoedHost, echoed = host, pod }))
	if err != nil || each[0] != nil {
		t.Fatal(err, each)
	}
	end, err := w.podEnd()
	if err != nil || end == nil {
		t.Fatalf("%v, %v", end, err)
	}
	host, err := h.sockets.find(p.Link)
	if err != nil || host == nil || host.Index == end.Index {
		t.Fatalf("the ends have the same index: %+v, %v", host, err)
	}
	if echoed != end.Index || echoedHost != host.Index {
		t.Errorf("indexes %d and %d echoed, want %d and %d; kernels before 6.2 do not echo them", echoedHost, echoed, host.Index, end.Index)
	}
	if err := w.locate(); err != nil || w.pod != end.Index || w.index != host.Index { // as on such a kernel
		t.Errorf("indexes %d and %d found, %v; want %d and %d", w.index, w.pod, err, host.Index, end.Index)
	}
	w.index, w.pod = 0, 0
	if kept, err := w.create(t.Context()); !kept || err != nil || w.pod != end.Index || w.index != host.Index {
		t.Errorf("indexes %d and %d of a kept link (%v), %v; want %d and %d", w.index, w.pod, kept, err, host.Index, end.Index)
	}
}

func TestAnEchoWithoutThePeerGivesNoIndex(t *testing.T) {
	for _, made := range [][]byte{nil, make([]byte, 15), make([]byte, 16), append(make([]byte, 16), 3, 0, 5)} {
		if _, got := endsOf(made); got != 0 {
			t.Errorf("%v: index %d", made, got)
		}
	}
}
