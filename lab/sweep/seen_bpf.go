package sweep

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// bpfObjects lists all programs, maps and links of the kernel, pinned or not, by ID, type
// and name. Without the permission to list them, it lists none.
func (all things) bpfObjects() error {
	for _, list := range []func(things) error{things.bpfPrograms, things.bpfMaps, things.bpfLinks} {
		if err := list(all); err != nil && !errors.Is(err, os.ErrPermission) && !errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("list BPF objects: %w", err)
		}
	}
	return nil
}

func (all things) bpf(id, line string) { all[id] = thing{"bpf", id + ": " + line} }

func (all things) bpfPrograms() error {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			return err
		}
		about, err := p.Info()
		if err = errors.Join(err, p.Close()); err != nil {
			return err
		}
		all.bpf(fmt.Sprintf("prog %d", id), fmt.Sprintf("%s %s", about.Type, about.Name))
	}
}

func (all things) bpfMaps() error {
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		id = next
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			return err
		}
		about, err := m.Info()
		if err = errors.Join(err, m.Close()); err != nil {
			return err
		}
		all.bpf(fmt.Sprintf("map %d", id), fmt.Sprintf("%s %s", about.Type, about.Name))
	}
}

func (all things) bpfLinks() error {
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		about, err := it.Link.Info()
		if err != nil {
			return err
		}
		all.bpf(fmt.Sprintf("link %d", it.ID), fmt.Sprintf("type %d of prog %d", about.Type, about.Program))
	}
	return it.Err()
}
