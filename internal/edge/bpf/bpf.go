// Package bpf loads the programs of network policy (folder bpf), keeps them and their maps
// pinned, so that they enforce while the agent does not run, and attaches them to links.
//
// It touches the pins below its directory of a bpffs, the maps that these pins hold, and its own
// filters at clsact of the links that callers name. It decides nothing: core/policy compiles what
// the maps hold. The programs forward and known_… are called by rules of nftables, which edge/nft
// owns; control/policy names their pins to it.
package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
)

// Options say where the datapath is and how large its maps are.
type Options struct {
	// BPFFS is the directory of the bpffs: /sys/fs/bpf. One is mounted there if there is none.
	BPFFS string
	// Dir is the directory of the pins, below BPFFS.
	Dir string
	// Netns has the links that Attach changes; nil is the namespace of the calling thread.
	Netns *os.File
	// Sizes are the largest numbers of entries of maps, by their names; others have those of
	// bpf/maps.h. If pinned maps have other sizes, Open makes new ones beside them: Found.Old.
	Sizes map[string]uint32
	// Object is compiled programs with the same maps in place of those of this package, as another
	// version has them; nil are those of this package.
	Object []byte
	Log    *slog.Logger
}

// Datapath is the loaded programs and their maps. Its methods may be called from many goroutines,
// except those of one Flows.
type Datapath struct {
	Maps     Maps
	State    *State // epoch, flow log, and the sets in force
	programs map[string]*ebpf.Program
	raw      map[string]*ebpf.Map
	links    *netlink.Handle
	dir      string
	object   string // objectID of the programs
	found    Found
	options  Options
}

// Programs by their names in bpf/policy.c.
const (
	fromPod = "from_pod"
	toPod   = "to_pod"
	guard   = "guard"
	forward = "forward"
	judge   = "judge"

	knownOut   = "known_out"
	knownIn    = "known_in"
	knownLocal = "known_local"
)

// Open loads the programs, or adopts those that are pinned with their maps. found says which; it
// is also in the log. What is pinned and is damaged or foreign is removed, and replaced by maps in
// which no endpoint may communicate. Programs that are already attached stay so, with the maps that
// they have, until Attach and the rule of nftables replace them: compare Attached.
func Open(o Options) (d *Datapath, found Found, err error) { return open(o, false) }

// Beside opens another datapath with empty maps of the same sizes, and closes this one. What is in
// force goes on enforcing, as the maps and programs of another layout do: Found.Old. It returns the datapath to
// use, also with an error: this one, open and pinned as before, if there is no other.
func (d *Datapath) Beside() (*Datapath, error) {
	beside, _, err := open(d.options, true)
	if err != nil {
		return d, err
	}
	if err := d.Close(); err != nil {
		return beside, fmt.Errorf("close policy datapath: %w", err)
	}
	return beside, nil
}

func open(o Options, beside bool) (d *Datapath, found Found, err error) {
	fail := func(err error) (*Datapath, Found, error) {
		return nil, Found{}, fmt.Errorf("open policy datapath: %w", err)
	}
	if o.Object == nil {
		o.Object = policyObject
	}
	spec, err := parse(o.Object)
	if err != nil {
		return fail(err)
	}
	if features.HaveProgramHelper(ebpf.SocketFilter, asm.FnKtimeGetCoarseNs) != nil {
		withPreciseClock(spec)
	}
	for name, entries := range o.Sizes {
		m := spec.Maps[name]
		if m == nil || entries == 0 || m.Type == ebpf.Array || m.Type == ebpf.PerCPUArray {
			return fail(fmt.Errorf("size of map %q: %d: must be that of a map of bpf/maps.h that is no array, and positive", name, entries))
		}
		m.MaxEntries = entries
	}
	// Kernels before 5.11 count maps towards the limit of locked memory.
	if err := rlimit.RemoveMemlock(); err != nil {
		return fail(fmt.Errorf("raise the limit of locked memory, which needs deploy/components/locked-memory (CAP_SYS_RESOURCE) on kernels before 5.11: %w", err))
	}
	if err := Mount(o.BPFFS); err != nil {
		return fail(err)
	}
	p := newPins(o, spec)
	p.beside = beside
	d = &Datapath{dir: p.dir, object: p.object, options: o}
	if d.raw, err = p.maps(); err == nil {
		d.programs, err = p.programs(d.raw)
	}
	if err == nil {
		found, err = p.finish()
		d.found = found
	}
	if err == nil {
		err = d.open(o.Netns)
	}
	if err != nil {
		_ = d.Close()
		return fail(errors.Join(err, p.moveBack()))
	}
	o.Log.Info("policy datapath opened", "dir", p.dir, "maps", found.Maps, "programs", found.Programs, "removed", found.Removed, "old", found.Old, "sizes", found.Sizes)
	return d, found, nil
}

// open completes a datapath that has maps and programs.
func (d *Datapath) open(ns *os.File) (err error) {
	if d.State, err = newState(d.raw); err != nil {
		return err
	}
	d.Maps = newMaps(d.raw)
	d.links, err = dial(ns)
	return err
}

// Close releases the file descriptors. What is pinned and attached stays.
func (d *Datapath) Close() error {
	var errs []error
	if d.links != nil {
		d.links.Close()
	}
	if d.State != nil {
		errs = append(errs, d.State.close())
	}
	for _, p := range d.programs {
		errs = append(errs, p.Close())
	}
	for _, m := range d.raw {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Found is what Open found.
func (d *Datapath) Found() Found { return d.found }

// Forward is the program of the rule of nftables: match bpf by its file descriptor, which is valid
// until Close, and its ID, which differs from that of an earlier program.
func (d *Datapath) Forward() (fd int, id uint32, err error) {
	id, err = programID(d.programs[forward])
	return d.programs[forward].FD(), id, err
}

func programID(p *ebpf.Program) (uint32, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("read program %s: %w", p, err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("read program %s: the kernel gives no ID", p)
	}
	return uint32(id), nil
}
