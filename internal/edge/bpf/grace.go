package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// WaitForPrograms returns once every run of a program has ended that began before the call: what the
// caller has written before is seen by all that go on running. Updates of arrays and hashes do not wait for
// that, so an entry that is not referred to any longer may still be looked up by a run that has read the
// reference. The kernel waits in an update of a map of maps (maybe_wait_bpf_programs in
// kernel/bpf/syscall.c, since 4.18), which is a grace period of RCU: some milliseconds. The runs are
// in read-side sections of RCU at tc and in netfilter.
func WaitForPrograms() (err error) {
	inner := &ebpf.MapSpec{Name: "tl_grace_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	element, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("create a map to wait for running programs: %w", err)
	}
	defer func() { err = errors.Join(err, element.Close()) }()
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Name: "tl_grace", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return fmt.Errorf("create a map of maps to wait for running programs: %w", err)
	}
	defer func() { err = errors.Join(err, outer.Close()) }()
	if err := outer.Put(uint32(0), element); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	return nil
}
