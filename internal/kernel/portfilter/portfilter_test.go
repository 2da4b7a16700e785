package portfilter

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
)

func TestOnlyMessagesOfTheNamedPortsAreDropped(t *testing.T) {
	const foreign = 4242
	for name, ports := range map[string][]uint32{
		"no port":    nil,
		"one port":   {7},
		"four ports": {1, 0x80000001, 0xffffffff, 77},
	} {
		raw, err := Without(ports...)
		if err != nil {
			t.Fatal(err)
		}
		program, complete := bpf.Disassemble(raw)
		if !complete {
			t.Fatalf("%s: %v", name, raw)
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		accepted := func(port uint32) bool {
			message := binary.NativeEndian.AppendUint32(make([]byte, portOffset), port)
			n, err := vm.Run(message)
			if err != nil {
				t.Fatal(err)
			}
			return n >= len(message)
		}
		for _, port := range ports {
			if accepted(port) {
				t.Errorf("%s: a message of port %d is accepted", name, port)
			}
		}
		if !accepted(foreign) || !accepted(0) {
			t.Errorf("%s: a message of another port, or of none, is dropped", name)
		}
	}
	if _, err := Without(make([]uint32, maxPorts+1)...); err == nil {
		t.Error("more ports than a jump can skip are accepted")
	}
	raw, err := Without(make([]uint32, maxPorts)...)
	if err == nil {
		_, err = bpf.NewVM(mustDisassemble(t, raw))
	}
	if err != nil {
		t.Errorf("%d ports: %v", maxPorts, err)
	}
}

func mustDisassemble(t *testing.T, raw []bpf.RawInstruction) []bpf.Instruction {
	t.Helper()
	program, complete := bpf.Disassemble(raw)
	if !complete {
		t.Fatal("the filter cannot be disassembled")
	}
	return program
}
