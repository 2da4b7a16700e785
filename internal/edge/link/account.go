package link

import (
	"maps"
	"sync"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// account records the objects that this process left in the kernel, and those that its
// operations in flight change. It distinguishes external changes from our own: drift is a
// difference between the kernel and what we left there, even if the desired state has
// changed since. Reading the kernel takes time, during which operations go on; objects
// that they changed meanwhile cannot be compared with that observation.
type account struct {
	mu       sync.Mutex
	left     map[string]hostnet.Object // by key; an external change to one is drift
	observed bool                      // before the first observation, objects not in left may be an earlier process's
	open     map[string]int            // operations in flight on a key
	ended    map[string]uint64         // when the last one ended, by clock
	unsure   map[string]bool           // an operation failed: its effect is unknown until the next observation
	clock    uint64
}

func newAccount() *account {
	return &account{left: map[string]hostnet.Object{}, open: map[string]int{}, ended: map[string]uint64{}, unsure: map[string]bool{}}
}

// expect records objects that are left in the kernel from now on.
func (a *account) expect(s hostnet.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range s.Objects() {
		a.left[o.Key()] = o
	}
}

// forget records objects that we deleted.
func (a *account) forget(s hostnet.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range s.Objects() {
		if same(a.left[o.Key()], o) {
			delete(a.left, o.Key())
		}
	}
}

// same reports whether two objects of one key are the same: a link is identified by its
// alias, in any admin state.
func same(a, b hostnet.Object) bool {
	x, ok := a.(hostnet.Link)
	y, also := b.(hostnet.Link)
	if ok && also {
		return x.Alias == y.Alias
	}
	return a == b
}

// putting begins an operation that leaves s in the kernel; the returned function ends it.
// Its objects are expected at once, so that an immediate external change is reported;
// links at the end, because several steps configure them.
func (a *account) putting(s hostnet.State) (end func(err error)) {
	rest := s
	rest.Links = nil
	ended := a.work(s, func() { a.expect(rest) })
	return func(err error) {
		if err == nil {
			a.expect(hostnet.State{Links: s.Links})
		}
		ended(err)
	}
}

// taking begins an operation that deletes s from the kernel.
func (a *account) taking(s hostnet.State) (end func(err error)) {
	return a.work(s, func() { a.forget(s) })
}

func (a *account) work(s hostnet.State, change func()) (end func(err error)) {
	objects := s.Objects()
	before := make(map[string]hostnet.Object, len(objects))
	a.mu.Lock()
	for _, o := range objects {
		a.open[o.Key()]++
		before[o.Key()] = a.left[o.Key()]
	}
	a.mu.Unlock()
	change()
	return func(err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.clock++
		for key, was := range before {
			if a.open[key]--; a.open[key] == 0 {
				delete(a.open, key)
			}
			a.ended[key] = a.clock
			if err != nil {
				a.unsure[key] = true
				a.restore(key, was)
			}
		}
	}
}

// restore resets the record of a key; call it with mu held.
func (a *account) restore(key string, was hostnet.Object) {
	if was == nil {
		delete(a.left, key)
	} else {
		a.left[key] = was
	}
}

// expected returns the object that should have a key, nil if none.
func (a *account) expected(key string) hostnet.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left[key]
}

// renamed reports whether an unexpected link has the MAC of a link that is expected under
// another name.
func (a *account) renamed(have hostnet.Link) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.left[have.Key()]; known || have.MAC == (vpc.MAC{}) {
		return false
	}
	for _, o := range a.left {
		if l, ok := o.(hostnet.Link); ok && l.MAC == have.MAC {
			return true
		}
	}
	return false
}

// settled is expected, but nil while an operation on the key is in flight.
func (a *account) settled(key string) hostnet.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[key] > 0 {
		return nil
	}
	return a.left[key]
}

// working reports whether an operation on a key is in flight.
func (a *account) working(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open[key] > 0
}

// observe begins an observation of the kernel and returns its time.
func (a *account) observe() (since uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.ended, func(_ string, at uint64) bool { return at <= a.clock })
	return a.clock
}

// verdict is the cause of a difference.
type verdict uint8

const (
	external verdict = iota // an external change of what we left
	own                     // the desired state has changed; this pass applies it
	inFlight                // an operation is in flight on it, or was during the observation
)

// attribute returns the cause of each difference between an observation of the kernel and
// target, and sets the account to target, as if all of them were applied; failed reverts
// that for one.
func (a *account) attribute(since uint64, target, have hostnet.State, ops []hostnet.Op) (verdicts []verdict, failed func(hostnet.Op)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verdicts = make([]verdict, len(ops))
	gone := map[string]bool{} // desired, missing, and not repairable
	for _, o := range target.Objects() {
		gone[o.Key()] = true
	}
	for _, o := range have.Objects() {
		delete(gone, o.Key())
	}
	for i, op := range ops {
		key := op.Object.Key()
		verdicts[i] = a.verdict(since, op)
		switch op.Verb {
		case hostnet.Add, hostnet.Change:
			delete(gone, key)
		case hostnet.Report:
			gone[key] = true
		case hostnet.Delete:
		}
	}
	before := a.left
	a.take(since, target, gone)
	return verdicts, func(op hostnet.Op) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.restore(op.Object.Key(), before[op.Object.Key()])
	}
}

// verdict returns the cause of one difference; call it with mu held.
func (a *account) verdict(since uint64, op hostnet.Op) verdict {
	key := op.Object.Key()
	was, known := a.left[key]
	switch {
	case a.workedOn(op.Object, since):
		return inFlight
	case a.unsure[key]:
		return own
	case op.Verb != hostnet.Delete && (!known || was != op.Object):
		return own // it was missing or different in what we left
	case op.Verb == hostnet.Delete && (known || !a.observed || !a.ourLink(op.Object)):
		return own
	}
	return external
}

// busy reports whether an operation on an object was in flight at any time since.
func (a *account) busy(o hostnet.Object, since uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workedOn(o, since)
}

// workedOn reports whether an operation on an object, or on the link it needs, was in
// flight at any time since: the operation that wires a link also sets its routes and
// neighbours. Call it with mu held.
func (a *account) workedOn(o hostnet.Object, since uint64) bool {
	link := linkUnder(o)
	return a.worked(o.Key(), since) || link != "" && a.worked(hostnet.Link{Name: link}.Key(), since)
}

// linkUnder returns the name of the link that an object needs, empty if none.
func linkUnder(o hostnet.Object) string {
	switch o := o.(type) {
	case hostnet.Address:
		return o.Link
	case hostnet.Neighbour:
		return o.Link
	case hostnet.Route:
		return o.Link
	}
	return ""
}

// worked reports whether an operation on a key was in flight at any time since; call it
// with mu held.
func (a *account) worked(key string, since uint64) bool {
	return a.open[key] > 0 || a.ended[key] > since
}

// ourLink reports whether an object is on a link that we have set up. On a link that is
// still being set up, a difference is not drift. Call it with mu held.
func (a *account) ourLink(o hostnet.Object) bool {
	link := linkUnder(o)
	if r, ok := o.(hostnet.Route); ok && r.Ours() {
		link = ""
	}
	return link == "" || a.left[hostnet.Link{Name: link}.Key()] != nil
}

// take records target as left, except objects that are gone or have an operation in
// flight; call it with mu held.
func (a *account) take(since uint64, target hostnet.State, gone map[string]bool) {
	left := make(map[string]hostnet.Object, len(a.left))
	for _, o := range target.Objects() {
		if key := o.Key(); !gone[key] && !a.workedOn(o, since) {
			left[key] = o
		}
	}
	for key, o := range a.left {
		if a.workedOn(o, since) {
			left[key] = o
		}
	}
	maps.DeleteFunc(a.unsure, func(key string, _ bool) bool { return !a.worked(key, since) })
	a.left, a.observed = left, true
}
