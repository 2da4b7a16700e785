//go:build vmguest

package debian

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/vm"
)

func TestTheKernelIsDebians(t *testing.T) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release, version := unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Version[:])
	t.Logf("%s %s", release, version)
	if !strings.HasPrefix(release, vm.Release) || !strings.Contains(version, "Debian") {
		t.Errorf("kernel %s %s, want Debian's %s*", release, version, vm.Release)
	}
}

func TestLinkTypes(t *testing.T) {
	attrs := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	trunk := &netlink.Dummy{LinkAttrs: attrs("trunk")}
	add(t, trunk)
	tagged := attrs("trunk.7")
	tagged.ParentIndex = trunk.Index
	for _, link := range []netlink.Link{
		&netlink.Vlan{LinkAttrs: tagged, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q},
		&netlink.Iptun{LinkAttrs: attrs("ipip1"), Local: net.IPv4(192, 0, 2, 1), Remote: net.IPv4(192, 0, 2, 2)},
		&netlink.Wireguard{LinkAttrs: attrs("wg1")},
		&netlink.Veth{LinkAttrs: attrs("veth1"), PeerName: "veth2"},
	} {
		t.Run(link.Type(), func(t *testing.T) { add(t, link) })
	}
}

// add makes a link, sets it up and reads it back; it is deleted after the test.
func add(t *testing.T, link netlink.Link) {
	t.Helper()
	name := link.Attrs().Name
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("add %s %s: %v", link.Type(), name, err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	})
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("set %s up: %v", name, err)
	}
	got, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if got.Type() != link.Type() || got.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("%s is a %s with flags %s, want %s, up", name, got.Type(), got.Attrs().Flags, link.Type())
	}
}

// bpfMatch is struct xt_bpf_info_v1 of a program given by its descriptor; see kernel,
// include/uapi/linux/netfilter/xt_bpf.h.
func bpfMatch(program int) *expr.Match {
	const byDescriptor = 2 // XT_BPF_MODE_FD_ELF
	var b bytes.Buffer
	for _, part := range []any{uint16(byDescriptor), uint16(0), int32(program), [512]byte{}, uint64(0)} {
		if err := binary.Write(&b, binary.NativeEndian, part); err != nil {
			panic(err) // a bytes.Buffer does not fail
		}
	}
	info := xt.Unknown(b.Bytes())
	return &expr.Match{Name: "bpf", Rev: 1, Info: &info}
}

// matcher is a socket filter that matches packets with a mark.
func matcher(t *testing.T, mark int32) *ebpf.Program {
	t.Helper()
	const markOffset = 8 // of struct __sk_buff
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, markOffset, asm.Word),
			asm.Mov.Imm(asm.R0, 0),
			asm.JNE.Imm(asm.R2, mark, "end"),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return().WithSymbol("end"),
		},
	})
	if err != nil {
		t.Fatalf("load a socket filter: %v", err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestAnNftablesRuleAsksABPFProgram(t *testing.T) {
	const marked = 7
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "features"})
	chain := c.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		bpfMatch(matcher(t, marked).FD()), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
	}})
	if err := c.Flush(); err != nil {
		t.Fatalf("add a rule with xt_bpf: %v", err)
	}
	t.Cleanup(func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	})
	for _, target := range []string{"127.0.0.1", "::1"} {
		for mark, arrives := range map[int]bool{0: true, marked: false, marked + 1: true} {
			if got := sent(t, target, mark); got != arrives {
				t.Errorf("a datagram to %s with mark %d arrives: %v, want %v", target, mark, got, arrives)
			}
		}
	}
	rules, err := c.GetRules(table, chain)
	if err != nil || len(rules) != 1 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
	if n := rules[0].Exprs[1].(*expr.Counter).Packets; n != 2 {
		t.Errorf("the rule dropped %d packets, want 2", n)
	}
}

// sent sends a datagram with a mark to loopback and returns whether it arrives. The kernel
// delivers it within the call, and returns EPERM if a rule drops it.
func sent(t *testing.T, target string, mark int) bool {
	t.Helper()
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(target)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	raw, err := client.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }); cerr != nil || err != nil {
		t.Fatalf("mark a socket: %v, %v", cerr, err)
	}
	if _, err := fmt.Fprint(client, "x"); err != nil {
		t.Logf("to %s with mark %d: %v", target, mark, err)
		return false
	}
	if _, err := server.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return true
}
