//go:build netns

package link

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

// A kernel before 6.2 does not echo the link that it made.
func TestThePodsEndIsFoundWithAndWithoutAnEcho(t *testing.T) {
	h, _ := open(t)
	p := pod("web", "10.0.1.7")
	w := wiring{sockets: h.sockets, e: p, want: hostnet.ForEndpoint(p).Links[0], ns: testns.New(t, "pod").Open(t)}
	if kept, err := w.create(t.Context()); kept || err != nil {
		t.Fatalf("kept %v, %v", kept, err)
	}
	end, err := w.podEnd()
	if err != nil || end == nil {
		t.Fatalf("%v, %v", end, err)
	}
	if w.pod != end.Index {
		t.Errorf("index %d after the creation, want %d", w.pod, end.Index)
	}
	w.pod = 0
	if err := w.locate(); err != nil || w.pod != end.Index {
		t.Errorf("index %d found, %v; want %d", w.pod, err, end.Index)
	}
	w.pod = 0
	if kept, err := w.create(t.Context()); !kept || err != nil || w.pod != end.Index {
		t.Errorf("index %d of a kept link (%v), %v; want %d", w.pod, kept, err, end.Index)
	}
}

func TestAnEchoWithoutThePeerGivesNoIndex(t *testing.T) {
	for _, made := range [][]byte{nil, make([]byte, 15), make([]byte, 16), append(make([]byte, 16), 3, 0, 5)} {
		if got := peerOf(made); got != 0 {
			t.Errorf("%v: index %d", made, got)
		}
	}
}
