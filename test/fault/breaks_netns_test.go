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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
)

// harm is something done to a node behind its agent's back, and how to mend it.
type harm struct {
	name     string
	do, mend func() error
	want     string // what the checks must say
}

// Every "no" and "none" of this suite can be a "yes": each is broken for real, and
// must be seen.
func TestTheChecksSeeWhatIsBroken(t *testing.T) {
	v := newVictim(t)
	pair := flowPods(v)
	calm, err := v.look()
	if err != nil || calm.problems() != nil {
		t.Fatalf("before anything is broken: %v, %v", err, calm.problems())
	}
	// An agent that is held cannot mend what the next lines do.
	if err := v.running.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	again := func() error {
		s, err := v.lookOutside()
		if err != nil {
			return err
		}
		s.book = calm.book
		return s.problems()
	}
	for _, h := range append(v.harmAtEC2(pair.to), v.harmOnNode(pair.from, pair.to)...) {
		t.Run(h.name, func(t *testing.T) {
			if err := h.do(); err != nil {
				t.Fatal(err)
			}
			if got := again(); got == nil || !strings.Contains(got.Error(), h.want) {
				t.Errorf("the checks say %v, want %q", got, h.want)
			}
			if err := h.mend(); err != nil {
				t.Fatal(err)
			}
			if got := again(); got != nil {
				t.Errorf("mended, the checks say %v", got)
			}
		})
	}
}

func (v *victim) harmAtEC2(p *node.Pod) []harm {
	c := v.Cloud()
	eni := v.State().Owner(p.Addr).ID
	var extra netip.Addr
	var loose *cloud.Interface
	return []harm{
		{
			"an address is lost",
			func() error { return c.UnassignIPv4(eni, []netip.Addr{p.Addr}, nil) },
			func() error {
				_, err := c.AssignIPv4(eni, cloud.Want{Addresses: []netip.Addr{p.Addr}})
				return err
			},
			p.Addr.String() + " of pod far is lost",
		},
		{
			"EC2 has an address that the book has not",
			func() error {
				before := v.State().Interfaces[eni].IPv4
				_, err := c.AssignIPv4(eni, cloud.Want{Count: 1})
				extra = v.State().Interfaces[eni].IPv4[len(before)]
				return err
			},
			func() error { return c.UnassignIPv4(eni, []netip.Addr{extra}, nil) },
			"the book has it: true",
		},
		{
			"an interface leaks",
			func() (err error) {
				loose, err = c.CreateInterface(cloud.NewInterface{Subnet: v.State().Interfaces[eni].Subnet})
				return err
			},
			func() error { return c.DeleteInterface(loose.ID) },
			"it leaked",
		},
	}
}

func (v *victim) harmOnNode(from, to *node.Pod) []harm {
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
	stray := netlink.NewRule()
	stray.Priority, stray.Table = hostnet.RuleToPod, hostnet.TableMain
	stray.Dst = &net.IPNet{IP: net.IPv4(10, 0, 31, 250), Mask: net.CIDRMask(32, 32)}
	onNode := func(args ...string) func() error {
		return func() error {
			return v.NS.Run(func() error {
				if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
					return fmt.Errorf("%v: %w: %s", args, err, out)
				}
				return nil
			})
		}
	}
	link := hostnet.LinkName(hostnet.LinkPrefix, "default", "far")
	leftover := filepath.Join(v.Dir, "state", "spool", "nobody-eth0-0.del")
	return []harm{
		{"an address is held twice", inPod(netlink.AddrAdd), inPod(netlink.AddrDel), from.Addr.String() + " is held twice"},
		{
			"a rule is left behind",
			func() error { return v.NS.Run(func() error { return netlink.RuleAdd(stray) }) },
			func() error { return v.NS.Run(func() error { return netlink.RuleDel(stray) }) },
			rulesTo + ": the kernel has",
		},
		{
			"a route is missing", onNode("ip", "route", "del", to.Addr.String()),
			onNode("ip", "route", "add", to.Addr.String(), "dev", link, "scope", "link", "proto", fmt.Sprint(hostnet.RouteProtocol)),
			podRoutes + ": the kernel has",
		},
		{
			"a link is left behind", onNode("ip", "link", "add", "enideadbeef000", "type", "veth", "peer", "name", "tl-peer"),
			onNode("ip", "link", "del", "enideadbeef000"), podLinks + ": the kernel has",
		},
		{
			"an element of nftables is left behind", onNode("nft", "add", "element", "inet", hostnet.Table, "pods4", "{ 10.0.31.250 }"),
			onNode("nft", "delete", "element", "inet", hostnet.Table, "pods4", "{ 10.0.31.250 }"), podsOfSNAT + ": the kernel has",
		},
		{
			"a DEL is forgotten",
			func() error {
				return errors.Join(os.MkdirAll(filepath.Dir(leftover), 0o700), os.WriteFile(leftover, []byte("{}"), 0o600))
			},
			func() error { return os.Remove(leftover) },
			"was never carried out",
		},
	}
}

// A node that drops packets for three seconds is seen: by the numbers of a UDP
// stream, and by the gap in a TCP stream, which loses none.
func TestAStreamThatIsCutIsSeen(t *testing.T) {
	v := newVictim(t)
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
		t.Errorf("the control beside itself: %v", err)
	}
}
