package sweep

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// bpfObjects lists every program, map and link the kernel has, pinned or not, by
// number, type and name. One that only others' processes hold is theirs. Without
// the right to list them there are none to see.
func (s Snapshot) bpfObjects(held holders) error {
	lists := []func(Snapshot, holders) error{Snapshot.bpfPrograms, Snapshot.bpfMaps, Snapshot.bpfLinks}
	for _, list := range lists {
		if err := list(s, held); err != nil && !errors.Is(err, os.ErrPermission) && !errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("list BPF objects: %w", err)
		}
	}
	return nil
}

func (s Snapshot) bpf(held holders, id, line string) {
	if !held.byOthers(id) {
		s.add("bpf", "%s: %s", id, line)
	}
}

func (s Snapshot) bpfPrograms(held holders) error {
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
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		about, err := p.Info()
		if err = errors.Join(err, p.Close()); err != nil {
			return err
		}
		s.bpf(held, fmt.Sprintf("prog %d", id), fmt.Sprintf("%s %s", about.Type, about.Name))
	}
}

func (s Snapshot) bpfMaps(held holders) error {
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
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		about, err := m.Info()
		if err = errors.Join(err, m.Close()); err != nil {
			return err
		}
		s.bpf(held, fmt.Sprintf("map %d", id), fmt.Sprintf("%s %s", about.Type, about.Name))
	}
}

func (s Snapshot) bpfLinks(held holders) error {
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		about, err := it.Link.Info()
		if err != nil {
			return err
		}
		s.bpf(held, fmt.Sprintf("link %d", it.ID), fmt.Sprintf("type %d of prog %d", about.Type, about.Program))
	}
	return it.Err()
}
