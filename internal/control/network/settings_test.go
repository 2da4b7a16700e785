package network

import (
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// primaryFilter is the setting of the primary interface's link.
const primaryFilter = "net/ipv4/conf/eth0/rp_filter"

// settled is a controller that knows its primary interface.
func settled(t *testing.T) *rig {
	t.Helper()
	g := start(t)
	statetest.Update(t, g.State, func(tx *state.Tx) error {
		node := g.State.Node()
		node.PrimaryMAC = statetest.First().ENI.MAC
		return tx.PutNode(node)
	})
	g.mustPass()
	return g
}

// reset changes a setting, as another program does.
func (g *rig) reset(name, value string) {
	key := hostnet.Sysctl{Name: name}.Key()
	g.k.remove(key)
	g.k.put(hostnet.Sysctl{Name: name, Value: value})
}

func (g *rig) setting(name string) string {
	g.t.Helper()
	list, err := g.k.Settings(name)
	if err != nil || len(list) != 1 {
		g.t.Fatalf("%v, %v", list, err)
	}
	return list[0].Value
}

func TestAChangedSettingOfTheNodeIsRepaired(t *testing.T) {
	g := settled(t)
	for name, changed := range map[string]string{primaryFilter: "1", hostnet.IPForward: "0"} {
		good := g.setting(name)
		g.reset(name, changed)
		g.mustPass()
		if got := g.setting(name); got != good {
			t.Errorf("%s is %s after a pass, want %s", name, got, good)
		}
	}
	if left := g.State.Drift(); len(left) > 0 {
		t.Errorf("the drift table has %q", left)
	}
}

// /proc/sys is read-only in the agent's container; the settings of links are set by netlink.
func TestASettingThatCannotBeRepairedIsNamedWithItsCommand(t *testing.T) {
	g := settled(t)
	e := g.pod("web")
	g.k.refuse[hostnet.Sysctl{Name: hostnet.IPForward}.Key()] = true
	links := []string{"eth0", e.Link}
	off := func(links ...string) {
		g.reset(hostnet.IPForward, "0")
		for _, l := range links { // as the kernel does
			g.reset(hostnet.Forwarding(l).Name, "0")
		}
	}
	off(links...)
	if next := g.mustPass(); next.IsZero() {
		t.Error("links that are made from now on do not forward, and no pass follows")
	}
	for _, l := range links {
		if got := g.setting(hostnet.Forwarding(l).Name); got != "1" {
			t.Errorf("%s does not forward", l)
		}
	}
	standing := g.State.Drift()
	if len(standing) != 1 || !strings.Contains(standing[0], "sysctl -w net.ipv4.ip_forward=1") {
		t.Errorf("the drift table has %q, want the command that repairs it", standing)
	}

	second := g.pod("db")
	g.reset(hostnet.Forwarding(second.Link).Name, "0") // it inherits the default
	if _, err := g.pass(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := g.setting(hostnet.Forwarding(second.Link).Name); got != "1" {
		t.Errorf("%s, which was made since, does not forward", second.Link)
	}
	if again := g.State.Drift(); !slices.Equal(again, standing) {
		t.Errorf("the drift table has %q, want %q", again, standing)
	}

	g.reset(hostnet.IPForward, "1")
	g.mustPass()
	if left := g.State.Drift(); len(left) > 0 {
		t.Errorf("the drift table has %q after an operator has set it", left)
	}
}
