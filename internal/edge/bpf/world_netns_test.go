//go:build netns

package bpf

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bpffs returns a directory that is unmounted after the test, if Open mounts one there.
func bpffs(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("BPF needs root: run `make test-netns` as root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func options(dir string) Options {
	return Options{BPFFS: dir, Dir: "tl-test", Log: slog.New(slog.DiscardHandler), Sizes: map[string]uint32{"tl_connections": 1 << 16}}
}

// world is a datapath on which tests run packets.
type world struct {
	*Datapath
	t    testing.TB
	knew map[string]int // packets, by the program known_… that allowed them
}

func worldOf(d *Datapath, t testing.TB) *world { return &world{d, t, map[string]int{}} }

func newWorld(t testing.TB) *world {
	t.Helper()
	d, _, err := Open(options(bpffs(t)))
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return worldOf(d, t)
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// endpoint gives an endpoint of this node addresses and a set.
func (w *world) endpoint(id endpoint.ID, set uint32, addresses ...netip.Addr) {
	w.t.Helper()
	for _, a := range addresses {
		must(w.t, w.Maps.Addresses.Put(AddressOf(a), uint32(id)))
	}
	w.State.SetInForce(id, set)
}

// set writes a set of which scope and ports have its number.
func (w *world) set(number uint32, isolated ...Direction) {
	w.t.Helper()
	s := Set{Scope: number, Ports: number, Ranges: 1, Prefixes: 1}
	for _, d := range isolated {
		s.Isolated |= 1 << d
	}
	must(w.t, w.Maps.Sets.Put(number, s))
}

func (w *world) row(set uint32, d Direction, class uint32, portClasses ...uint32) {
	w.t.Helper()
	pages := map[uint16]uint64{}
	for _, c := range portClasses {
		pages[uint16(c/64)] |= 1 << (c % 64)
	}
	for page, bits := range pages {
		must(w.t, w.Maps.Rows.Put(RowKey{Set: set, Class: class, Page: page, Direction: d}, bits))
	}
}

// forward runs a packet as at the FORWARD hook.
func (w *world) forward(packet []byte, reply ...bool) bool {
	w.t.Helper()
	return w.forwardMarked(packet, len(reply) > 0 && reply[0], false)
}

// forwardMarked is forward for a packet that came by a pod's link, or by another one. As the rules of
// nftables do, it calls the program of known connections first.
func (w *world) forwardMarked(packet []byte, reply, pending bool) bool {
	w.t.Helper()
	var in context
	if program := w.known(packet, pending); program != "" && w.run(program, ether(packet), &in) == 1 {
		w.knew[program]++
		return true
	}
	if reply {
		in.Mark |= hostnet.MarkJudged
	}
	if pending {
		in.Mark |= hostnet.MarkPending
	}
	return w.run(forward, ether(packet), &in) == 1
}

// known is the program that the rules call first: packets of pods come by their links. One with
// the address of a pod that comes by another link is judged for its receiver alone, as it has been
// judged when it left.
func (w *world) known(packet []byte, pending bool) string {
	p, _, whole := modelNetwork(packet, true)
	at := func(a Address) bool {
		_, found, err := w.Maps.Addresses.Get(a)
		must(w.t, err)
		return found
	}
	switch from, to := at(p.from), at(p.to); {
	case !whole && pending:
		return knownOut
	case !whole:
		return knownIn
	case from && to && pending:
		return knownLocal
	case from && !to:
		return knownOut
	case to && !from && !pending:
		return knownIn
	}
	return ""
}

// run runs a program on a frame; *c is the context before and after.
func (w *world) run(program string, frame []byte, c *context) int32 {
	w.t.Helper()
	in := *c
	verdict, err := w.programs[program].Run(&ebpf.RunOptions{Data: frame, Context: &in, ContextOut: c})
	must(w.t, err)
	return int32(verdict)
}

// forget deletes all connections.
func (w *world) forget() {
	w.t.Helper()
	all, err := w.Maps.Connections.All()
	must(w.t, err)
	for key := range all {
		must(w.t, w.Maps.Connections.Delete(key))
	}
}
