package link

import (
	"maps"
	"sync"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// account is what this process has left in the kernel, and what it is at work on.
// It tells what others did from what we do: drift is a difference between the
// kernel and what we left there, whatever is wanted by now. A look at the kernel
// takes time, during which work goes on; what work was at meanwhile cannot be
// judged by that look, and is left to the work.
type account struct {
	mu     sync.Mutex
	left   map[string]hostnet.Object // by key; watched, for a foreign change to it is drift
	looked bool                      // before a first look, what is not in left may be an earlier process's
	open   map[string]int            // works under way on a key
	ended  map[string]uint64         // when the last one ended, by clock
	unsure map[string]bool           // work failed: nobody knows what it left; until the next look
	clock  uint64
}

func newAccount() *account {
	return &account{left: map[string]hostnet.Object{}, open: map[string]int{}, ended: map[string]uint64{}, unsure: map[string]bool{}}
}

// expect notes what is left in the kernel from now on.
func (a *account) expect(s hostnet.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range s.Objects() {
		a.left[o.Key()] = o
	}
}

// forget notes what is no longer there because of us.
func (a *account) forget(s hostnet.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range s.Objects() {
		if same(a.left[o.Key()], o) {
			delete(a.left, o.Key())
		}
	}
}

// same reports whether two objects of one key are one: a link is its attachment's,
// let out or not.
func same(a, b hostnet.Object) bool {
	x, ok := a.(hostnet.Link)
	y, also := b.(hostnet.Link)
	if ok && also {
		return x.Alias == y.Alias
	}
	return a == b
}

// putting begins work that leaves s in the kernel; the returned function ends it.
// What it puts is expected at once, so that a foreign change right after is heard;
// a link at the end, for it comes about in several steps.
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

// taking begins work that takes s out of the kernel.
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

// restore takes back what was noted about a key; call it with mu held.
func (a *account) restore(key string, was hostnet.Object) {
	if was == nil {
		delete(a.left, key)
	} else {
		a.left[key] = was
	}
}

// wanted returns the object that should have a key, nil if none.
func (a *account) wanted(key string) hostnet.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left[key]
}

// renamed reports whether a link that nothing is expected of has the address of one
// that should be there under another name.
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

// settled is wanted where no work is under way; while it is, nil: what the object is
// like then is the work's business.
func (a *account) settled(key string) hostnet.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[key] > 0 {
		return nil
	}
	return a.left[key]
}

// working reports whether work is under way on a key.
func (a *account) working(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open[key] > 0
}

// look begins a look at the kernel and returns when.
func (a *account) look() (since uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.ended, func(_ string, at uint64) bool { return at <= a.clock })
	return a.clock
}

// verdict is what to think of a difference.
type verdict uint8

const (
	drift  verdict = iota // somebody changed what we left
	own                   // what is wanted has changed; the pass does the work
	inWork                // other work is at it, or was during the look: leave it alone
)

// judge says what to think of each difference that a look found between the kernel
// and target, and takes the account over to target, as though all of them were
// put right already; failed takes that back for one.
func (a *account) judge(since uint64, target, have hostnet.State, ops []hostnet.Op) (verdicts []verdict, failed func(hostnet.Op)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verdicts = make([]verdict, len(ops))
	gone := map[string]bool{} // wanted, and neither there nor to be had
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

// verdict judges one difference; call it with mu held.
func (a *account) verdict(since uint64, op hostnet.Op) verdict {
	key := op.Object.Key()
	was, known := a.left[key]
	switch {
	case a.workedOn(op.Object, since):
		return inWork
	case a.unsure[key]:
		return own
	case op.Verb != hostnet.Delete && (!known || was != op.Object):
		return own // it was not there, or otherwise, when we last left
	case op.Verb == hostnet.Delete && (known || !a.looked || !a.ourLink(op.Object)):
		return own
	}
	return drift
}

// busy reports whether work was at an object at any time since.
func (a *account) busy(o hostnet.Object, since uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workedOn(o, since)
}

// workedOn reports whether work was at an object, or at the link it stands on, at any
// time since: what needs a link that is being wired is that work's to set. Call it with
// mu held.
func (a *account) workedOn(o hostnet.Object, since uint64) bool {
	link := linkUnder(o)
	return a.worked(o.Key(), since) || link != "" && a.worked(hostnet.Link{Name: link}.Key(), since)
}

// linkUnder is the name of the link that an object stands on, empty if none.
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

// worked reports whether work was at a key at any time since; call it with mu held.
func (a *account) worked(key string, since uint64) bool {
	return a.open[key] > 0 || a.ended[key] > since
}

// ourLink reports whether what stands on a link is on one that we have taken over:
// on one that is only now being set up, it is nobody's offence. Call it with mu held.
func (a *account) ourLink(o hostnet.Object) bool {
	link := linkUnder(o)
	if r, ok := o.(hostnet.Route); ok && r.Ours() {
		link = ""
	}
	return link == "" || a.left[hostnet.Link{Name: link}.Key()] != nil
}

// take makes target what is left, but for what is gone and what work is at; call
// it with mu held.
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
	a.left, a.looked = left, true
}
