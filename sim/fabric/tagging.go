package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// The kernel's 802.1Q devices are a module that a machine may lack, so that two programs at
// clsact tag and untag the frames of branches. They hold their VLANs and interface indexes as
// constants: a changed program replaces the one before without a gap, and there is no other
// state to lose.

// Offsets in struct __sk_buff of the kernel's bpf.h.
const (
	skbVLANPresent  = 20
	skbVLANTag      = 24
	skbVLANProtocol = 28
)

// Verdicts of a classifier with direct action.
const (
	passFrame = 0 // TC_ACT_OK
	dropFrame = 2 // TC_ACT_SHOT
)

// tag8021Q is the protocol of an 802.1Q tag, in network byte order as the kernel has it.
const tag8021Q = 0x0081

// vlanBits are those of a tag that hold the VLAN.
const vlanBits = 0x0fff

// classifier is a program for clsact.
type classifier struct {
	name         string // differs if the instructions differ
	instructions asm.Instructions
}

// tagger tags the frames that enter it with a VLAN and sends them out of a trunk.
func tagger(vlan uint16, trunk int) classifier {
	return classifier{
		name: fmt.Sprintf("tag %d to %d", vlan, trunk),
		instructions: append(asm.Instructions{
			asm.Mov.Imm(asm.R2, tag8021Q),
			asm.Mov.Imm(asm.R3, int32(vlan)),
			asm.FnSkbVlanPush.Call(),
			asm.JNE.Imm(asm.R0, 0, "drop"),
			asm.Mov.Imm(asm.R1, int32(trunk)),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnRedirect.Call(),
			asm.Return(),
		}, verdictAt("drop", dropFrame)...),
	}
}

// untagger removes the tag of the frames that a trunk receives and sends each out of the link
// of its VLAN. Frames without a VLAN pass, and those of another VLAN or protocol are dropped.
func untagger(links map[uint16]int) classifier {
	vlans := slices.Sorted(maps.Keys(links))
	sum := sha256.New()
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbVLANPresent, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "pass"),
		asm.LoadMem(asm.R2, asm.R6, skbVLANTag, asm.Word),
		asm.And.Imm(asm.R2, vlanBits),
		asm.JEq.Imm(asm.R2, 0, "pass"),
		asm.LoadMem(asm.R3, asm.R6, skbVLANProtocol, asm.Word),
		asm.JNE.Imm(asm.R3, tag8021Q, "drop"),
	}
	for _, vlan := range vlans {
		fmt.Fprintf(sum, "%d %d\n", vlan, links[vlan])
		code = append(code,
			asm.Mov.Imm(asm.R7, int32(links[vlan])),
			asm.JEq.Imm(asm.R2, int32(vlan), "deliver"),
		)
	}
	code = append(code, verdictAt("drop", dropFrame)...)
	code = append(code,
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("deliver"),
		asm.FnSkbVlanPop.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
	)
	code = append(code, verdictAt("pass", passFrame)...)
	return classifier{name: "untag " + hex.EncodeToString(sum.Sum(nil)[:12]), instructions: code}
}

// verdictAt ends a program with a verdict.
func verdictAt(symbol string, verdict int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, verdict).WithSymbol(symbol), asm.Return()}
}

// load loads the program; the caller closes it, and what it is attached to keeps it.
func (c classifier) load() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: c.instructions, License: "GPL"})
}
