package policy

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// build returns a model with the same objects, which another engine got in one commit.
func (m *model) build() *model {
	other := newModel(m.engine.limits)
	for id, ref := range m.endpoints {
		other.setEndpoint(id, ref)
	}
	for _, p := range m.Policies {
		other.setPolicy(p)
	}
	for _, p := range m.Pods {
		other.setPod(p)
	}
	for name, set := range m.Namespaces {
		other.setNamespace(name, set)
	}
	other.apply()
	return other
}

// difference lists the lines that only one of two texts has.
func difference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	var lines []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			lines = append(lines, "+ "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			lines = append(lines, "- "+line)
		}
	}
	return strings.Join(lines, "\n")
}

// eventful runs random changes of a model, and check after the commit of each few. It begins
// with policies of every pod, so that most changes concern an endpoint.
func eventful(seed uint64, limits Limits, check func(m *model, change Change)) {
	d, m := bySeed(seed), newModel(limits)
	m.begin(d)
	for _, namespace := range names {
		for _, name := range []string{"1", "2", "3"} {
			p := d.pod()
			p.Namespace, p.Name = namespace, name
			m.setPod(p)
		}
		p := d.policy()
		p.Ref, p.Tier, p.Isolates = Ref{"all", namespace, "p"}, Namespaced, [2]bool{true, true}
		p.Subject = PodSet{Namespace: namespace}
		m.setPolicy(p)
	}
	for id := range endpoint.ID(4) {
		m.setEndpoint(id+1, d.ref())
	}
	check(m, m.engine.Commit())
	for range 12 {
		for range d(3, "events") + 1 {
			m.event(d)
		}
		check(m, m.engine.Commit())
	}
}

const eventfulSeeds = 30

func TestAnEngineThatWasChangedHoldsWhatOneBuiltAtOnceDoes(t *testing.T) {
	for seed := range uint64(eventfulSeeds) {
		eventful(seed, unlimited(), func(m *model, change Change) {
			m.tables.Apply(change.All()...)
			other := m.build()
			if got, want := snapshotOf(m.engine), snapshotOf(other.engine); got != want {
				t.Fatalf("seed %d: changed (+) and built at once (-):\n%s", seed, difference(got, want))
			}
			if m.tables.Len() != other.tables.Len() {
				t.Fatalf("seed %d: tables of %d entries, built at once of %d\n%s\n%s", seed, m.tables.Len(), other.tables.Len(), m.tables, other.tables)
			}
		})
	}
}

func TestEachOperationOfAChangeAltersTheTables(t *testing.T) {
	for name, limits := range map[string]Limits{"without limits": unlimited(), "past the limits": {Classes: 3, Rows: 12}} {
		for seed := range uint64(eventfulSeeds / 2) {
			eventful(seed, limits, func(m *model, change Change) {
				for _, o := range change.All() {
					before := m.tables.clone()
					_, ofEndpoint := o.(Delete[endpoint.ID]) // it may have come and gone in between
					if m.tables.Apply(o); reflect.DeepEqual(m.tables, before) && !ofEndpoint {
						t.Fatalf("%s, seed %d: %s changes nothing\n%s", name, seed, o, change)
					}
				}
			})
		}
	}
}

func (t *Tables) clone() *Tables {
	return &Tables{
		Endpoints: maps.Clone(t.Endpoints), Sets: maps.Clone(t.Sets), Classes: maps.Clone(t.Classes), Prefixes: maps.Clone(t.Prefixes),
		Ports: maps.Clone(t.Ports), PortRanges: maps.Clone(t.PortRanges), Rows: maps.Clone(t.Rows),
	}
}

// Only the phase Switch alters verdicts: Before prepares it, and After deletes what is not used.
func TestVerdictsChangeInThePhaseSwitchOnly(t *testing.T) {
	for name, limits := range map[string]Limits{"without limits": unlimited(), "past the limits": {Classes: 3, Rows: 12}} {
		for seed := range uint64(eventfulSeeds / 2) {
			questions := tuples(bySeed(seed), 100)
			eventful(seed, limits, func(m *model, change Change) {
				before := m.answers(questions)
				if m.tables.Apply(change.Before...); !slices.Equal(m.answers(questions), before) {
					t.Fatalf("%s, seed %d: the phase Before alters a verdict\n%s", name, seed, change)
				}
				m.tables.Apply(change.Switch...)
				after := m.answers(questions)
				if m.tables.Apply(change.After...); !slices.Equal(m.answers(questions), after) {
					t.Fatalf("%s, seed %d: the phase After alters a verdict\n%s", name, seed, change)
				}
				for i, q := range questions {
					if want := m.oracle(q); after[i] != want && want != anything {
						t.Fatalf("%s, seed %d: %s: %c, Evaluate says %c", name, seed, q, after[i], want)
					}
				}
			})
		}
	}
}

func (m *model) answers(questions []tuple) []answer {
	list := make([]answer, len(questions))
	for i, q := range questions {
		list[i] = m.kernel(q)
	}
	return list
}

// ownSnapshot is the content of a set's own scope, by the verdicts of its classes.
func ownSnapshot(s *scope) string {
	of := &snapshot{}
	of.ofBlocks("a set", s.blocks)
	for prefix, b := range s.blocks.borders {
		if b.new != nil {
			of.add("%s: verdicts %q", prefix, b.new.key)
		}
	}
	for a, c := range s.entries {
		of.add("%s: verdicts %q", a, c.key)
	}
	for key, c := range s.classes.byKey {
		if c != s.classes.none {
			of.add("verdicts %q: %d users", key, c.users)
		}
	}
	slices.Sort(of.lines)
	return strings.Join(of.lines, "\n")
}

func TestAScopeOfASetThatWasChangedHoldsWhatOneBuiltAtOnceDoes(t *testing.T) {
	scopes := 0
	for seed := range uint64(eventfulSeeds) {
		eventful(seed, Limits{Classes: 1, Rows: 4}, func(m *model, change Change) {
			m.tables.Apply(change.All()...)
			for _, key := range slices.Sorted(maps.Keys(m.engine.inForce)) {
				s := m.engine.inForce[key]
				if s.own == nil {
					continue
				}
				scopes++
				again := *s
				m.engine.own(&again)
				if got, want := ownSnapshot(s.own), ownSnapshot(again.own); got != want {
					t.Fatalf("seed %d: changed (+) and built at once (-):\n%s", seed, difference(got, want))
				}
			}
		})
	}
	if scopes < eventfulSeeds {
		t.Errorf("%d scopes were compared", scopes)
	}
}
