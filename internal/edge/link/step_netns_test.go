//go:build netns

package link

import (
	"errors"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

// Between the observation and the operation, the pod's next sandbox can get a link of the
// same name.
func TestAnOperationOnALinkDoesNotChangeItsSuccessor(t *testing.T) {
	h, _ := open(t)
	ctx := t.Context()
	first := pod("web", "10.0.1.7")
	second := sandbox("web", "10.0.1.8", endpoint.Key{ContainerID: "the next sandbox", IfName: "eth0"})
	wire(t, h, testns.New(t, "first").Open(t), first)
	have, err := h.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var old hostnet.Link
	for _, l := range have.Links {
		if l.Name == first.Link {
			old = l
		}
	}
	if _, err := h.Unwire(ctx, first); err != nil {
		t.Fatal(err)
	}
	ns := testns.New(t, "second").Open(t)
	wire(t, h, ns, second)
	for _, op := range []hostnet.Op{
		{Verb: hostnet.Delete, Object: old, Why: "belongs to no pod"},
		{Verb: hostnet.Change, Object: hostnet.ForEndpoint(first).Links[0], Why: "is down"},
	} {
		if err := h.Do(ctx, op); err != nil && !errors.Is(err, ErrNoLink) {
			t.Error(err)
		}
		correct(t, h, ns, second)
	}
}

// The runtime deletes a pod's namespace, with its link, while a comparison repairs its
// route.
func TestAStepOnALinkThatIsGoneSaysSo(t *testing.T) {
	h, node := open(t)
	p := pod("web", "10.0.1.7")
	wire(t, h, testns.New(t, "pod").Open(t), p)
	ip(t, node, "route del 10.0.1.7")
	ip(t, node, "link del "+p.Link)
	route := hostnet.ForEndpoint(p).Routes[0]
	if err := h.Do(t.Context(), hostnet.Op{Verb: hostnet.Add, Object: route}); !errors.Is(err, ErrNoLink) {
		t.Errorf("adding the route: %v, want ErrNoLink", err)
	}
	if err := h.Do(t.Context(), hostnet.Op{Verb: hostnet.Delete, Object: route}); err != nil {
		t.Errorf("deleting it: %v, want success: it is gone", err)
	}
}
