package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// The match bpf of xtables, as struct xt_bpf_info_v1 of linux/netfilter/xt_bpf.h: two bytes of
// mode, six that a pinned program does not need, the path with its zero, and eight bytes for
// the kernel.
const (
	bpfMatch    = "bpf"
	bpfRevision = 1
	bpfPinned   = 1 // XT_BPF_MODE_PATH_PINNED
	bpfPathAt   = 8
	bpfPathSize = 512
	bpfSize     = bpfPathAt + bpfPathSize + 8
)

func encodeBPF(b nftables.BPF) ([]expr.Any, error) {
	if b.Path == "" || len(b.Path) >= bpfPathSize || bytes.IndexByte([]byte(b.Path), 0) >= 0 {
		return nil, fmt.Errorf("expression %s: the path must have from 1 to %d bytes and no zero", b, bpfPathSize-1)
	}
	info := make(xt.Unknown, bpfSize)
	binary.NativeEndian.PutUint16(info, bpfPinned)
	copy(info[bpfPathAt:], b.Path)
	return []expr.Any{&expr.Match{Name: bpfMatch, Rev: bpfRevision, Info: &info}}, nil
}

func decodeBPF(m *expr.Match) (nftables.BPF, bool) {
	info, ok := m.Info.(*xt.Unknown)
	if !ok || m.Name != bpfMatch || m.Rev != bpfRevision || len(*info) < bpfPathAt+bpfPathSize || binary.NativeEndian.Uint16(*info) != bpfPinned {
		return nftables.BPF{}, false
	}
	path, _, ended := bytes.Cut((*info)[bpfPathAt:bpfPathAt+bpfPathSize], []byte{0})
	return nftables.BPF{Path: string(path)}, ended && len(path) > 0
}
