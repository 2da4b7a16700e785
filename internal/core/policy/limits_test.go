package policy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// loadOf counts what the node's scope holds.
func loadOf(e *Engine) (l load) {
	used := func(c *class) bool { return c != e.node.classes.none && c.users > 0 }
	for _, c := range e.node.classes.byKey {
		if used(c) {
			l.classes++
		}
	}
	for _, s := range e.inForce {
		if s.own != nil {
			continue
		}
		l.rows += s.words()
		for _, c := range e.node.classes.byKey {
			if used(c) {
				l.rows += s.weight(c.matchers)
			}
		}
	}
	return l
}

// consistent checks that classes are known by their conditions in order, have the users that
// are counted, and make up the load.
func consistent(t *testing.T, what string, e *Engine) {
	t.Helper()
	if want := loadOf(e); e.load != want {
		t.Errorf("%s: load %+v, counted %+v", what, e.load, want)
	}
	users := map[*class]int{}
	for _, c := range e.node.entries {
		users[c]++
	}
	for _, b := range e.node.blocks.borders {
		if b.new != nil {
			users[b.new]++
		}
	}
	for key, c := range e.node.classes.byKey {
		if c != e.node.classes.none && c.users != users[c] {
			t.Errorf("%s: class %d has %d users, counted %d", what, c.id, c.users, users[c])
		}
		if key != matchersKey(c.matchers) || !slices.IsSortedFunc(c.matchers, compareMatchers) {
			t.Errorf("%s: class %d is not known by its conditions in order: %s", what, c.id, nameOfClass(c))
		}
	}
}

// inScope checks that conditions know the sets and classes of the node's scope that have them,
// and that no class is known that is not in use.
func inScope(t *testing.T, what string, e *Engine) {
	t.Helper()
	known := len(e.node.classes.byKey) - 1
	uses := map[*matcher]int{}
	for _, s := range e.inForce {
		if s.own != nil {
			known += len(s.own.classes.byKey) - 1
			if none := s.own.classes.none; s.own.classes.byKey[none.key] != none || none.key != s.verdictsKey(nil) {
				t.Errorf("%s: class 0 of %s is not that of its verdicts", what, s.id)
			}
			continue
		}
		for _, m := range s.matchers {
			uses[m]++
		}
	}
	for _, m := range e.matchers.byKey {
		classes := 0
		for _, c := range e.node.classes.byKey {
			if slices.Contains(c.matchers, m) {
				classes++
			}
		}
		if m.scoped != uses[m] || len(m.sets) != uses[m] || m.leaving != 0 || m.classed != (uses[m] > 0) || len(m.classes) != classes {
			t.Errorf("%s: %s is of %d sets and %d classes, and has %d, %d, %d, %v, %d", what, m, uses[m], classes, m.scoped, len(m.sets), m.leaving, m.classed, len(m.classes))
		}
	}
	retired := map[Class]bool{}
	for _, c := range e.numbers.retired {
		retired[c.id] = true
	}
	if got := len(e.numbers.byID) - len(retired); got != known {
		t.Errorf("%s: %d classes are known, and %d in use", what, got, known)
	}
}

func TestTheLoadIsThatOfTheNodesScope(t *testing.T) {
	for _, limits := range []Limits{unlimited(), {Classes: 3, Rows: 12}, {Classes: 5, Rows: 1000}, {Classes: 1000, Rows: 20}, {}} {
		alone := 0
		for seed := range uint64(eventfulSeeds / 3) {
			eventful(seed, limits, func(m *model, change Change) {
				m.tables.Apply(change.All()...)
				got, shares := m.engine.load, false
				inScope(t, fmt.Sprintf("%+v, seed %d", limits, seed), m.engine)
				if consistent(t, fmt.Sprintf("%+v, seed %d", limits, seed), m.engine); t.Failed() {
					t.FailNow()
				}
				for _, s := range m.engine.inForce {
					shares = shares || s.own == nil && len(s.matchers) > 0
					if s.own != nil {
						alone++
					}
				}
				if shares && (got.classes > limits.Classes || got.rows > limits.Rows) {
					t.Fatalf("%+v, seed %d: load %+v, and a set shares the scope still", limits, seed, got)
				}
			})
		}
		if (alone > 0) != (limits != unlimited()) {
			t.Errorf("%+v: %d sets have a scope of their own", limits, alone)
		}
	}
}

// apps is a policy of endpoint n that n+1 apps may connect to.
func apps(n int) Policy {
	p := toDB()
	p.Ref.Name, p.Subject = fmt.Sprint("apps", n), *pods(fmt.Sprint("app=db", n))
	for i := range n + 1 {
		p.Rules[Ingress] = append(p.Rules[Ingress], fromPods(fmt.Sprint("app=web", i)))
	}
	return p
}

// withApps is a node with endpoints 0 to n-1, and as many peers.
func withApps(n int, limits Limits) *model {
	m := newModel(limits)
	m.setNamespace("shop", nil)
	for i := range n {
		m.setPod(newPod(fmt.Sprint("db", i), fmt.Sprint("10.0.0.", 100+i), labels.Set{"app": fmt.Sprint("db", i)}))
		m.setPod(newPod(fmt.Sprint("web", i), fmt.Sprint("10.0.0.", i), labels.Set{"app": fmt.Sprint("web", i)}))
		m.setPolicy(apps(i))
		m.setEndpoint(endpoint.ID(i), PodRef{"shop", fmt.Sprint("db", i)})
	}
	m.apply()
	return m
}

// scopesOf lists the endpoints with a scope of their own.
func scopesOf(m *model) (list []int) {
	for id, set := range m.tables.Endpoints {
		if m.tables.Sets[set].Scope != NodeScope {
			list = append(list, int(id))
		}
	}
	slices.Sort(list)
	return list
}

// Endpoint n has n+1 peers: a row of class 0, and one for each peer.
func TestTheSetsWithTheMostConditionsGetScopesOfTheirOwn(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		want   []int
	}{
		"all fit":               {Limits{Classes: 4, Rows: 14}, nil},
		"one row too many":      {Limits{Classes: 4, Rows: 13}, []int{3}},
		"one class too many":    {Limits{Classes: 3, Rows: 14}, []int{3}},
		"two classes too many":  {Limits{Classes: 2, Rows: 14}, []int{2, 3}},
		"half of the rows":      {Limits{Classes: 4, Rows: 8}, []int{2, 3}},
		"no class is permitted": {Limits{Classes: 0, Rows: 14}, []int{0, 1, 2, 3}},
		"no row is permitted":   {Limits{Classes: 4}, []int{0, 1, 2, 3}},
	} {
		m := withApps(4, c.limits)
		consistent(t, name, m.engine)
		if got := scopesOf(m); !slices.Equal(got, c.want) || m.engine.Size().Scopes != len(c.want) {
			t.Errorf("%s: endpoints %v, want %v", name, got, c.want)
		}
		for id := range m.endpoints {
			for _, peer := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1"} {
				q := tuple{id, Ingress, addr(peer), TCP, 80}
				if got, want := m.kernel(q), m.oracle(q); got != want {
					t.Errorf("%s: %s: %c, want %c", name, q, got, want)
				}
			}
		}
	}
}

// Of sets with as many conditions, the one with the lower number gets it.
func TestOfEqualSetsTheOlderGetsAScopeOfItsOwn(t *testing.T) {
	m := newModel(Limits{Classes: 10, Rows: 14})
	m.setNamespace("shop", nil)
	m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "web"}))
	for i := range 10 {
		m.setPod(newPod(fmt.Sprint("db", i), fmt.Sprint("10.0.0.", 100+i), labels.Set{"app": fmt.Sprint("db", i)}))
		p := toDB(fromPods("app=web"))
		p.Ref.Name, p.Subject = fmt.Sprint(i), *pods(fmt.Sprint("app=db", i))
		m.setPolicy(p)
		m.setEndpoint(endpoint.ID(i), PodRef{"shop", fmt.Sprint("db", i)})
	}
	m.apply()
	if got, want := scopesOf(m), []int{0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
}

// Peers that come divide the scope of the node too far: a set in force gets one of its own,
// without a change of a verdict.
func TestASetInForceMovesToAScopeOfItsOwnAsPeersCome(t *testing.T) {
	m := withApps(5, Limits{Classes: 5, Rows: 100})
	largest := apps(4)
	largest.Rules[Ingress] = append(largest.Rules[Ingress], fromPods("app=new"))
	m.setPolicy(largest)
	other := toDB(fromPods("app notin (web0,web1,web2,web3,web4,db0,db1,db2,db3,db4)"))
	other.Ref.Name, other.Subject = "other", *pods("app=db1")
	m.setPolicy(other)
	m.setEndpoint(9, PodRef{"shop", "db4"}) // another endpoint of the same set
	m.apply()
	before := maps.Clone(m.tables.Endpoints)
	if got := scopesOf(m); got != nil {
		t.Fatalf("endpoints %v have scopes", got)
	}
	m.setPod(newPod("new", "10.0.0.50", labels.Set{"app": "new"}))
	change := m.engine.Commit()
	for _, o := range change.All() {
		m.tables.Apply(o)
		for id := range m.endpoints {
			for _, peer := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.99"} { // and not the new one
				q := tuple{id, Ingress, addr(peer), TCP, 80}
				if got, want := m.kernel(q), m.oracle(q); got != want {
					t.Fatalf("%s: %s: %c, want %c\n%s", o, q, got, want, change)
				}
			}
		}
	}
	if got, want := scopesOf(m), []int{4, 9}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v have scopes, want %v", got, want)
	}
	for id, set := range m.tables.Endpoints {
		if moved := set != before[id]; moved != (id == 4 || id == 9) {
			t.Errorf("endpoint %d has %s, and had %s", id, set, before[id])
		}
	}
	for id := range m.endpoints {
		q := tuple{id, Ingress, addr("10.0.0.50"), TCP, 80}
		if got, want := m.kernel(q), m.oracle(q); got != want {
			t.Errorf("%s: %c, want %c\n%s", q, got, want, change)
		}
	}
	consistent(t, "with a scope of its own", m.engine)
	inScope(t, "with a scope of its own", m.engine)
	if again := m.engine.Commit(); !again.Empty() {
		t.Errorf("a second commit: %s", again)
	}
	m.setPod(newPod("web0", "10.0.0.60", labels.Set{"app": "web0"}))
	m.apply()
	for _, peer := range []string{"10.0.0.0", "10.0.0.60"} {
		q := tuple{4, Ingress, addr(peer), TCP, 80}
		if got, want := m.kernel(q), m.oracle(q); got != want {
			t.Errorf("%s: %c, want %c", q, got, want)
		}
	}
	m.deletePolicy(apps(4).Ref)
	m.apply()
	for set := range m.tables.Sets {
		if !slices.Contains(slices.Collect(maps.Values(m.tables.Endpoints)), set) {
			t.Errorf("%s is left", set)
		}
	}
	consistent(t, "after its end", m.engine)
}

// A range ends in the commit in which a set with a block around it moves to a scope of its own:
// the range around both keeps its class.
func TestARangeEndsAsASetMovesToAScopeOfItsOwn(t *testing.T) {
	m := withApps(4, Limits{Classes: 7, Rows: 100})
	with := func(n int, rules ...Rule) Policy {
		p := apps(n)
		p.Rules[Ingress] = append(p.Rules[Ingress], rules...)
		return p
	}
	m.setPolicy(with(0, fromBlock("0.0.0.0/0")))
	m.setPolicy(with(1, fromBlock("10.0.0.0/9")))
	m.setPolicy(with(3, fromBlock("10.0.0.0/8")))
	m.apply()
	if got := scopesOf(m); got != nil {
		t.Fatalf("endpoints %v have scopes", got)
	}
	m.setPolicy(with(1, fromBlock("192.0.2.0/24"), fromBlock("198.51.100.0/24")))
	m.apply()
	if got, want := scopesOf(m), []int{3}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v have scopes, want %v", got, want)
	}
	for id := range m.endpoints {
		for _, peer := range []string{"10.0.0.0", "10.0.0.9", "10.200.0.0", "192.0.2.1", "203.0.113.1"} {
			q := tuple{id, Ingress, addr(peer), TCP, 80}
			if got, want := m.kernel(q), m.oracle(q); got != want {
				t.Errorf("%s: %c, want %c", q, got, want)
			}
		}
	}
	consistent(t, "after the end of a range", m.engine)
	inScope(t, "after the end of a range", m.engine)
}

// What a set without conditions has are rows of class 0: a scope of its own would not help.
func TestASetWithoutConditionsStaysInTheNodesScope(t *testing.T) {
	m := newModel(Limits{})
	fill(m)
	m.setPolicy(toDB(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 80, Last: 80}}}))
	m.apply()
	if got := scopesOf(m); got != nil || m.engine.Size().Scopes != 0 || m.from("192.0.2.1", 80) != yes || m.from("192.0.2.1", 81) != no {
		t.Errorf("endpoints %v have scopes\n%s", got, m.tables)
	}
}

func TestTheLoadCountsThePagesThatRulesName(t *testing.T) {
	var rules []Rule
	for n := range uint16(200) {
		rules = append(rules, Rule{Peers: fromPods("app=web").Peers, Ports: []Port{{Protocol: TCP, First: 1000 + n, Last: 1000 + n}}})
	}
	rules = append(rules, Rule{Peers: fromPods("app=job").Peers, Ports: []Port{{Protocol: TCP, First: 1000, Last: 1000}}})
	m := node(toDB(rules...))
	for step, want := range []int{8, 9, 5, 4, 8} {
		if got := m.engine.Size().Rows; got != want || len(m.tables.Rows) != want {
			t.Errorf("step %d: a load of %d rows, %d in the tables, want %d", step, got, len(m.tables.Rows), want)
		}
		consistent(t, fmt.Sprint("step ", step), m.engine)
		switch step {
		case 0:
			m.setPod(newPod("job", "10.0.0.7", labels.Set{"app": "job"}))
		case 1:
			m.deletePod(PodRef{"shop", "web"})
		case 2:
			m.deletePod(PodRef{"shop", "job"})
		case 3:
			m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "web"}))
		}
		m.apply()
	}
}

// A set in force that is replaced by one past the limits.
func TestAReplacementPastTheLimitsGetsAScopeOfItsOwn(t *testing.T) {
	m := withApps(3, Limits{Classes: 3, Rows: 100})
	before := m.tables.Endpoints[2]
	fourth := apps(3)
	fourth.Subject = *pods("app=db0")
	m.setPolicy(fourth)
	m.setPod(newPod("web3", "10.0.0.3", labels.Set{"app": "web3"}))
	change := m.engine.Commit()
	for _, o := range change.All() {
		m.tables.Apply(o)
		for peer, want := range map[string]answer{"10.0.0.0": yes, "10.0.0.2": yes, "10.0.0.3": no} {
			if got := m.kernel(tuple{2, Ingress, addr(peer), TCP, 80}); got != want {
				t.Fatalf("%s: %s: %c", o, peer, got)
			}
		}
	}
	if got, want := scopesOf(m), []int{0}; !slices.Equal(got, want) || m.tables.Endpoints[2] != before {
		t.Errorf("endpoints %v have scopes, want %v", got, want)
	}
	m.setPolicy(apps(4)) // selects no endpoint
	third := apps(2)
	for i := 3; i < 9; i++ {
		third.Rules[Ingress] = append(third.Rules[Ingress], fromPods(fmt.Sprint("app=web", i)))
	}
	m.setPolicy(third)
	for i := 4; i < 8; i++ {
		m.setPod(newPod(fmt.Sprint("web", i), fmt.Sprint("10.0.0.", i), labels.Set{"app": fmt.Sprint("web", i)}))
	}
	m.apply()
	if got, want := scopesOf(m), []int{0, 2}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v have scopes, want %v", got, want)
	}
}

// A set that replaces one with a scope of its own keeps having one, unless it is much smaller.
func TestAReplacementIsTriedInTheNodesScopeIfItIsMuchSmaller(t *testing.T) {
	for kept, want := range map[int][]int{7: {0}, 4: {0}, 3: nil} {
		m := newModel(Limits{Classes: 7, Rows: 1000})
		m.setNamespace("shop", nil)
		p := toDB()
		for i := range 8 {
			m.setPod(newPod(fmt.Sprint("web", i), fmt.Sprint("10.0.0.", i), labels.Set{"app": fmt.Sprint("web", i)}))
			p.Rules[Ingress] = append(p.Rules[Ingress], fromPods(fmt.Sprint("app=web", i)))
		}
		m.setPod(newPod("db", "10.0.0.100", labels.Set{"app": "db"}))
		m.setPolicy(p)
		m.setEndpoint(0, PodRef{"shop", "db"})
		if m.apply(); len(scopesOf(m)) != 1 {
			t.Fatalf("%v", scopesOf(m))
		}
		p.Rules[Ingress] = p.Rules[Ingress][:kept]
		m.setPolicy(p)
		if m.apply(); !slices.Equal(scopesOf(m), want) {
			t.Errorf("%d of 8 rules: %v, want %v", kept, scopesOf(m), want)
		}
	}
}

func TestTheDefaultLimitsAreHalfOfTheTables(t *testing.T) {
	if l := DefaultLimits(); l.Classes != 16384 || l.Rows != 131072 {
		t.Errorf("%+v", l)
	}
}

// Peers come and go in a scope of a set as in the node's: one operation each.
func TestAPeerInAScopeOfASetIsOneOperation(t *testing.T) {
	m := newModel(Limits{})
	fill(m)
	m.setPolicy(toDB(fromPods("app=web"), fromBlock("10.1.0.0/16", "10.1.1.0/24")))
	m.apply()
	steps := []struct {
		name   string
		pod    Pod
		epoch  bool
		writes int
		want   answer
	}{
		{"a new peer", newPod("web2", "10.0.0.7", labels.Set{"app": "web"}), false, 1, yes},
		{"a label that no rule reads", newPod("web2", "10.0.0.7", labels.Set{"app": "web", "x": "y"}), false, 0, yes},
		{"it is none any more", newPod("web2", "10.0.0.7", labels.Set{"app": "x"}), true, 1, no},
		{"an address of a range", newPod("web2", "10.1.0.7", labels.Set{"app": "x"}), false, 0, no},
	}
	for _, s := range steps {
		m.setPod(s.pod)
		if change := m.apply(); change.Len() != s.writes || change.Epoch != s.epoch || m.from("10.0.0.7", 80) != s.want {
			t.Errorf("%s: %c\n%s", s.name, m.from("10.0.0.7", 80), change)
		}
	}
	// Where a range allows a pod's address, its entry changes no verdict.
	m.setPod(newPod("web2", "10.1.0.7", labels.Set{"app": "web"}))
	if change := m.apply(); change.Len() != 1 || change.Epoch || m.from("10.1.0.7", 80) != yes {
		t.Errorf("a peer within an allowed range: %s", change)
	}
	m.deletePod(PodRef{"shop", "web2"})
	if change := m.apply(); change.Len() != 1 || change.Epoch || m.from("10.1.0.7", 80) != yes {
		t.Errorf("its end: %s", change)
	}
	m.setPod(newPod("web2", "10.1.1.7", labels.Set{"app": "web"}))
	if change := m.apply(); change.Len() != 1 || change.Epoch || m.from("10.1.1.7", 80) != yes {
		t.Errorf("a peer within an exception: %s", change)
	}
	m.deletePod(PodRef{"shop", "web2"})
	if change := m.apply(); change.Len() != 1 || !change.Epoch || m.from("10.1.1.7", 80) != no {
		t.Errorf("its end: %s", change)
	}
}
