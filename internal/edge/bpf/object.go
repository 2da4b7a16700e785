package bpf

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the compiled programs
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

//go:generate ../../../bpf/compile

//go:embed policy.o
var policyObject []byte

// layout is the version of the maps: another one has a directory of its own, because programs of
// one version cannot read the maps of another. testdata/layout.txt has the maps of this version.
const layout = "v2"

// object parses the compiled programs of this package.
func object() (*ebpf.CollectionSpec, error) { return parse(policyObject) }

func parse(compiled []byte) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(compiled))
	if err != nil {
		return nil, fmt.Errorf("parse the compiled programs: %w", err)
	}
	return spec, nil
}

// withPreciseClock replaces the clock that kernels before 5.11 do not have.
func withPreciseClock(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		for i, in := range p.Instructions {
			if in.IsBuiltinCall() && in.Constant == int64(asm.FnKtimeGetCoarseNs) {
				p.Instructions[i].Constant = int64(asm.FnKtimeGetNs)
			}
		}
	}
}

// objectID differs between compiled programs.
func objectID(compiled []byte) string {
	sum := sha256.Sum256(compiled)
	return hex.EncodeToString(sum[:8])
}

// needed are the features of the kernel that the programs use, with the version that has them.
func needed() []feature {
	mapType := func(t ebpf.MapType) func() error { return func() error { return features.HaveMapType(t) } }
	helper := func(t ebpf.ProgramType, h asm.BuiltinFunc) func() error {
		return func() error { return features.HaveProgramHelper(t, h) }
	}
	return []feature{
		{"BPF program type sched_cls (4.1)", func() error { return features.HaveProgramType(ebpf.SchedCLS) }},
		{"BPF program type socket_filter (3.19)", func() error { return features.HaveProgramType(ebpf.SocketFilter) }},
		{"BPF map type hash (3.19)", mapType(ebpf.Hash)},
		{"BPF map type lru_hash (4.10)", mapType(ebpf.LRUHash)},
		{"BPF map type lpm_trie (4.11)", mapType(ebpf.LPMTrie)},
		{"BPF map type percpu_hash (4.6)", mapType(ebpf.PerCPUHash)},
		{"BPF map type ringbuf (5.8)", mapType(ebpf.RingBuf)},
		{"BPF maps that can be mapped into memory (5.5)", func() error { return features.HaveMapFlag(features.BPF_F_MMAPABLE) }},
		{"helper skb_load_bytes in socket filters (4.5)", helper(ebpf.SocketFilter, asm.FnSkbLoadBytes)},
		{"helper ringbuf_reserve in socket filters (5.8)", helper(ebpf.SocketFilter, asm.FnRingbufReserve)},
		{"bounded loops (5.3)", features.HaveBoundedLoops},
		{"BPF instruction set v3 (5.1)", features.HaveV3ISA},
	}
}

type feature struct {
	name  string
	probe func() error
}

// ErrUnsupported is returned when the kernel lacks a feature. The message names it.
var ErrUnsupported = errors.New("the kernel lacks")

// explain returns the first of the features that the kernel lacks, or err if it has them all.
func explain(err error, features []feature) error {
	for _, f := range features {
		if errors.Is(f.probe(), ebpf.ErrNotSupported) {
			return fmt.Errorf("%w %s: network policy is not enforced on this node: %w", ErrUnsupported, f.name, err)
		}
	}
	return err
}
