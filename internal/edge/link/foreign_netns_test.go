//go:build netns

package link

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/trunkline/trunkline/test/testns"
)

func TestPodsThatAnotherCNIWiredAreFound(t *testing.T) {
	h, node := open(t)
	ours := testns.New(t, "pod")
	wire(t, h, ours.Open(t), pod("ours", "10.0.0.9"))
	for _, do := range []string{
		"link add eni1 type veth peer name other", "link set other up", "link set eni1 up", "route add 10.0.0.7/32 dev eni1",
		"route add 10.0.1.0/24 dev eni1", "route add 10.0.0.8/32 via 10.0.1.1 dev eni1",
	} {
		ip(t, node, do)
	}
	found, err := h.Foreign(t.Context())
	if got := slices.Collect(maps.Keys(found)); err != nil || !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.0.7")}) {
		t.Errorf("%v, %v: want 10.0.0.7 alone", got, err)
	}
}
