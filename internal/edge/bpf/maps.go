package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Maps are the maps that the agent writes, except those of State, and the connections.
type Maps struct {
	Links       Map[uint32, uint32]  // ifindex of a pod's host end → endpoint
	Addresses   Map[Address, uint32] // address of a pod of this node → endpoint
	Sets        Map[uint32, Set]
	Classes     Map[ClassKey, uint32]
	Prefixes    Map[PrefixKey, uint32]
	Ports       Map[PortKey, uint32]
	PortRanges  Map[PortRangeKey, uint32]
	Rows        Map[RowKey, uint64]
	Connections Map[ConnectionKey, Connection]
}

func newMaps(raw map[string]*ebpf.Map) Maps {
	return Maps{
		Links:       Map[uint32, uint32]{raw[mapLinks], mapLinks},
		Addresses:   Map[Address, uint32]{raw[mapAddresses], mapAddresses},
		Sets:        Map[uint32, Set]{raw[MapSets], MapSets},
		Classes:     Map[ClassKey, uint32]{raw[MapClasses], MapClasses},
		Prefixes:    Map[PrefixKey, uint32]{raw[MapPrefixes], MapPrefixes},
		Ports:       Map[PortKey, uint32]{raw[MapPorts], MapPorts},
		PortRanges:  Map[PortRangeKey, uint32]{raw[MapPortRanges], MapPortRanges},
		Rows:        Map[RowKey, uint64]{raw[MapRows], MapRows},
		Connections: Map[ConnectionKey, Connection]{raw[MapConnections], MapConnections},
	}
}

// The names of maps, by which Options.Sizes and errors name them. The exported ones hold compiled
// policies.
const (
	MapSets        = "tl_sets"
	MapClasses     = "tl_classes"
	MapPrefixes    = "tl_prefixes"
	MapPorts       = "tl_ports"
	MapPortRanges  = "tl_port_ranges"
	MapConnections = "tl_connections"
	MapRows        = "tl_rows"
	mapLinks       = "tl_links"
	mapAddresses   = "tl_addresses"
)

// Map is a map of the kernel with its types.
type Map[K comparable, V any] struct {
	m    *ebpf.Map
	name string
}

// Clone returns the same map by another descriptor, which is valid after the datapath is closed.
func (m Map[K, V]) Clone() (Map[K, V], error) {
	same, err := m.m.Clone()
	if err != nil {
		return m, fmt.Errorf("clone the descriptor of map %s: %w", m.name, err)
	}
	return Map[K, V]{same, m.name}, nil
}

// Close releases the descriptor of a clone.
func (m Map[K, V]) Close() error { return m.m.Close() }

// batchSize is how many entries one system call reads or writes.
const batchSize = 4096

// Put writes an entry.
func (m Map[K, V]) Put(key K, value V) error {
	if err := m.m.Put(&key, &value); err != nil {
		if full(err) {
			return &FullError{Map: m.name, Size: int(m.m.MaxEntries())}
		}
		return fmt.Errorf("write %v to %s: %w", key, m.m, err)
	}
	return nil
}

// PutAll writes entries in few system calls. After an error, any number of them is written.
func (m Map[K, V]) PutAll(keys []K, values []V) error {
	for len(keys) > 0 {
		n := min(batchSize, len(keys))
		if _, err := m.m.BatchUpdate(keys[:n], values[:n], nil); err != nil {
			if full(err) {
				return &FullError{Map: m.name, Size: int(m.m.MaxEntries())}
			}
			return fmt.Errorf("write %d entries to %s: %w", n, m.m, err)
		}
		keys, values = keys[n:], values[n:]
	}
	return nil
}

// FullError is returned when a map has as many entries as its size. Its text is the same for every
// key: callers report it once however often they try again.
type FullError struct {
	Map  string
	Size int // entries
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the kernel map %s is full: its size is %d entries", e.Map, e.Size)
}

// full reports whether the kernel has refused an entry because of the map's size.
func full(err error) bool { return errors.Is(err, errTooBig) || errors.Is(err, errNoSpace) }

// Delete deletes an entry; deleting the absent is success.
func (m Map[K, V]) Delete(key K) error {
	if err := m.m.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete %v of %s: %w", key, m.m, err)
	}
	return nil
}

// Get reads an entry.
func (m Map[K, V]) Get(key K) (value V, ok bool, err error) {
	err = m.m.Lookup(&key, &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return value, false, nil
	}
	if err != nil {
		return value, false, fmt.Errorf("read %v of %s: %w", key, m.m, err)
	}
	return value, true, nil
}

// All reads all entries. One that is written or deleted meanwhile may be among them or not.
func (m Map[K, V]) All() (map[K]V, error) {
	all := map[K]V{}
	err := m.batches(func(keys []K, values []V) error {
		for i, key := range keys {
			all[key] = values[i]
		}
		return nil
	})
	return all, err
}

// batches calls fn with all entries, some thousand at a time.
func (m Map[K, V]) batches(fn func([]K, []V) error) error {
	if m.m.Type() == ebpf.LPMTrie {
		return m.each(fn) // kernels read the same entries of a trie again and again in batches
	}
	keys, values := make([]K, batchSize), make([]V, batchSize)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.m.BatchLookup(&cursor, keys, values, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return fmt.Errorf("read %s: %w", m.m, err)
		}
		if err := fn(keys[:n], values[:n]); err != nil || last {
			return err
		}
	}
}

// each calls fn with each entry alone.
func (m Map[K, V]) each(fn func([]K, []V) error) error {
	keys, values := make([]K, 1), make([]V, 1)
	entries := m.m.Iterate()
	for entries.Next(&keys[0], &values[0]) {
		if err := fn(keys, values); err != nil {
			return err
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read %s: %w", m.m, err)
	}
	return nil
}

// Counts reads how many connections were judged, by what decided them.
func (d *Datapath) Counts() (map[CountKey]uint64, error) {
	all := map[CountKey]uint64{}
	entries := d.raw["tl_counts"].Iterate()
	var key CountKey
	var each []uint64
	for entries.Next(&key, &each) {
		for _, n := range each {
			all[key] += n
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read counts: %w", err)
	}
	return all, nil
}

// DeleteCounts deletes the counts of a set that is no longer used.
func (d *Datapath) DeleteCounts(keys []CountKey) error {
	for _, key := range keys {
		if err := d.raw["tl_counts"].Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete counts %v: %w", key, err)
		}
	}
	return nil
}

// Drops reads how many packets were dropped, by reason.
func (d *Datapath) Drops() (map[Reason]uint64, error) {
	all := map[Reason]uint64{}
	for r := range reasons {
		var each []uint64
		if err := d.raw["tl_drops"].Lookup(uint32(r), &each); err != nil {
			return nil, fmt.Errorf("read drops: %w", err)
		}
		for _, n := range each {
			all[r] += n
		}
	}
	return all, nil
}
