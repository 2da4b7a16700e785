package bpf

import (
	"encoding/binary"
	"path/filepath"
)

// Numbers are the largest of each kind that the maps have an entry of. An agent that starts
// compiles with larger ones, so that nothing of an earlier one is taken for its own.
type Numbers struct{ Set, Scope, Ports uint32 }

// Numbers reads the maps.
func (d *Datapath) Numbers() (n Numbers, err error) {
	err = d.numbered(func(kind *uint32, number uint32) bool {
		*kind = max(*kind, number)
		return false
	}, &n)
	return n, err
}

// DeleteUpTo deletes the entries with numbers of an earlier agent, which no endpoint has in
// force any longer.
func (d *Datapath) DeleteUpTo(n Numbers) error {
	return d.numbered(func(kind *uint32, number uint32) bool { return number <= *kind }, &n)
}

// numbered calls f with each number of each entry and the field of n of its kind, and deletes
// the entries for which it is true.
func (d *Datapath) numbered(f func(kind *uint32, number uint32) bool, n *Numbers) error {
	if err := deleteIf(d.Maps.Sets, func(key uint32, s Set) bool {
		f(&n.Scope, s.Scope)
		f(&n.Ports, s.Ports)
		return f(&n.Set, key)
	}); err != nil {
		return err
	}
	if err := deleteIf(d.Maps.Rows, func(key RowKey, _ uint64) bool { return f(&n.Set, key.Set) }); err != nil {
		return err
	}
	if err := deleteIf(d.Maps.Classes, func(key ClassKey, _ uint32) bool { return f(&n.Scope, key.Scope) }); err != nil {
		return err
	}
	if err := deleteIf(d.Maps.Prefixes, func(key PrefixKey, _ uint32) bool { return f(&n.Scope, binary.BigEndian.Uint32(key.Scope[:])) }); err != nil {
		return err
	}
	if err := deleteIf(d.Maps.Ports, func(key PortKey, _ uint32) bool { return f(&n.Ports, key.Ports) }); err != nil {
		return err
	}
	return deleteIf(d.Maps.PortRanges, func(key PortRangeKey, _ uint32) bool { return f(&n.Ports, binary.BigEndian.Uint32(key.Ports[:])) })
}

// deleteIf deletes entries of a map, after all have been read.
func deleteIf[K comparable, V any](m Map[K, V], unwanted func(K, V) bool) error {
	var keys []K
	err := m.batches(func(batch []K, values []V) error {
		for i, key := range batch {
			if unwanted(key, values[i]) {
				keys = append(keys, key)
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

// ForwardPath is the pin of the program that a rule of nftables calls. Another program has
// another path.
func (d *Datapath) ForwardPath() string {
	return filepath.Join(d.dir, programsPrefix+d.object, forward)
}
