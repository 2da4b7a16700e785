package hostnet

import (
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Part is the part of a node's desired network that one owner needs: the node itself, an
// interface, or an endpoint. No two parts have an object in common, except that the link
// of an endpoint that is being removed can have the name of its successor's.
type Part struct {
	Owner string // unique: "node", "interface eni-1", "endpoint 12"
	State State
}

// Equal reports whether two parts are the same.
func (p Part) Equal(o Part) bool {
	a, b := p.State, o.State
	return p.Owner == o.Owner && slices.Equal(a.Links, b.Links) && slices.Equal(a.Addresses, b.Addresses) &&
		slices.Equal(a.Routes, b.Routes) && slices.Equal(a.Rules, b.Rules) && slices.Equal(a.Neighbours, b.Neighbours) &&
		slices.Equal(a.Sysctls, b.Sysctls) && slices.Equal(a.Absent, b.Absent) && slices.Equal(a.Moved, b.Moved) && slices.Equal(a.Leave, b.Leave)
}

// Actual is the actual state of a node's network, indexed for the comparison with parts.
type Actual struct {
	have       State
	links      map[string]Link
	addresses  map[string][]Address   // by link
	neighbours map[string][]Neighbour // by link
	routes     map[string][]Route     // by key
	local      map[netip.Prefix][]Route
	rules      map[string]Rule // by key
}

// NewActual indexes an actual state.
func NewActual(have State) *Actual {
	a := &Actual{
		have: have, links: map[string]Link{}, addresses: map[string][]Address{}, neighbours: map[string][]Neighbour{},
		routes: map[string][]Route{}, local: map[netip.Prefix][]Route{}, rules: index(have.Rules),
	}
	for _, l := range have.Links {
		a.links[l.Name] = l
	}
	for _, o := range have.Addresses {
		a.addresses[o.Link] = append(a.addresses[o.Link], o)
	}
	for _, n := range have.Neighbours {
		a.neighbours[n.Link] = append(a.neighbours[n.Link], n)
	}
	for _, r := range have.Routes {
		a.routes[r.Key()] = append(a.routes[r.Key()], r)
	}
	for _, r := range have.Local {
		a.local[r.To] = append(a.local[r.To], r)
	}
	return a
}

// Diff returns the steps that make the actual state agree with one part, as the function
// Diff does for the whole state: they are about the part's objects, and the addresses and
// neighbours on its links.
func (a *Actual) Diff(part State) []Op { return Diff(part, a.about(part)) }

// Difference is an object that differs from a part, or that cannot be compared.
type Difference struct {
	// Object is its key: a route that conflicts with another one is the same difference
	// once it is missing.
	Object string
	// Why is the difference, for messages; empty if the object cannot be compared, because
	// it is on a link that is not usable.
	Why string
}

// Differences lists how the actual state differs from one part.
func (a *Actual) Differences(part State) (differences []Difference) {
	for _, op := range a.Diff(part) {
		differences = append(differences, Difference{Object: op.Object.Key(), Why: op.Difference()})
		if l, ok := op.Object.(Link); ok && op.Verb == Report {
			for _, o := range part.On(l.Name) {
				differences = append(differences, Difference{Object: o.Key()})
			}
		}
	}
	return differences
}

// Remove returns the steps that delete what the actual state has of a part. Objects that
// the parts in keep need stay, and so does a link of the same name with another MAC. Rules that
// were moved for the part are put back before.
func (a *Actual) Remove(part State, keep []Part) []Op {
	kept := objectsOf(keep)
	part.Links = slices.DeleteFunc(slices.Clone(part.Links), func(l Link) bool {
		return l.MAC != (vpc.MAC{}) && a.links[l.Name].MAC != l.MAC
	})
	var ops []Op
	for _, m := range part.Moved {
		if _, there := a.rules[m.Key()]; !there {
			ops = append(ops, Op{Add, m, "was moved for what is removed"})
		}
	}
	for _, op := range Diff(State{}, a.about(part)) {
		if !kept.needs(op.Object) {
			ops = append(ops, op)
		}
	}
	return ops
}

// Extra returns the steps that delete the objects of ours that no part has. Addresses and
// neighbours on the links of parts are for Diff.
func (a *Actual) Extra(parts []Part) []Op {
	states := make([]State, len(parts))
	for i, p := range parts {
		states[i] = p.State
	}
	kept := objectsOf(parts)
	var ops []Op
	for _, op := range Diff(Join(states...), a.have) {
		if op.Verb == Delete && !kept.needs(op.Object) {
			ops = append(ops, op)
		}
	}
	return ops
}

// about returns what the actual state has of a part's objects, with every address and
// neighbour on its links.
func (a *Actual) about(part State) State {
	var s State
	for _, l := range part.Links {
		if h, ok := a.links[l.Name]; ok {
			s.Links = append(s.Links, h)
		}
		s.Addresses = append(s.Addresses, a.addresses[l.Name]...)
		s.Neighbours = append(s.Neighbours, a.neighbours[l.Name]...)
	}
	for _, r := range part.Routes {
		s.Local = append(s.Local, a.local[r.To]...)
	}
	seen := map[string]bool{}
	for _, r := range slices.Concat(part.Routes, part.Absent) {
		key := r.Key()
		if !seen[key] {
			s.Routes = append(s.Routes, a.routes[key]...)
		}
		seen[key] = true
	}
	for _, r := range part.Absent { // with any other metric too
		for _, h := range a.have.Routes {
			if h.Table == r.Table && h.To == r.To && h.Link == r.Link && !seen[h.Key()] {
				s.Routes = append(s.Routes, h)
			}
		}
	}
	for _, r := range slices.Concat(part.Rules, part.Moved) {
		if h, ok := a.rules[r.Key()]; ok {
			s.Rules = append(s.Rules, h)
		}
	}
	return s
}

// objects are the keys of the objects of parts, and the names of their links.
type objects struct{ keys, links map[string]bool }

func objectsOf(parts []Part) objects {
	all := objects{map[string]bool{}, map[string]bool{}}
	for _, p := range parts {
		for _, o := range p.State.Objects() {
			all.keys[o.Key()] = true
		}
		for _, l := range p.State.Links {
			all.links[l.Name] = true
		}
	}
	return all
}

// needs reports whether an object is one of a part, or an address or neighbour on the link
// of one.
func (all objects) needs(o Object) bool {
	switch o := o.(type) {
	case Address:
		return all.links[o.Link]
	case Neighbour:
		return all.links[o.Link]
	case Route:
		return !o.Ours() || all.keys[o.Key()] // the kernel's are for Absent
	}
	return all.keys[o.Key()]
}
