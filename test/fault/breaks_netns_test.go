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

// harm is something done to a node behind its agent's back, and how to mend it.
type harm struct {
	name     string
	do, mend func() error
	want     string // what the checks must say
}

// Every "no" and "none" of this suite can be a "yes": each is broken for real, and
// must be seen.
func TestTheChecksSeeWhatIsBroken(t *testing.T) {
	v := newVictim(t, "")
	pair := flowPods(v)
	v.addOnNewENI()
	var calm sight
	v.until("the node at rest", func() (err error) {
		calm, err = v.look()
		return errors.Join(err, calm.problems(), calm.unrest())
	})
	if err := v.disowned(""); err != nil {
		t.Fatal(err)
	}
	// An agent that is held cannot mend what the next lines do.
	if err := v.running.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	book := calm.book
	again := func() error {
		s, err := v.lookOutside()
		if err != nil {
			return err
		}
		s.book = book
		return s.problems()
	}
	for _, h := range slices.Concat(v.harmAtEC2(pair.to), v.harmOnNode(pair.from, pair.to), v.harmInKernel(), harmInBook(&book, pair.to)) {
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

// addOnNewENI adds pods until one is on an interface that is not the primary.
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

func (v *victim) harmAtEC2(p *node.Pod) []harm {
	c := v.Cloud()
	eni := v.State().Owner(p.Addr).ID
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
	link := endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", "far")
	leftover := filepath.Join(v.Dir, "state", "spool", "nobody-eth0-0.del")
	return []harm{
		{"an address is held twice", inPod(netlink.AddrAdd), inPod(netlink.AddrDel), from.Addr.String() + " is held twice"},
		{
			"a route is missing", v.onNode("ip", "route", "del", to.Addr.String()),
			v.onNode("ip", "route", "add", to.Addr.String(), "dev", link, "scope", "link", "proto", fmt.Sprint(hostnet.RouteProtocol)),
			podRoutes + ": the kernel has",
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

// harmInKernel is one thing too much, or too little, of each kind the kernel holds.
func (v *victim) harmInKernel() []harm {
	const nobody = "10.0.31.250"
	rule := func(act string, priority int, selector string) func() error {
		return v.onNode("ip", "rule", act, "priority", fmt.Sprint(priority), selector, nobody, "lookup", "main")
	}
	element := func(act, family, set, value string) func() error {
		return v.onNode("nft", act, "element", family, hostnet.Table, set, "{ "+value+" }")
	}
	source, arp := `"enideadbeef000" . 02:00:00:00:00:01 . `+nobody, `"enideadbeef000" . 02:00:00:00:00:01 . `+nobody
	table := fmt.Sprint(hostnet.TableENIOffset + 2)
	return []harm{
		{
			"a rule to a pod is left behind", rule("add", hostnet.RuleToPod, "to"), rule("del", hostnet.RuleToPod, "to"),
			rulesTo + ": the kernel has",
		},
		{
			"a rule from a pod is left behind", rule("add", hostnet.RuleFromPod, "from"), rule("del", hostnet.RuleFromPod, "from"),
			rulesFrom + ": the kernel has",
		},
		{
			"a table of an interface is left behind", v.onNode("ip", "route", "add", "unreachable", nobody, "table", table),
			v.onNode("ip", "route", "del", "unreachable", nobody, "table", table), eniTables + ": the kernel has",
		},
		{
			"a link is left behind", v.onNode("ip", "link", "add", "enideadbeef000", "type", "veth", "peer", "name", "tl-peer"),
			v.onNode("ip", "link", "del", "enideadbeef000"), podLinks + ": the kernel has",
		},
		{
			"SNAT knows an address too many", element("add", "inet", "pods4", nobody), element("delete", "inet", "pods4", nobody),
			podsOfSNAT + ": the kernel has",
		},
		{
			"an address may be sent from that is no pod's", element("add", "inet", "sources4", source), element("delete", "inet", "sources4", source),
			sources + ": the kernel has",
		},
		{
			"ARP may tell of an address that is no pod's", element("add", "arp", "sources", arp), element("delete", "arp", "sources", arp),
			arpSources + ": the kernel has",
		},
	}
}

// harmInBook is a book that says something else than EC2 and the pods.
func harmInBook(book *introspection.Book, p *node.Pod) []harm {
	address := func() *introspection.Address {
		for _, e := range book.ENIs {
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
	phase := func() *string { return &book.ENIs[0].State }
	whole := book.ENIs[0].Addresses
	return []harm{
		{
			"EC2 has an address that the book has not",
			func() error { book.ENIs[0].Addresses = whole[1:]; return nil },
			func() error { book.ENIs[0].Addresses = whole; return nil },
			"the book has it: true",
		},
		{"the book has an address for another pod", set(container, "sandbox-other"), set(container, p.RT.ContainerID), "of the pods it is"},
		{"the book has a pod's address free", set(state, "free"), set(state, "assigned"), "is free in the book and sandbox-far has it"},
		{"an interface is on its way for ever", set(phase, "detaching"), set(phase, "ready"), "is detaching in the book"},
	}
}

// An agent that ends without being killed, be it by a panic, is seen.
func TestAnAgentThatEndsByItselfIsSeen(t *testing.T) {
	v := newVictim(t, "")
	if err := v.running.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-v.done
	if err := v.wait(func() error { return nil }); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("the keeper says %v", err)
	}
}

// An agent that finds at EC2 what its book does not know is seen.
func TestAnAgentThatDisownsWhatIsThereIsSeen(t *testing.T) {
	v := newVictim(t, "")
	eni := v.State().Primary(v.State().InstanceNamed("node1").ID).ID
	if _, err := v.Cloud().AssignIPv4(eni, cloud.Want{Count: 1}); err != nil {
		t.Fatal(err)
	}
	v.replace() // the next agent looks as it starts
	v.until("the difference in the log", func() error {
		if v.disowned("") == nil {
			return errors.New("nothing is said")
		}
		return nil
	})
}

// A sample that leaves points out is red, and sorts of steps that no number led to
// are known.
func TestPointsThatAreNotVisitedAreMissed(t *testing.T) {
	points := append(callPoints("CreateNetworkInterface", 1), point{Kind: onDisk, N: 1})
	at := func(p point, steps ...string) outcome { return outcome{point: p, hit: true, steps: steps} }
	visited := []outcome{
		at(points[0]), at(points[1]), at(points[2], "disk 1 write state/journal/log endpoint/1", killed),
	}
	if err := missed(points, visited, len(points)); err != nil {
		t.Errorf("all were visited: %v", err)
	}
	if err := missed(points, visited[1:], 2); err == nil || !strings.Contains(err.Error(), "CreateNetworkInterface was never killed, stop-before") {
		t.Errorf("a call was left out: %v", err)
	}
	if err := missed(points, visited[:2], len(points)); err == nil || !strings.Contains(err.Error(), "2 of 3 points") {
		t.Errorf("a step was left out: %v", err)
	}
	if err := missed(nil, nil, 0); err == nil {
		t.Error("no points at all are nothing to miss")
	}
	if left := unkilled(visited); len(left) > 0 {
		t.Errorf("agents were killed at every sort, but for %q", left)
	}
	visited[2].steps = []string{"disk 1 fsync state/journal/log", "disk 2 write state/journal/log endpoint/1", killed}
	if left := unkilled(visited); !slices.Equal(left, []string{"disk fsync state/journal/log"}) {
		t.Errorf("unkilled %q, want the fsync", left)
	}
}

// A node that drops packets for three seconds is seen: by the numbers of a UDP
// stream, and by the gap in a TCP stream, which loses none.
func TestAStreamThatIsCutIsSeen(t *testing.T) {
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
		t.Errorf("the control beside itself: %v", err)
	}
}
