package policy

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Limits bound the node's scope. Without them, k overlapping selectors can divide the peers
// into 2^k classes, though never more than there are peers.
//
// When the node's scope would have more classes or rows, the set with the most matchers gets a
// scope of its own, and so on until the rest fits. In such a scope, addresses with the same
// verdicts are one class: each peer of the set has one entry, and there are at most as many
// classes as different verdicts (for rules of the same ports two, however many selectors
// overlap) and never more than peers; each has one row for each direction and 64 port classes of
// which its verdicts differ from those of other addresses.
//
// A set that replaces one with a scope of its own gets one at once, if it has at least half as
// many matchers; otherwise it is tried in the node's scope.
//
// While a change is applied, the tables hold the old and the new classes: they need twice the
// capacity of the limits.
type Limits struct {
	Classes int // of the node's scope
	Rows    int
}

// DefaultLimits are for a table of 262,144 rows: 2 MiB of verdicts, without the keys.
func DefaultLimits() Limits { return Limits{Classes: 16384, Rows: 131072} }

// Engine compiles the policies of a cluster for the endpoints of one node. Set and Delete
// methods take what is known; Commit returns what to write. Only policies that select an
// endpoint of the node are compiled. It is not safe for concurrent use.
type Engine struct {
	limits    Limits
	peers     *peers
	matchers  *matchers
	policies  policies
	inForce   map[string]*set // by key
	sets      map[SetID]*set  // with those that the last commit retired
	retired   []*set
	ports     map[string]*ports
	node      *scope
	numbers   *classNumbers
	endpoints map[endpoint.ID]*local
	pending   changes
	last      lastNumbers
	load      load
}

// lastNumbers are the last numbers that were given.
type lastNumbers struct {
	set        SetID
	ports      PortsID
	scope      Scope
	generation uint64
}

// load is what the node's scope holds.
type load struct{ classes, rows int }

// local is an endpoint of the node.
type local struct {
	id       endpoint.ID
	ref      PodRef
	selected []*policy // in order
	set      *set      // nil if number is no compiled set
	number   SetID     // that the tables have
	next     *set
	to       SetID
}

// changes are inputs since the last commit.
type changes struct {
	any       bool
	policies  map[Ref]*policy          // the version of the last commit; nil if there was none
	endpoints map[endpoint.ID]struct{} // to select policies for
	pods      map[PodRef]struct{}      // changed
	spaces    map[string]struct{}      // changed namespaces
	gone      map[endpoint.ID]*local   // deleted
}

func newChanges() changes {
	return changes{policies: map[Ref]*policy{}, endpoints: map[endpoint.ID]struct{}{}, pods: map[PodRef]struct{}{}, spaces: map[string]struct{}{}, gone: map[endpoint.ID]*local{}}
}

// NewEngine returns an engine for empty tables.
func NewEngine(l Limits) *Engine {
	return &Engine{
		limits: l, peers: newPeers(), matchers: newMatchers(), policies: newPolicies(), inForce: map[string]*set{},
		sets: map[SetID]*set{}, ports: map[string]*ports{}, node: newScope(NodeScope, nil),
		numbers: &classNumbers{byID: map[Class]*class{}}, endpoints: map[endpoint.ID]*local{}, pending: newChanges(),
		last: lastNumbers{set: SetFirst - 1},
	}
}

// SetPolicy adds or replaces a policy. The engine keeps its slices and selectors: they must
// not be changed.
func (e *Engine) SetPolicy(p Policy) {
	old := e.policies.byRef[p.Ref]
	if old != nil && equalPolicies(&old.Policy, &p) {
		return
	}
	e.last.generation++
	e.replace(p.Ref, old, &policy{Policy: p, generation: e.last.generation})
}

// DeletePolicy removes a policy, if there is one.
func (e *Engine) DeletePolicy(ref Ref) {
	if old := e.policies.byRef[ref]; old != nil {
		e.replace(ref, old, nil)
	}
}

func (e *Engine) replace(ref Ref, old, new *policy) {
	e.pending.any = true
	if before, changed := e.pending.policies[ref]; !changed {
		e.pending.policies[ref] = old
	} else if before != nil && new != nil && equalPolicies(&before.Policy, &new.Policy) {
		new = before // as at the last commit
	}
	e.policies.replace(old, new)
}

// SetNamespace adds a namespace or replaces its labels.
func (e *Engine) SetNamespace(name string, set labels.Set) {
	if e.peers.setNamespace(name, set) {
		e.pending.any = true
		e.pending.spaces[name] = struct{}{}
	}
}

// DeleteNamespace makes a namespace unknown: selectors select none of its pods, and its
// endpoints are pending.
func (e *Engine) DeleteNamespace(name string) {
	if e.peers.deleteNamespace(name) {
		e.pending.any = true
		e.pending.spaces[name] = struct{}{}
	}
}

// SetPod adds or replaces a pod of any node. Of two pods with the same address, the one has it
// that was added, or got other addresses, last.
func (e *Engine) SetPod(p Pod) {
	if e.peers.setPod(p) {
		e.pending.any = true
		e.pending.pods[p.Ref()] = struct{}{}
	}
}

// DeletePod removes a pod, if there is one.
func (e *Engine) DeletePod(ref PodRef) {
	if e.peers.deletePod(ref) {
		e.pending.any = true
		e.pending.pods[ref] = struct{}{}
	}
}

// SetEndpoint adds an endpoint of the node, or gives it to another pod.
func (e *Engine) SetEndpoint(id endpoint.ID, ref PodRef) {
	old := e.endpoints[id]
	switch {
	case old != nil && old.ref == ref:
		return
	case old != nil:
		old.ref = ref
	case e.pending.gone[id] != nil: // deleted since the last commit
		old = e.pending.gone[id]
		delete(e.pending.gone, id)
		old.ref = ref
		e.endpoints[id] = old
	default:
		e.endpoints[id] = &local{id: id, ref: ref}
	}
	e.pending.any = true
	e.pending.endpoints[id] = struct{}{}
}

// DeleteEndpoint removes an endpoint, if there is one.
func (e *Engine) DeleteEndpoint(id endpoint.ID) {
	old := e.endpoints[id]
	if old == nil {
		return
	}
	delete(e.endpoints, id)
	delete(e.pending.endpoints, id)
	e.pending.any = true
	e.pending.gone[id] = old
}

// Pending is an endpoint to which and from which nothing passes, because the engine does not
// know what selects its pod.
type Pending struct {
	Endpoint endpoint.ID
	Pod      PodRef
	Why      string
}

func (p Pending) String() string {
	return fmt.Sprintf("endpoint %d of pod %s: %s", p.Endpoint, p.Pod, p.Why)
}

// Pending lists the endpoints that the last commit left pending, by number.
func (e *Engine) Pending() (list []Pending) {
	for _, id := range slices.Sorted(maps.Keys(e.endpoints)) {
		l := e.endpoints[id]
		if l.number != SetPending {
			continue
		}
		why := "the pod is not known"
		if e.peers.pod(l.ref) != nil {
			why = "its namespace is not known"
		}
		list = append(list, Pending{id, l.ref, why})
	}
	return list
}

// Size is what the engine holds, and what it has written.
type Size struct {
	Policies, Pods, Sets, Matchers int
	Scopes                         int // that sets have of their own
	Classes, Rows                  int // of the node's scope
}

// Size counts.
func (e *Engine) Size() Size {
	s := Size{Policies: len(e.policies.byRef), Sets: len(e.inForce), Matchers: len(e.matchers.byKey), Classes: e.load.classes, Rows: e.load.rows}
	for _, n := range e.peers.namespaces {
		s.Pods += len(n.pods)
	}
	for _, set := range e.inForce {
		if set.own != nil {
			s.Scopes++
		}
	}
	return s
}
