//go:build netns

package fault

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trunkline/trunkline/api/introspection"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
)

// damage is a change of a node without its agent, and its repair.
type damage struct {
	name       string
	do, repair func() error
	want       string // in the error of the checks
}

// The deliberate breaks of this suite: every check for "no" or "none" must be able to
// fail.
func TestChecksDetectEveryDamage(t *testing.T) {
	v := newVictim(t, "")
	pair := flowPods(v)
	v.addOnNewENI()
	var initial observation
	v.until("the node without pending work", func() (err error) {
		initial, err = v.observe()
		return errors.Join(err, initial.problems(), initial.pendingWork())
	})
	if err := v.unexplainedDifferences(""); err != nil {
		t.Fatal(err)
	}
	// A stopped agent cannot repair the damage.
	if err := v.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ledger := initial.ledger
	again := func() error {
		s, err := v.observeOutside()
		if err != nil {
			return err
		}
		s.ledger = ledger
		return s.problems()
	}
	for _, h := range slices.Concat(v.damageAtEC2(pair.to), v.damageOnNode(pair.from, pair.to), v.damageInKernel(), damageInLedger(&ledger, pair.to)) {
		t.Run(h.name, func(t *testing.T) {
			if err := h.do(); err != nil {
				t.Fatal(err)
			}
			if got := again(); got == nil || !strings.Contains(got.Error(), h.want) {
				t.Errorf("the checks returned %v, want %q", got, h.want)
			}
			if err := h.repair(); err != nil {
				t.Fatal(err)
			}
			if got := again(); got != nil {
				t.Errorf("after the repair the checks returned %v", got)
			}
		})
	}
}

// addOnNewENI adds pods until one is on a secondary interface.
func (v *victim) addOnNewENI() {
	v.t.Helper()
	for n := 0; ; n++ {
		p := v.NewPod(fmt.Sprint("more", n))
		if err := v.add(p); err != nil {
			v.t.Fatal(err)
		}
		if v.State().Owner(p.Addr).Attachment.DeviceIndex > 0 {
			return
		}
	}
}

func (v *victim) damageAtEC2(p *node.Pod) []damage {
	c := v.Cloud()
	eni := v.State().Owner(p.Addr).ID
	var detached *cloud.Interface
	return []damage{
		{
			"an address is lost",
			func() error { return c.Interface(eni).UnassignIPv4([]netip.Addr{p.Addr}, nil) },
			func() error {
				_, err := c.Interface(eni).AssignIPv4(cloud.Want{Addresses: []netip.Addr{p.Addr}})
				return err
			},
			p.Addr.String() + " of pod far is lost",
		},
		{
			"an interface leaks",
			func() (err error) {
				detached, err = c.CreateInterface(cloud.NewInterface{Subnet: v.State().Interfaces[eni].Subnet})
				return err
			},
			func() error { return c.Interface(detached.ID).Delete() },
			"it leaked",
		},
	}
}

func (v *victim) damageOnNode(from, to *node.Pod) []damage {
	inPod := func(f func(netlink.Link, *netlink.Addr) error) func() error {
		return func() error {
			return to.Run(func() error {
				eth0, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return f(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: from.Addr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
			})
		}
	}
	link := endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", "far")
	leftover := filepath.Join(v.Dir, "state", "spool", "unknown-eth0-0.del")
	return []damage{
		{"an address is held twice", inPod(netlink.AddrAdd), inPod(netlink.AddrDel), from.Addr.String() + " is held twice"},
		{
			"a route is missing", v.onNode("ip", "route", "del", to.Addr.String()),
			v.onNode("ip", "route", "add", to.Addr.String(), "dev", link, "scope", "link", "proto", fmt.Sprint(hostnet.RouteProtocol)),
			podRoutes + ": the kernel has",
		},
		{
			"a DEL is not executed",
			func() error {
				return errors.Join(os.MkdirAll(filepath.Dir(leftover), 0o700), os.WriteFile(leftover, []byte("{}"), 0o600))
			},
			func() error { return os.Remove(leftover) },
			"was not executed",
		},
	}
}

// onNode runs a program in the node's namespace.
func (v *victim) onNode(args ...string) func() error {
	return func() error {
		return v.NS.Run(func() error {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", args, err, out)
			}
			return nil
		})
	}
}

// damageInKernel is one surplus or missing object of each kind in the kernel.
func (v *victim) damageInKernel() []damage {
	const unassigned = "10.0.31.250"
	rule := func(act string, priority int, selector string) func() error {
		return v.onNode("ip", "rule", act, "priority", fmt.Sprint(priority), selector, unassigned, "lookup", "main")
	}
	element := func(act, family, set, value string) func() error {
		return v.onNode("nft", act, "element", family, hostnet.Table, set, "{ "+value+" }")
	}
	source, arp := `"enideadbeef000" . 02:00:00:00:00:01 . `+unassigned, `"enideadbeef000" . 02:00:00:00:00:01 . `+unassigned
	table := fmt.Sprint(hostnet.TableENIOffset + 2)
	return []damage{
		{
			"a rule to a pod is left behind", rule("add", hostnet.RuleToPod, "to"), rule("del", hostnet.RuleToPod, "to"),
			rulesTo + ": the kernel has",
		},
		{
			"a rule from a pod is left behind", rule("add", hostnet.RuleFromPod, "from"), rule("del", hostnet.RuleFromPod, "from"),
			rulesFrom + ": the kernel has",
		},
		{
			"a table of an interface is left behind", v.onNode("ip", "route", "add", "unreachable", unassigned, "table", table),
			v.onNode("ip", "route", "del", "unreachable", unassigned, "table", table), eniTables + ": the kernel has",
		},
		{
			"a link is left behind", v.onNode("ip", "link", "add", "enideadbeef000", "type", "veth", "peer", "name", "tl-peer"),
			v.onNode("ip", "link", "del", "enideadbeef000"), podLinks + ": the kernel has",
		},
		{
			"SNAT has an unassigned address", element("add", "inet", "pods4", unassigned), element("delete", "inet", "pods4", unassigned),
			podsOfSNAT + ": the kernel has",
		},
		{
			"an unassigned source address is allowed", element("add", "inet", "sources4", source), element("delete", "inet", "sources4", source),
			sources + ": the kernel has",
		},
		{
			"an unassigned ARP source address is allowed", element("add", "arp", "sources", arp), element("delete", "arp", "sources", arp),
			arpSources + ": the kernel has",
		},
	}
}

// damageInLedger is a ledger that disagrees with EC2 and the pods.
func damageInLedger(ledger *introspection.Ledger, p *node.Pod) []damage {
	address := func() *introspection.Address {
		for _, e := range ledger.ENIs {
			for i, a := range e.Addresses {
				if a.Address == p.Addr {
					return &e.Addresses[i]
				}
			}
		}
		return &introspection.Address{}
	}
	set := func(at func() *string, to string) func() error {
		return func() error { *at() = to; return nil }
	}
	container := func() *string { return &address().Container }
	state := func() *string { return &address().State }
	phase := func() *string { return &ledger.ENIs[0].State }
	whole := ledger.ENIs[0].Addresses
	return []damage{
		{
			"an address is in EC2 and not in the ledger",
			func() error { ledger.ENIs[0].Addresses = whole[1:]; return nil },
			func() error { ledger.ENIs[0].Addresses = whole; return nil },
			"in the ledger: true",
		},
		{"the ledger has another pod for an address", set(container, "sandbox-other"), set(container, p.RT.ContainerID), "by the pods"},
		{"the ledger has a pod's address as free", set(state, "free"), set(state, "assigned"), "is free in the ledger and assigned to sandbox-far"},
		{"an interface stays in a pending state", set(phase, "detaching"), set(phase, "ready"), "is detaching in the ledger"},
	}
}

// An agent that ends without a SIGKILL, for example by a panic, is detected.
func TestAgentThatEndsByItselfIsDetected(t *testing.T) {
	v := newVictim(t, "")
	if err := v.signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-v.done
	if err := v.wait(func() error { return nil }); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("the supervisor returned %v", err)
	}
}

// An agent that finds an address at EC2 that is not in its ledger is detected.
func TestDifferenceBetweenLedgerAndEC2IsDetected(t *testing.T) {
	v := newVictim(t, "")
	eni := v.State().Primary(v.State().InstanceNamed("node1").ID).ID
	if _, err := v.Cloud().Interface(eni).AssignIPv4(cloud.Want{Count: 1}); err != nil {
		t.Fatal(err)
	}
	v.replace() // the next agent checks EC2 at its start
	v.until("the difference in the log", func() error {
		if v.unexplainedDifferences("") == nil {
			return errors.New("no difference is reported")
		}
		return nil
	})
}

// Points that were not reached and classes of steps without a kill are reported.
func TestMissedPointsAreReported(t *testing.T) {
	points := append(callPoints("CreateNetworkInterface", 1), point{Kind: onDisk, N: 1})
	at := func(p point, steps ...string) outcome { return outcome{point: p, hit: true, steps: steps} }
	visited := []outcome{
		at(points[0]), at(points[1]), at(points[2], "disk 1 write state/journal/log endpoint/1", killed),
	}
	if err := missed(points, visited, len(points)); err != nil {
		t.Errorf("all were visited: %v", err)
	}
	if err := missed(points, visited[1:], 2); err == nil || !strings.Contains(err.Error(), "CreateNetworkInterface was not visited at stop-before") {
		t.Errorf("a call was left out: %v", err)
	}
	if err := missed(points, visited[:2], len(points)); err == nil || !strings.Contains(err.Error(), "2 of 3 points") {
		t.Errorf("a step was left out: %v", err)
	}
	if err := missed(nil, nil, 0); err == nil {
		t.Error("an empty list of points was accepted")
	}
	if left := unkilled(visited); len(left) > 0 {
		t.Errorf("no kill at %q, want a kill at every class of steps", left)
	}
	visited[2].steps = []string{"disk 1 fsync state/journal/log", "disk 2 write state/journal/log endpoint/1", killed}
	if left := unkilled(visited); !slices.Equal(left, []string{"disk fsync state/journal/log"}) {
		t.Errorf("unkilled %q, want the fsync", left)
	}
}

// A node that drops packets for three seconds is detected: by lost numbers of a UDP
// stream, and by the gap in a TCP stream, which loses none.
func TestInterruptedStreamIsDetected(t *testing.T) {
	v := newVictim(t, "")
	pair := flowPods(v)
	other := newControl(t)
	mine, control := startFlows(t, pair.from, pair.to), startFlows(t, other.from, other.to)
	nft := func(commands string) {
		t.Helper()
		if err := v.NS.Run(func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(commands)
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("nft: %w: %s", err, out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	nft("table inet tl-cut { chain forward { type filter hook forward priority 0; policy drop; }; }")
	cut := time.NewTimer(3 * time.Second)
	defer cut.Stop()
	<-cut.C
	nft("delete table inet tl-cut")
	got, beside := stopFlows(mine), stopFlows(control)
	err := flowProblems(got, beside)
	for _, want := range []string{"tcp stream: a gap of", "udp stream: a gap of", "numbers lost"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the check says %v, want %q", err, want)
		}
	}
	if err := flowProblems(beside, beside); err != nil {
		t.Errorf("the control compared with itself: %v", err)
	}
}
