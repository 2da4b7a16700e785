//go:build netns

package link

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// In the agent's container /proc/sys is read-only: settings of a link are set by netlink, also
// while ip_forward is off.
func TestASettingOfALinkIsSetByNetlink(t *testing.T) {
	h, node := open(t)
	ip(t, node, "link add eth0 type veth peer name eth0p")
	node.Do(t, func() {
		if err := writeSysctl(hostnet.Sysctl{Name: hostnet.IPForward, Value: "0"}); err != nil {
			t.Fatal(err)
		}
	})
	for _, s := range []hostnet.Sysctl{
		hostnet.Forwarding("eth0"),
		{Name: "net/ipv4/conf/eth0/rp_filter", Value: "2"},
		{Name: "net/ipv4/conf/eth0/rp_filter", Value: "1"},
	} {
		if err := h.Do(t.Context(), hostnet.Op{Verb: hostnet.Change, Object: s}); err != nil {
			t.Fatal(err)
		}
		have, err := h.Settings(s.Name)
		if err != nil || len(have) != 1 || have[0].Value != s.Value {
			t.Errorf("%v, %v, want %s", have, err, s)
		}
	}
	have, err := h.Settings(hostnet.IPForward, "net/ipv4/conf/eth0p/forwarding", "net/ipv4/conf/eth9/forwarding")
	if err != nil || len(have) != 2 || have[0].Value != "0" || have[1].Value != "0" {
		t.Errorf("%v, %v: want that nothing else was changed", have, err)
	}
	if err := h.Do(t.Context(), hostnet.Op{Verb: hostnet.Change, Object: hostnet.Forwarding("eth9")}); err == nil {
		t.Error("a link that is missing was set")
	}
}
