package bpf

import (
	"encoding/binary"
	"path/filepath"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Numbers are the largest of each kind that the maps have an entry of. An agent that starts
// compiles with larger ones, so that nothing of an earlier one is taken for its own.
type Numbers struct{ Set, Scope, Ports uint32 }

// Entries are how many entries the maps of compiled policies have, by their names.
type Entries map[string]int

// DeleteUnused deletes the entries of compiled policies that no endpoint has in force: those of
// earlier versions, and of a change that was not finished. Sets of keep stay too. It returns
// the largest numbers that it found, of deleted entries too, and how many entries stay. The caller
// switches no endpoint meanwhile.
func (d *Datapath) DeleteUnused(keep ...uint32) (found Numbers, stay Entries, err error) {
	used := inForce{sets: map[uint32]bool{}, scopes: map[uint32]bool{}, ports: map[uint32]bool{}}
	for id := endpoint.ID(1); id <= endpoint.MaxID; id++ {
		set := d.State.InForce(id)
		used.sets[set] = true
		found.Set = max(found.Set, set)
	}
	for _, set := range keep {
		used.sets[set] = true
	}
	stay = Entries{}
	sets, err := d.Maps.Sets.All()
	if err != nil {
		return found, stay, err
	}
	for number, set := range sets {
		if used.sets[number] {
			used.scopes[set.Scope], used.ports[set.Ports] = true, true
		}
		found.Scope, found.Ports = max(found.Scope, set.Scope), max(found.Ports, set.Ports)
	}
	if err := WaitForPrograms(); err != nil { // which may judge by what was in force before
		return found, stay, err
	}
	return found, stay, d.delete(used, &found, stay)
}

// inForce are the numbers that sets in force refer to, and these sets.
type inForce struct{ sets, scopes, ports map[uint32]bool }

// delete deletes the entries of other numbers.
func (d *Datapath) delete(used inForce, found *Numbers, stay Entries) error {
	unused := func(of map[uint32]bool, largest *uint32, number uint32) bool {
		*largest = max(*largest, number)
		return !of[number]
	}
	set := func(number uint32) bool { return unused(used.sets, &found.Set, number) }
	scope := func(number uint32) bool { return unused(used.scopes, &found.Scope, number) }
	ports := func(number uint32) bool { return unused(used.ports, &found.Ports, number) }
	for _, do := range []func() error{
		func() error { return deleteIf(d.Maps.Sets, stay, func(key uint32) bool { return set(key) }) },
		func() error { return deleteIf(d.Maps.Rows, stay, func(key RowKey) bool { return set(key.Set) }) },
		func() error {
			return deleteIf(d.Maps.Classes, stay, func(key ClassKey) bool { return scope(key.Scope) })
		},
		func() error {
			return deleteIf(d.Maps.Prefixes, stay, func(key PrefixKey) bool { return scope(binary.BigEndian.Uint32(key.Scope[:])) })
		},
		func() error { return deleteIf(d.Maps.Ports, stay, func(key PortKey) bool { return ports(key.Ports) }) },
		func() error {
			return deleteIf(d.Maps.PortRanges, stay, func(key PortRangeKey) bool { return ports(binary.BigEndian.Uint32(key.Ports[:])) })
		},
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// deleteIf deletes entries of a map, after all have been read, and notes how many stay.
func deleteIf[K comparable, V any](m Map[K, V], stay Entries, unwanted func(K) bool) error {
	var keys []K
	err := m.batches(func(batch []K, _ []V) error {
		for _, key := range batch {
			if unwanted(key) {
				keys = append(keys, key)
			} else {
				stay[m.name]++
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// Size is the largest number of entries of a map, by its name; 0 if there is no such map.
func (d *Datapath) Size(name string) int {
	if m := d.raw[name]; m != nil {
		return int(m.MaxEntries())
	}
	return 0
}

// ForwardPath is the pin of the program that a rule of nftables calls. Another program has
// another path.
func (d *Datapath) ForwardPath() string {
	return filepath.Join(d.dir, programsPrefix+d.object, forward)
}
