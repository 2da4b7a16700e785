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
	used, err := h.Used(t.Context(), nil)
	if got := slices.Collect(maps.Keys(used.Routed)); err != nil || !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.0.7")}) {
		t.Errorf("%v, %v: want 10.0.0.7 alone", got, err)
	}
}

// nm-cloud-setup puts the secondary addresses of every interface on its link.
func TestAddressesThatTheNodeItselfHasAreFound(t *testing.T) {
	h, node := open(t)
	for _, do := range []string{
		"link add eth1 type veth peer name other", "link set other up", "link set eth1 up", "link set eth1 alias trunkline:eni/eni-1",
		"address add 10.0.0.20/24 dev eth1", "address add 10.0.0.21/32 dev eth1",
	} {
		ip(t, node, do)
	}
	local := func(addr string) string {
		t.Helper()
		used, err := h.Used(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if on, routed := used.Routed[netip.MustParseAddr(addr)]; routed {
			t.Errorf("%s counts as routed to %s", addr, on)
		}
		return used.Local[netip.MustParseAddr(addr)]
	}
	for addr, want := range map[string]string{"10.0.0.20": "eth1", "10.0.0.21": "eth1", "10.0.0.22": "", "10.0.0.255": ""} {
		if got := local(addr); got != want {
			t.Errorf("%s is on %q, want %q", addr, got, want)
		}
	}
	ip(t, node, "address del 10.0.0.21/32 dev eth1")
	if got := local("10.0.0.21"); got != "" {
		t.Errorf("a removed address is on %q", got)
	}
}
