package policy

// finish deletes what is not used any longer. Entries of addresses come first: none refers to
// a class without rows.
func (w *writer) finish() {
	for _, p := range w.pairs {
		w.deleteRows(p.set, p.class, p.list)
		w.touched[p.class] = struct{}{}
	}
	for _, s := range w.leaving {
		w.retire(s)
	}
	for class := range w.touched {
		if class.users > 0 || class == w.node.classes.none {
			continue
		}
		if class.from != nil {
			w.numbers.retire(class)
			continue
		}
		for _, s := range setsOf(class.matchers) {
			if _, written := s.rows[class]; written {
				w.deleteRows(s, class, class.matchers)
			}
		}
		w.node.classes.drop(class, w.numbers)
	}
	for _, s := range w.arriving {
		s.written = true
	}
	for b := range w.borders {
		b.old = b.new
		if b.refs == 0 {
			delete(w.node.blocks.borders, b.prefix)
			w.node.blocks.lengths[family(b.prefix.Addr())][b.prefix.Bits()]--
		}
	}
}

// retire deletes a set that no endpoint has.
func (w *writer) retire(s *set) {
	after := &w.change.After
	if s.own != nil {
		for a := range s.own.entries {
			*after = append(*after, Delete[ClassKey]{ClassKey{s.own.id, a}})
		}
		for _, b := range s.own.blocks.borders {
			if b.new != nil {
				*after = append(*after, Delete[PrefixKey]{PrefixKey{s.own.id, b.prefix}})
			}
		}
		for class := range s.rows {
			w.numbers.retire(class)
		}
	} else {
		for _, m := range s.matchers {
			m.leaving--
			delete(m.sets, s)
		}
	}
	for class := range s.rows {
		w.deleteRows(s, class, class.matchers)
	}
	w.deleteRows(s, w.node.classes.none, nil)
	*after = append(*after, Delete[SetID]{s.id})
	if s.ports.sets--; s.ports.sets == 0 {
		*after = s.ports.deletes(*after)
		delete(w.ports, s.ports.key)
	}
	if w.inForce[s.key] == s {
		delete(w.inForce, s.key)
	}
	w.retired = append(w.retired, s)
}
