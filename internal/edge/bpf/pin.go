package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Found is what Open found pinned.
type Found struct {
	Maps     string   // Created, Adopted or Replaced
	Programs string   // Created, Adopted or Replaced
	Removed  []string // pins that were damaged, foreign or of earlier programs
	Old      []string // directories of other layouts: RetireLayout removes them
	Forward  string   // pin of the program forward of another layout that is in force in place of this one; empty if there is none
	Sizes    []string // maps of another size than before
	// Refused is why maps keep their sizes although others are configured; empty if they do not.
	Refused string
	// Lost is set if other programs may have been pinned at the path of the loaded ones: a rule
	// of nftables with this path may hold these.
	Lost bool
	// Uncalled is set while no rule of nftables has called the programs with these maps: nothing of them
	// is in force.
	Uncalled bool
	// MapsLost is set while that is so, and these maps are in the place of maps in force that were damaged or
	// missing: a rule of nftables with the path of the loaded programs may hold earlier ones, with those maps.
	MapsLost bool
}

// What Open did. Beside: maps were created beside pinned ones, which are in Found.Old.
const (
	Created  = "created"
	Adopted  = "adopted"
	Replaced = "replaced"
	Beside   = "beside"
)

// earlierSuffix ends the name of the directory of a layout's earlier maps, while those beside them
// are written.
const earlierSuffix = "-earlier"

// uncalledName is a directory beside the pins of maps until Called removes it. Maps without it have been
// called: also those of earlier agents, which made none.
const uncalledName = "uncalled"

// replacedName is one in the same place, if the maps are in the place of maps in force that were lost.
const replacedName = "replaced"

// asideSuffix ends the name of the directory of maps that were not called, while those in their place are
// completed.
const asideSuffix = "-aside"

// Mount mounts a bpffs at a directory if there is none.
func Mount(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read file system of %s: %w", dir, err)
	}
	if st.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs at %s: %w", dir, err)
	}
	return nil
}

// pins is the directory of one layout: the maps, and below it one directory for the programs of
// each object.
type pins struct {
	dir    string
	object string // objectID of the programs
	spec   *ebpf.CollectionSpec
	log    *slog.Logger
	found  Found
	// beside: new maps are made although pinned ones could be adopted.
	beside bool
	moved  string // the directory that they have then
}

func newPins(o Options, spec *ebpf.CollectionSpec) *pins {
	return &pins{dir: filepath.Join(o.BPFFS, o.Dir, layout), object: objectID(o.Object), spec: spec, log: o.Log}
}

const programsPrefix = "programs-"

func (p *pins) programsDir() string { return filepath.Join(p.dir, programsPrefix+p.object) }

// remove removes a pin or a directory of pins.
func (p *pins) remove(path, why string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove pin: %w", err)
	}
	p.found.Removed = append(p.found.Removed, filepath.Base(path)+": "+why)
	p.log.Warn("pin removed", "path", path, "why", why)
	return nil
}

// maps adopts the pinned maps, or replaces all of them. Half of them would not be closed: an
// address that lost its class may have more rights by class 0.
func (p *pins) maps() (map[string]*ebpf.Map, error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of pins: %w", err)
	}
	have, err := p.adoptMaps()
	switch {
	case err != nil:
		return have, err
	case len(have) == len(p.spec.Maps) && (p.beside || len(p.found.Sizes) > 0):
		return p.makeBeside(have)
	case len(have) == len(p.spec.Maps):
		p.found.Maps = Adopted
		return have, nil
	}
	p.found.Maps = Created
	for name, m := range have {
		_ = m.Close()
		if err := p.remove(filepath.Join(p.dir, name), "other maps of the layout are missing or damaged"); err != nil {
			return nil, err
		}
	}
	if (len(have) > 0 || len(p.found.Removed) > 0) && !uncalled(p.dir) {
		p.found.Maps = Replaced
	}
	return p.createMaps()
}

// uncalled reports whether nothing of a directory of maps is in force.
func uncalled(dir string) bool {
	return marked(dir, uncalledName)
}

func marked(dir, marker string) bool {
	_, err := os.Stat(filepath.Join(dir, marker))
	return err == nil
}

// makeBeside makes maps beside pinned ones. These get another directory, so that they are as those
// of another layout: their programs judge until the new maps are written and called. Pinned ones that
// have not been called are removed. Sizes that the kernel refuses leave everything as it is.
func (p *pins) makeBeside(have map[string]*ebpf.Map) (map[string]*ebpf.Map, error) {
	created, err := p.newMaps()
	if err != nil && p.beside {
		return have, err
	}
	if err != nil {
		p.found.Refused = fmt.Sprintf("maps keep their sizes (%s): %s", strings.Join(p.found.Sizes, ", "), err)
		p.found.Maps, p.found.Sizes = Adopted, nil
		for name, m := range have {
			p.spec.Maps[name].MaxEntries = m.MaxEntries()
		}
		return have, nil
	}
	p.found.Maps = Beside
	for _, m := range have {
		_ = m.Close()
	}
	to := p.dir + earlierSuffix
	if uncalled(p.dir) {
		to = p.dir + asideSuffix
	}
	if err = os.RemoveAll(to); err == nil {
		err = unix.Rename(p.dir, to) // of a bpffs: nothing to sync
	}
	if err != nil {
		return created, fmt.Errorf("move pins aside: %w", err)
	}
	p.moved = to
	return created, p.pin(created)
}

// moveBack gives pinned maps their directory again, after those beside them could not be completed.
func (p *pins) moveBack() error {
	if p.moved == "" {
		return nil
	}
	err := os.RemoveAll(p.dir)
	if err == nil {
		err = unix.Rename(p.moved, p.dir)
	}
	if err != nil {
		return fmt.Errorf("move pins back: %w", err)
	}
	return nil
}

// adoptMaps returns the pinned maps that are as they must be, and removes others.
func (p *pins) adoptMaps() (have map[string]*ebpf.Map, err error) {
	have = map[string]*ebpf.Map{}
	for _, name := range slices.Sorted(maps.Keys(p.spec.Maps)) {
		path := filepath.Join(p.dir, name)
		m, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			if err = p.compatible(name, m); err == nil {
				have[name] = m
				continue
			}
			_ = m.Close()
		}
		if denied(path, err) {
			return have, fmt.Errorf("%w: map %s: %w", errDenied, name, err)
		}
		if err := p.remove(path, err.Error()); err != nil {
			return have, err
		}
	}
	return have, nil
}

// errDenied means that the process may not open a pin, as SELinux can decide. That is no damage of it.
var errDenied = errors.New("a pin may not be opened")

// denied reports whether err, of opening a path, is such. The kernel gives the same error for a directory.
func denied(path string, err error) bool {
	if !errors.Is(err, fs.ErrPermission) {
		return false
	}
	is, unread := os.Stat(path)
	return unread != nil || !is.IsDir()
}

// compatible compares a pinned map with its description, and notes another size.
func (p *pins) compatible(name string, m *ebpf.Map) error {
	spec := p.spec.Maps[name]
	if m.Type() != spec.Type || m.KeySize() != spec.KeySize || m.ValueSize() != spec.ValueSize || m.Flags() != spec.Flags {
		return fmt.Errorf("it is %s, want %s", m, spec)
	}
	if m.MaxEntries() != spec.MaxEntries {
		if m.Type() == ebpf.Array || m.Type() == ebpf.PerCPUArray {
			return fmt.Errorf("it has %d entries, want %d", m.MaxEntries(), spec.MaxEntries)
		}
		p.found.Sizes = append(p.found.Sizes, fmt.Sprintf("%s: %d entries, configured are %d", name, m.MaxEntries(), spec.MaxEntries))
	}
	return nil
}

func (p *pins) createMaps() (map[string]*ebpf.Map, error) {
	all, err := p.newMaps()
	if err != nil {
		return nil, err
	}
	return all, p.pin(all)
}

// newMaps makes all maps; after an error none.
func (p *pins) newMaps() (map[string]*ebpf.Map, error) {
	all := map[string]*ebpf.Map{}
	for _, name := range slices.Sorted(maps.Keys(p.spec.Maps)) {
		m, err := ebpf.NewMap(p.spec.Maps[name])
		if err != nil {
			for _, m := range all {
				_ = m.Close()
			}
			return nil, fmt.Errorf("create map %s with %d entries: %w", name, p.spec.Maps[name].MaxEntries, explain(err, needed()))
		}
		all[name] = m
	}
	return all, nil
}

// pin pins new maps, which have not been called.
func (p *pins) pin(all map[string]*ebpf.Map) error {
	markers := []string{uncalledName}
	if p.found.Maps == Replaced {
		markers = []string{replacedName, uncalledName} // without the second one the first means nothing
	}
	for _, marker := range markers {
		if err := os.MkdirAll(filepath.Join(p.dir, marker), 0o700); err != nil {
			return fmt.Errorf("make directory of pins: %w", err)
		}
	}
	for name, m := range all {
		if err := m.Pin(filepath.Join(p.dir, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// programs adopts the pinned programs of this object, or loads them.
func (p *pins) programs(with map[string]*ebpf.Map) (map[string]*ebpf.Program, error) {
	dir := p.programsDir()
	p.found.Programs, p.found.Lost = Created, true
	if _, err := os.Stat(dir); err == nil {
		have, err := p.adoptPrograms(dir, with)
		if err == nil {
			p.found.Programs, p.found.Lost = Adopted, false
			return have, nil
		}
		if errors.Is(err, errDenied) {
			return nil, err
		}
		p.found.Programs = Replaced
		if err := p.remove(dir, err.Error()); err != nil {
			return nil, err
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(p.spec, ebpf.CollectionOptions{MapReplacements: with})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", explain(err, needed()))
	}
	all := collection.Programs
	collection.Programs = nil // Close keeps them
	collection.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return all, fmt.Errorf("make directory of pins: %w", err)
	}
	for name, program := range all {
		if err := program.Pin(filepath.Join(dir, name)); err != nil {
			return all, fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return all, nil
}

// adoptPrograms returns the programs that are pinned in a directory, if they are all there, are
// what they are called, and use the maps.
func (p *pins) adoptPrograms(dir string, with map[string]*ebpf.Map) (all map[string]*ebpf.Program, err error) {
	all = map[string]*ebpf.Program{}
	defer func() {
		if err != nil {
			for _, program := range all {
				_ = program.Close()
			}
		}
	}()
	ids := map[ebpf.MapID]bool{}
	for name, m := range with {
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("read map %s: %w", name, err)
		}
		id, _ := info.ID()
		ids[id] = true
	}
	for name, spec := range p.spec.Programs {
		path := filepath.Join(dir, name)
		program, err := ebpf.LoadPinnedProgram(path, nil)
		if denied(path, err) {
			return all, fmt.Errorf("%w: program %s: %w", errDenied, name, err)
		}
		if err != nil {
			return all, fmt.Errorf("pinned program %s: %w", name, err)
		}
		all[name] = program
		if err := usable(program, spec, ids); err != nil {
			return all, fmt.Errorf("pinned program %s: %w", name, err)
		}
	}
	return all, nil
}

// usable compares a pinned program with its description.
func usable(program *ebpf.Program, spec *ebpf.ProgramSpec, ids map[ebpf.MapID]bool) error {
	info, err := program.Info()
	if err != nil {
		return err
	}
	if info.Type != spec.Type || info.Name != spec.Name {
		return fmt.Errorf("it is %s of type %s, want %s of type %s", info.Name, info.Type, spec.Name, spec.Type)
	}
	used, _ := info.MapIDs()
	for _, id := range used {
		if !ids[id] {
			return fmt.Errorf("it uses map %d, which is not one of the pinned", id)
		}
	}
	if len(used) == 0 {
		return errors.New("it uses no map")
	}
	return nil
}

// finish removes the pins of earlier programs. A program that is still attached stays loaded without its
// pin.
func (p *pins) finish() (Found, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return p.found, fmt.Errorf("list pins: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(p.dir, e.Name())
		_, isMap := p.spec.Maps[e.Name()]
		switch {
		case isMap || path == p.programsDir() || e.Name() == uncalledName || e.Name() == replacedName:
		case strings.HasPrefix(e.Name(), programsPrefix):
			if p.found.Programs == Created {
				p.found.Programs, p.found.Lost = Replaced, false
			}
			err = p.remove(path, "programs of another object")
		default:
			err = p.remove(path, "not of this layout")
		}
		if err != nil {
			return p.found, err
		}
	}
	p.found.Uncalled = uncalled(p.dir)
	p.found.MapsLost = p.found.Uncalled && marked(p.dir, replacedName)
	if err := os.RemoveAll(p.dir + asideSuffix); err != nil {
		return p.found, fmt.Errorf("remove pins of maps that were not called: %w", err)
	}
	err = p.others()
	return p.found, err
}

// others lists other layouts, and the program of one that judges.
func (p *pins) others() error {
	parent, err := os.ReadDir(filepath.Dir(p.dir))
	if err != nil {
		return fmt.Errorf("list layouts: %w", err)
	}
	for _, e := range parent {
		if e.Name() == layout {
			continue
		}
		p.found.Old = append(p.found.Old, e.Name())
		if !p.found.Uncalled || uncalled(filepath.Join(filepath.Dir(p.dir), e.Name())) {
			continue // these maps are in force, or those are not
		}
		pinned, err := programOf(filepath.Join(filepath.Dir(p.dir), e.Name()))
		if err != nil {
			return err
		}
		if pinned != "" {
			p.found.Forward = pinned
		}
	}
	return nil
}

// programOf returns the pin of the program forward in the directory of a layout; empty without one.
func programOf(dir string) (string, error) {
	pinned, err := filepath.Glob(filepath.Join(dir, programsPrefix+"*", forward))
	if err != nil || len(pinned) == 0 {
		return "", err // of the pattern
	}
	return pinned[0], nil
}

// Called records that a rule of nftables, which was made for the programs of this datapath, calls them with these
// maps: they are adopted as what is in force.
func (d *Datapath) Called() error {
	for _, marker := range []string{uncalledName, replacedName} { // in this order: without the first one the second means nothing
		if err := os.Remove(filepath.Join(d.dir, marker)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("record that the policy programs are called: %w", err)
		}
	}
	d.found.Uncalled, d.found.MapsLost, d.found.Lost, d.found.Forward = false, false, false, ""
	return nil
}

// RetireLayout removes the pins of another layout, as Found.Old names it. Removing the absent is
// success.
func (d *Datapath) RetireLayout(name string) error {
	if name == layout || name != filepath.Base(name) || name == "." || name == ".." {
		return fmt.Errorf("retire layout %q: must be one of Found.Old", name)
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(d.dir), name)); err != nil {
		return fmt.Errorf("retire layout %s: %w", name, err)
	}
	return nil
}

// RetireLayouts retires all of Found.Old: what this datapath has is in force.
func (d *Datapath) RetireLayouts() error {
	for _, name := range d.found.Old {
		if err := d.RetireLayout(name); err != nil {
			return err
		}
	}
	d.found.Old = nil
	return nil
}

// Remove removes all pins of every layout: the programs end when they are detached too.
func (d *Datapath) Remove() error {
	if err := os.RemoveAll(filepath.Dir(d.dir)); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}
