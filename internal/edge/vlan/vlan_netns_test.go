//go:build netns

package vlan

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// end is a namespace with one end of a trunk, eth1.
type end struct {
	t *testing.T
	*testns.NS
	*Host
}

// newTrunk returns both ends of a trunk.
func newTrunk(t *testing.T) (a, b *end) {
	t.Helper()
	a, b = &end{t: t, NS: testns.New(t, "a")}, &end{t: t, NS: testns.New(t, "b")}
	peer := b.Open(t)
	defer peer.Close()
	a.Do(t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "eth1", vpc.MTU
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerMTU, pair.PeerNamespace = "eth1", vpc.MTU, netlink.NsFd(int(peer.Fd()))
		must(t, netlink.LinkAdd(pair))
	})
	for _, e := range []*end{a, b} {
		ns := e.Open(t)
		var err error
		e.Host, err = Open(ns)
		must(t, errors.Join(err, ns.Close()))
		t.Cleanup(e.Close)
		e.Do(t, func() { must(t, netlink.LinkSetUp(e.link("eth1"))) })
	}
	return a, b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// link finds a link in the namespace of the calling thread.
func (e *end) link(name string) netlink.Link {
	e.t.Helper()
	l, err := netlink.LinkByName(name)
	must(e.t, err)
	return l
}

func branch(vlan int, last byte) Branch {
	return Branch{VLAN: vlan, MAC: vpc.MAC{2, 0xaa, 0, 0, byte(vlan), last}, MTU: vpc.MTU, Alias: hostnet.LinkAliasPrefix + "branch/eni-1"}
}

func (e *end) apply(want ...Branch) []string {
	e.t.Helper()
	changed, err := e.Apply(e.t.Context(), "eth1", want)
	must(e.t, err)
	return changed
}

// assign gives the device of a VLAN addresses, as an instance at the other end of a branch has.
func (e *end) assign(vlan int, addresses ...string) {
	e.t.Helper()
	e.Do(e.t, func() {
		for _, a := range addresses {
			addr, err := netlink.ParseAddr(a)
			must(e.t, err)
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			must(e.t, netlink.AddrAdd(e.link(hostnet.BranchDevice(vlan)), addr))
		}
	})
}

// serve returns what it receives at an address.
func (e *end) serve(at string) {
	e.t.Helper()
	e.Do(e.t, func() {
		l, err := net.Listen("tcp", at)
		must(e.t, err)
		e.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c); c.Close() }()
			}
		}()
	})
}

// sends has size bytes returned by a server.
func (e *end) sends(to string, size int, within time.Duration) (err error) {
	var c net.Conn
	if err := e.Run(func() (err error) { c, err = (&net.Dialer{Timeout: within}).Dial("tcp", to); return err }); err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	go func() { _, _ = c.Write(make([]byte, size)) }()
	_, err = io.ReadFull(c, make([]byte, size))
	return err
}

const (
	reply   = 30 * time.Second
	silence = 500 * time.Millisecond
)

// ARP and neighbour discovery precede the connections; a megabyte is sent in segments of the MTU.
// Red without the tag that tagger pushes.
func TestFramesOfABranchPassTheTrunkInBothFamilies(t *testing.T) {
	a, b := newTrunk(t)
	a.apply(branch(7, 1), branch(4094, 1))
	b.apply(branch(7, 2), branch(4094, 2))
	a.assign(7, "10.0.7.1/24", "fd07::1/64")
	b.assign(7, "10.0.7.2/24", "fd07::2/64")
	a.assign(4094, "10.0.9.1/24", "fd09::1/64")
	b.assign(4094, "10.0.9.2/24", "fd09::2/64")
	for _, at := range []string{"10.0.7.2:80", "[fd07::2]:80", "10.0.9.2:80", "[fd09::2]:80"} {
		b.serve(at)
		must(t, a.sends(at, 1<<20, reply))
	}
	a.serve("10.0.7.1:80")
	must(t, b.sends("10.0.7.1:80", 1<<20, reply))
}

// A frame of a protocol that is no IP, with the MAC of the branch. Red with an untagger that leaves
// frames of this protocol to the stack.
func TestOtherFramesOfABranchPassTheTrunk(t *testing.T) {
	a, b := newTrunk(t)
	a.apply(branch(7, 1))
	b.apply(branch(7, 2))
	const experimental = 0x88b5 // IEEE Std 802, local experimental ethertype 1
	sent := testns.Frame{From: branch(7, 1).MAC, Type: experimental, Payload: []byte("other")}
	got := make(chan bool, 1)
	go func() {
		var found bool
		_ = b.Run(func() (err error) {
			quiet := testns.Frame{From: branch(7, 2).MAC, Type: experimental + 1, Payload: []byte("own")}
			found, err = testns.Exchange(b.link(hostnet.BranchDevice(7)).Attrs().Index, quiet, reply, func(f []byte, vlan uint16) bool {
				return vlan == 0 && binary.BigEndian.Uint16(f[12:]) == experimental && [6]byte(f[6:12]) == sent.From && string(f[14:19]) == "other"
			})
			return err
		})
		got <- found
	}()
	for {
		a.Do(t, func() {
			_, err := testns.Exchange(a.link(hostnet.BranchDevice(7)).Attrs().Index, sent, 20*time.Millisecond, func([]byte, uint16) bool { return false })
			must(t, err)
		})
		select {
		case found := <-got:
			if !found {
				t.Error("the frame did not arrive")
			}
			return
		default:
		}
	}
}

// The trunk's own frames have no tag; a VLAN without a device, and another branch's, reach nothing.
// Red with an untagger that ignores the lowest bit of a VLAN.
func TestABranchHasTheFramesOfItsVLANOnly(t *testing.T) {
	a, b := newTrunk(t)
	for _, e := range []struct {
		*end
		last byte
		own  string
	}{{a, 1, "10.0.1.1/24"}, {b, 2, "10.0.1.2/24"}} {
		e.Do(t, func() {
			addr, err := netlink.ParseAddr(e.own)
			must(t, err)
			must(t, netlink.AddrAdd(e.link("eth1"), addr))
		})
	}
	a.apply(branch(7, 1), branch(8, 1))
	b.apply(branch(7, 2), branch(9, 2))
	a.assign(7, "10.0.7.1/24")
	a.assign(8, "10.0.8.1/24")
	b.assign(7, "10.0.7.2/24")
	b.assign(9, "10.0.8.2/24")
	a.serve("10.0.8.1:80")
	a.serve("10.0.7.1:80")
	a.serve("10.0.1.1:80")
	must(t, b.sends("10.0.7.1:80", 1, reply))
	must(t, b.sends("10.0.1.1:80", 1, reply))
	if b.sends("10.0.8.1:80", 1, silence) == nil {
		t.Error("frames of VLAN 9 reached the device of VLAN 8")
	}
}

// A frame with a tag in it, as a network card would send it: a service tag (802.1ad) of the same
// number is another VLAN. Red without the check of the tag's protocol in untagger.
func TestAServiceTagIsNotTheVLANOfABranch(t *testing.T) {
	a, b := newTrunk(t)
	b.apply(branch(7, 2))
	b.assign(7, "10.0.7.2/24")
	for protocol, reached := range map[uint16]bool{unix.ETH_P_8021Q: true, unix.ETH_P_8021AD: false} {
		a.Do(t, func() {
			wait := reply
			if !reached {
				wait = silence
			}
			f := testns.Frame{From: branch(7, 1).MAC, TagType: protocol, VLAN: 7}
			_, got, err := testns.AskARP(a.link("eth1").Attrs().Index, f, netip.MustParseAddr("10.0.7.1"), netip.MustParseAddr("10.0.7.2"), wait)
			if must(t, err); got != reached {
				t.Errorf("tag %#x: answered %v, want %v", protocol, got, reached)
			}
		})
	}
}

func names(t *testing.T, e *end) (list []string) {
	t.Helper()
	e.Do(t, func() {
		links, err := netlink.LinkList()
		must(t, err)
		for _, l := range links {
			list = append(list, l.Attrs().Name)
		}
	})
	return list
}

// Red without isRight, or its comparison of MACs, and without prune and detach.
func TestApplyIsIdempotentRepairsAndLeavesNothing(t *testing.T) {
	a, b := newTrunk(t)
	before := names(t, a)
	if changed := a.apply(branch(7, 1)); len(changed) == 0 {
		t.Error("nothing was made")
	}
	if changed := a.apply(branch(7, 1)); len(changed) > 0 {
		t.Errorf("again: %q", changed)
	}
	want := Programs
	if _, err := os.Stat("/proc/net/vlan"); err == nil {
		want = Kernel
	}
	if a.kind != want {
		t.Errorf("devices are made by %s, and the kernel has %s", a.kind, want)
	}
	b.apply(branch(7, 2))
	a.assign(7, "10.0.7.1/24")
	b.assign(7, "10.0.7.2/24")
	b.serve("10.0.7.2:80")
	must(t, a.sends("10.0.7.2:80", 1, reply))
	for what, harm := range map[string]func(){
		"the device is down": func() { must(t, netlink.LinkSetDown(a.link(hostnet.BranchDevice(7)))) },
		"it has another MAC": func() {
			must(t, netlink.LinkSetHardwareAddr(a.link(hostnet.BranchDevice(7)), net.HardwareAddr{2, 0, 0, 0, 0, 9}))
		},
		"the device is gone": func() { must(t, netlink.LinkDel(a.link(hostnet.BranchDevice(7)))) },
		"no program, no clsact": func() {
			_ = netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: a.link("eth1").Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
			}, QdiscType: "clsact"}) // a device of the kernel has none
		},
	} {
		a.Do(t, harm)
		a.apply(branch(7, 1))
		a.Do(t, func() {
			if have := a.link(hostnet.BranchDevice(7)).Attrs().HardwareAddr; !slices.Equal(have, branch(7, 1).MAC.HardwareAddr()) {
				t.Errorf("%s: the device has the MAC %s", what, have)
			}
			addr, err := netlink.ParseAddr("10.0.7.1/24")
			must(t, err)
			must(t, netlink.AddrReplace(a.link(hostnet.BranchDevice(7)), addr))
		})
		if err := a.sends("10.0.7.2:80", 1, reply); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	a.apply()
	if after := names(t, a); len(after) != len(before) {
		t.Errorf("links %q, before %q", after, before)
	}
	a.Do(t, func() {
		if left, err := netlink.FilterList(a.link("eth1"), netlink.HANDLE_MIN_INGRESS); err == nil && len(left) > 0 {
			t.Errorf("filters are left: %v", left)
		}
	})
}

// Red if connect deletes what has the name of a device.
func TestALinkThatIsNotOursStaysAndIsAnError(t *testing.T) {
	a, _ := newTrunk(t)
	a.Do(t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = hostnet.BranchDevice(7)
		pair := netlink.NewVeth(attrs)
		pair.PeerName = "other"
		must(t, netlink.LinkAdd(pair))
	})
	if _, err := a.Apply(t.Context(), "eth1", []Branch{branch(7, 1), branch(8, 1)}); !errors.Is(err, ErrTaken) {
		t.Errorf("%v, want %v", err, ErrTaken)
	}
	a.apply()
	if _, err := a.Apply(t.Context(), "", []Branch{branch(8, 1)}); !errors.Is(err, ErrNoTrunk) {
		t.Errorf("%v, want %v", err, ErrNoTrunk)
	}
	a.Do(t, func() { a.link(hostnet.BranchDevice(7)) })
}
