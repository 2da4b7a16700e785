package vlan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Offsets in struct __sk_buff of the kernel's bpf.h.
const (
	skbVLANPresent  = 20
	skbVLANTag      = 24
	skbVLANProtocol = 28
)

const (
	passOn   = -1 // TC_ACT_UNSPEC: filters behind ours, and then the stack, have it
	drop     = 2  // TC_ACT_SHOT
	vlanBits = 0x0fff
	// tag8021Q is the protocol of an 802.1Q tag, in network byte order as the kernel has it.
	tag8021Q = 0x0081
)

// namePrefix begins the names of our filters, as tc(8) shows them.
const namePrefix = "vlan: "

// program tags or untags. Its constants are in its instructions: it is replaced without a gap, and
// has no state to lose.
type program struct {
	name string // differs if the instructions do
	code asm.Instructions
}

// tagger tags what enters a tagged end and sends it out of the trunk.
func tagger(vlan, trunk int) program {
	return program{
		name: fmt.Sprintf("%stag %d to %d", namePrefix, vlan, trunk),
		code: append(asm.Instructions{
			asm.Mov.Imm(asm.R2, tag8021Q),
			asm.Mov.Imm(asm.R3, int32(vlan)),
			asm.FnSkbVlanPush.Call(),
			asm.JNE.Imm(asm.R0, 0, "drop"),
			asm.Mov.Imm(asm.R1, int32(trunk)),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnRedirect.Call(),
			asm.Return(),
		}, endsWith("drop", drop)...),
	}
}

// untagger removes the tags of the VLANs that the trunk receives and sends each frame out of its
// tagged end, which is into the device. Frames without a VLAN pass, and so do those of other VLANs
// and with tags of another protocol, such as service tags (802.1ad): the kernel drops what no device
// takes, as frames to another host.
func untagger(ends map[int]int) program {
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbVLANPresent, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "pass"),
		asm.LoadMem(asm.R2, asm.R6, skbVLANTag, asm.Word),
		asm.And.Imm(asm.R2, vlanBits),
		asm.LoadMem(asm.R3, asm.R6, skbVLANProtocol, asm.Word),
		asm.JNE.Imm(asm.R3, tag8021Q, "pass"),
	}
	for _, vlan := range slices.Sorted(maps.Keys(ends)) {
		code = append(code,
			asm.Mov.Imm(asm.R7, int32(ends[vlan])),
			asm.JEq.Imm(asm.R2, int32(vlan), "deliver"),
		)
	}
	code = append(code, endsWith("pass", passOn)...)
	code = append(code,
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("deliver"),
		asm.FnSkbVlanPop.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
	)
	code = append(code, endsWith("drop", drop)...)
	sum := sha256.Sum256([]byte(fmt.Sprint(code)))
	return program{name: namePrefix + "untag " + hex.EncodeToString(sum[:12]), code: code}
}

// endsWith ends a program with a verdict.
func endsWith(symbol string, verdict int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, verdict).WithSymbol(symbol), asm.Return()}
}

// tag attaches the programs of the devices that need some, and sets all devices up after that.
func (p *pass) tag(want []Branch) error {
	ends := map[int]int{}
	var errs []error
	for _, b := range want {
		device, tagged := p.have[hostnet.BranchDevice(b.VLAN)], p.have[hostnet.TaggedEnd(b.VLAN)]
		if device == nil || !ours(device) || device.Type() == "veth" && tagged == nil {
			continue // it has an error of its own
		}
		if device.Type() == "veth" {
			ends[b.VLAN] = tagged.Attrs().Index
			errs = append(errs, p.attach(tagged, tagger(b.VLAN, p.trunk.Attrs().Index)))
		}
	}
	switch {
	case len(ends) > 0:
		errs = append(errs, p.attach(p.trunk, untagger(ends)))
	case p.trunk != nil:
		errs = append(errs, p.detach(p.trunk))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, b := range want {
		for _, name := range []string{hostnet.TaggedEnd(b.VLAN), hostnet.BranchDevice(b.VLAN)} {
			l := p.have[name]
			if l == nil || !ours(l) || l.Attrs().RawFlags&unix.IFF_UP != 0 {
				continue
			}
			p.note("set %s up", name)
			errs = append(errs, p.links.LinkSetUp(l))
		}
	}
	return errors.Join(errs...)
}

func ingress(l netlink.Link) netlink.FilterAttrs {
	return netlink.FilterAttrs{
		LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: hostnet.FilterHandleVLAN,
		Priority: hostnet.FilterPriority, Protocol: unix.ETH_P_ALL,
	}
}

// attached is the name of our program at a link; empty if there is none.
func (p *pass) attached(l netlink.Link) (string, error) {
	list, err := p.links.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // it has no clsact, or is gone
			return "", nil
		}
		return "", fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
	}
	for _, f := range list {
		if b, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(b.Name, namePrefix) {
			return b.Name, nil
		}
	}
	return "", nil
}

func (p *pass) attach(l netlink.Link, want program) error {
	index := l.Attrs().Index
	err := p.links.QdiscAdd(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to %s (the kernel has neither 802.1Q devices nor this): %w", l.Attrs().Name, err)
	}
	have, err := p.attached(l)
	if err != nil || have == want.name {
		return err
	}
	loaded, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: want.code, License: "GPL"})
	if err != nil {
		return fmt.Errorf("load program %q: %w", want.name, err)
	}
	defer loaded.Close() //nolint:errcheck // the filter keeps it
	p.note("attached %q to %s", want.name, l.Attrs().Name)
	if err := p.links.FilterReplace(&netlink.BpfFilter{FilterAttrs: ingress(l), Fd: loaded.FD(), Name: want.name, DirectAction: true}); err != nil {
		return fmt.Errorf("attach program %q to %s: %w", want.name, l.Attrs().Name, err)
	}
	return nil
}

func (p *pass) detach(l netlink.Link) error {
	have, err := p.attached(l)
	if err != nil || have == "" {
		return err
	}
	p.note("removed %q from %s", have, l.Attrs().Name)
	if err := gone(p.links.FilterDel(&netlink.BpfFilter{FilterAttrs: ingress(l)})); err != nil {
		return fmt.Errorf("remove program %q from %s: %w", have, l.Attrs().Name, err)
	}
	return nil
}
