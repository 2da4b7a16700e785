package policy

import (
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// pairRow is a set that has rows of a transitional class.
type pairRow struct {
	set   *set
	class *class
	list  []*matcher
}

// writer lists the operations of a commit.
type writer struct {
	*commit
	change    Change
	vias      map[[2]*class]*class // by old and new class
	pairs     []pairRow
	forbidden map[[2]*class]bool
}

// write lists the operations.
func (w *writer) write() {
	for _, s := range w.leaving {
		s.leaves = true
	}
	w.writeSets()
	for a := range w.moves {
		w.complete(a, w.moves[a])
	}
	w.constants()
	for b := range w.borders {
		w.writeBorder(b)
	}
	for a, m := range w.moves {
		key := ClassKey{w.node.id, a}
		w.writeMove(m, func(class *class) Operation { return Put[ClassKey, Class]{key, class.id} }, Delete[ClassKey]{key})
	}
	for _, s := range w.staying {
		if s.own != nil {
			w.updateOwn(s)
		}
	}
	w.switchEndpoints()
}

// complete finds the classes by which an address without an entry was or is judged.
func (w *writer) complete(a netip.Addr, m *move) {
	if m.had && m.has {
		return
	}
	old, new := w.node.classes.none, w.node.classes.none
	var foundOld, foundNew bool
	w.node.blocks.covering(netip.PrefixFrom(a, a.BitLen()), func(b *border) bool {
		if !single(b.prefix) && !foundOld && b.old != nil {
			old, foundOld = b.old, true
		}
		if !single(b.prefix) && !foundNew && b.new != nil {
			new, foundNew = b.new, true
		}
		return !foundOld || !foundNew
	})
	if !m.had {
		m.old = old
	}
	if !m.has {
		m.new = new
	}
}

// writeSets writes the sets that arrive, with their ports and rows.
func (w *writer) writeSets() {
	for _, s := range w.arriving {
		if !s.ports.written {
			s.ports.written = true
			w.change.Before = s.ports.puts(w.change.Before)
		}
		if s.alone {
			w.writeOwn(s)
		}
		w.change.Before = append(w.change.Before, Put[SetID, Set]{s.id, s.content(w.node.id)})
		s.rowsOf(0, nil, w.putRow)
		if s.alone {
			continue
		}
		for class := range s.classes() {
			if class.counted {
				w.ensureRow(s, class)
			}
		}
	}
}

func (w *writer) putRow(key RowKey, row uint64) {
	w.change.Before = append(w.change.Before, Put[RowKey, uint64]{key, row})
}

// ensureRow writes the rows of a set for a class, unless they are written.
func (w *writer) ensureRow(s *set, class *class) {
	if _, written := s.rows[class]; written || !s.touches(class.matchers) {
		return
	}
	s.rows[class] = struct{}{}
	s.rowsOf(class.id, class.matchers, w.putRow)
}

// ensureRows writes the rows of all sets for a class.
func (w *writer) ensureRows(class *class) {
	if class.from == nil {
		for _, s := range setsOf(class.matchers) {
			w.ensureRow(s, class)
		}
		return
	}
	seen := map[*set]struct{}{}
	for _, s := range append(setsOf(class.from.matchers), setsOf(class.to.matchers)...) {
		if _, known := seen[s]; known {
			continue
		}
		seen[s] = struct{}{}
		if list := class.of(s.leaves); s.touches(list) {
			s.rowsOf(class.id, list, w.putRow)
			w.pairs = append(w.pairs, pairRow{s, class, list})
		}
	}
}

// via is the class that an address has while endpoints switch: sets that leave judge it as
// before, others as afterwards.
func (w *writer) via(m *move) *class {
	key := [2]*class{m.old, m.new}
	via, known := w.vias[key]
	if !known {
		via = w.findVia(m.old, m.new)
		w.vias[key] = via
		w.touched[via] = struct{}{}
		w.ensureRows(via)
		w.ensureRows(m.new)
	}
	return via
}

func (w *writer) findVia(old, new *class) *class {
	isNew := func(m *matcher) bool { return m.scoped > 0 }
	switch {
	case sameOf(old.matchers, new.matchers, isNew):
		return old
	case sameOf(old.matchers, new.matchers, func(m *matcher) bool { return m.leaving > 0 }):
		return new
	case sameOf(old.matchers, new.matchers, func(m *matcher) bool { return isNew(m) && w.wasScoped(m) }):
		return w.node.classes.of(union(old.matchers, new.matchers), w.numbers)
	}
	via := &class{from: old, to: new}
	w.numbers.number(via)
	return via
}

func (w *writer) wasScoped(m *matcher) bool {
	was, noted := w.scoped[m]
	return noted && was || !noted && m.scoped > 0
}

// idle reports whether the tables stay as they are.
func (m *move) idle() bool { return !m.had && !m.has || m.had && m.has && m.old == m.new }

// writeMove writes the class of an address or range.
func (w *writer) writeMove(m *move, put func(*class) Operation, remove Operation) {
	if m.idle() {
		return
	}
	via := w.via(m)
	neutral := via.from == nil && sameOf(m.old.matchers, via.matchers, w.wasScoped)
	stage := &w.change.Before
	if !neutral {
		stage = &w.change.Switch
		w.change.Epoch = w.change.Epoch || w.forbids(m.old, via)
	}
	after := &w.change.After
	if !m.has && !w.leavesScope() { // ranges give it the new class
		if !neutral {
			after = &w.change.Switch
		}
		*after = append(*after, remove)
		return
	}
	if !m.had || via != m.old {
		*stage = append(*stage, put(via))
	}
	switch {
	case !m.has:
		*after = append(*after, remove)
	case via != m.new:
		*after = append(*after, put(m.new))
	}
}

// leavesScope reports whether a set of the node's scope leaves.
func (w *writer) leavesScope() bool {
	for _, s := range w.leaving {
		if s.own == nil {
			return true
		}
	}
	return false
}

// forbids reports whether a set that stays allows something to the old class that it denies
// to the new one.
func (w *writer) forbids(old, new *class) bool {
	key := [2]*class{old, new}
	forbids, known := w.forbidden[key]
	if !known {
		list := new.of(false)
		for _, s := range setsOf(union(old.matchers, list)) {
			forbids = forbids || !s.leaves && s.written && s.forbids(old.matchers, list)
		}
		w.forbidden[key] = forbids
	}
	return forbids
}

func (w *writer) writeBorder(b *border) {
	if single(b.prefix) {
		return
	}
	m := &move{had: b.old != nil, has: b.refs > 0, old: b.old, new: b.new}
	if !m.had {
		m.old = w.node.classes.none
		w.node.blocks.covering(b.prefix, func(outer *border) bool {
			if outer.old != nil {
				m.old = outer.old
			}
			return outer.old == nil
		})
	}
	key := PrefixKey{w.node.id, b.prefix}
	w.writeMove(m, func(class *class) Operation { return Put[PrefixKey, Class]{key, class.id} }, Delete[PrefixKey]{key})
}

// constants switches endpoints that have no compiled set any longer.
func (w *writer) constants() {
	for id := range w.pending.gone {
		if _, again := w.endpoints[id]; !again {
			w.change.Switch = append(w.change.Switch, Delete[endpoint.ID]{id})
		}
	}
	for l := range w.locals() {
		if l.next == nil && l.number != l.to {
			w.change.Switch = append(w.change.Switch, Put[endpoint.ID, SetID]{l.id, l.to})
		}
	}
}

func (w *writer) switchEndpoints() {
	for l := range w.locals() {
		if l.next != nil && l.number != l.to {
			w.change.Switch = append(w.change.Switch, Put[endpoint.ID, SetID]{l.id, l.to})
		}
		l.set, l.number = l.next, l.to
	}
}

// writeOwn writes the scope of a set that arrives.
func (w *writer) writeOwn(s *set) {
	w.own(s)
	for a, class := range s.own.entries {
		w.change.Before = append(w.change.Before, Put[ClassKey, Class]{ClassKey{s.own.id, a}, class.id})
	}
	for _, b := range s.own.blocks.borders {
		if b.new != nil {
			w.change.Before = append(w.change.Before, Put[PrefixKey, Class]{PrefixKey{s.own.id, b.prefix}, b.new.id})
		}
	}
	for _, class := range s.own.classes.byKey {
		w.ensureOwnRow(s, class)
	}
}

func (w *writer) ensureOwnRow(s *set, class *class) {
	if _, written := s.rows[class]; !written && class.id != 0 {
		s.rows[class] = struct{}{}
		s.rowsOf(class.id, class.matchers, w.putRow)
	}
}

// updateOwn gives the peers that changed their classes of a set's own scope.
func (w *writer) updateOwn(s *set) {
	touched := map[*class]struct{}{}
	for _, a := range w.addresses {
		old, new := w.ownEntry(s.own, a)
		if old == new {
			continue
		}
		key, before, after := ClassKey{s.own.id, a}, old, new
		if new == nil {
			after = s.own.effective(a)
			w.change.Switch = append(w.change.Switch, Delete[ClassKey]{key})
		} else {
			w.ensureOwnRow(s, new)
			w.change.Switch = append(w.change.Switch, Put[ClassKey, Class]{key, new.id})
		}
		if old == nil {
			before = s.own.effective(a)
		} else {
			touched[old] = struct{}{}
		}
		w.change.Epoch = w.change.Epoch || lessAllowed(before.key, after.key)
	}
	for class := range touched {
		if class.users == 0 && class.id != 0 {
			delete(s.own.classes.byKey, class.key)
			w.deleteRows(s, class, class.matchers)
			w.numbers.retire(class)
		}
	}
}

// lessAllowed reports whether verdicts of the old key are missing in the new one.
func lessAllowed(old, new string) bool {
	for i := range min(len(old), len(new)) {
		if old[i]&^new[i] != 0 {
			return true
		}
	}
	return false
}

func (w *writer) deleteRows(s *set, class *class, list []*matcher) {
	delete(s.rows, class)
	s.rowsOf(class.id, list, func(key RowKey, _ uint64) { w.change.After = append(w.change.After, Delete[RowKey]{key}) })
}
