package policy

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// tuples draws questions from a seed: one draw of rapid's is much slower.
func tuples(d draw, n int) []tuple {
	r := rand.New(rand.NewPCG(uint64(d(1<<30, "tuples")), 1))
	all := allTuples()
	if n >= len(all) {
		return all
	}
	list := make([]tuple, n)
	for i := range list {
		list[i] = all[r.IntN(len(all))]
	}
	return list
}

// commit applies a change operation by operation, and checks each step.
func (m *model) commit(t rapid.TB, questions []tuple, before []answer) []answer {
	after := make([]answer, len(questions))
	for i, q := range questions {
		after[i] = m.oracle(q)
	}
	was := m.tables.String()
	sets := map[tuple]SetID{}
	for _, q := range questions {
		sets[q] = m.tables.Endpoints[q.endpoint]
	}
	change := m.engine.Commit()
	operations := change.All()
	for step, o := range operations {
		m.tables.Apply(o)
		for i, q := range questions {
			if got := m.kernel(q); got != before[i] && got != after[i] && before[i] != anything && after[i] != anything {
				t.Fatalf("%s: step %d (%s): got %c, before %c, after %c\n%s\nof\n%s", q, step, o, got, before[i], after[i], change, was)
			}
		}
	}
	for i, q := range questions {
		if got := m.kernel(q); got != after[i] && after[i] != anything {
			t.Fatalf("%s: got %c, Evaluate says %c\n%s\n%s\nof\n%s", q, got, after[i], m.tables, change, was)
		}
		m.explains(t, q)
		if before[i] == yes && after[i] == no && sets[q] == m.tables.Endpoints[q.endpoint] && !change.Epoch {
			t.Fatalf("%s: connections must be judged again, but the epoch stays\n%s", q, change)
		}
	}
	m.leaks(t)
	if again := m.engine.Commit(); !again.Empty() {
		t.Fatalf("a second commit is not empty:\n%s", again)
	}
	return after
}

// leaks checks that each row is of a set of an endpoint and of a class of an address.
func (m *model) leaks(t rapid.TB) {
	classes, sets := map[Class]bool{0: true}, map[SetID]bool{}
	for _, class := range m.tables.Classes {
		classes[class] = true
	}
	for _, class := range m.tables.Prefixes {
		classes[class] = true
	}
	for _, set := range m.tables.Endpoints {
		sets[set] = true
	}
	for key := range m.tables.Rows {
		if !classes[key.Class] || !sets[key.Set] {
			t.Fatalf("the row %+v is not used\n%s", key, m.tables)
		}
	}
	for id := range m.tables.Sets {
		if !sets[id] {
			t.Fatalf("%s is not used\n%s", id, m.tables)
		}
	}
}

// explains checks that the engine names what Evaluate does.
func (m *model) explains(t rapid.TB, q tuple) {
	want, asked := m.decision(q)
	set := m.tables.Endpoints[q.endpoint]
	if !asked || want.Basis == NoPod || want.Basis == NoNamespace {
		return
	}
	_, peers, ports := m.tables.Judge(q.endpoint, q.direction, q.peer, q.protocol, q.port)
	got, known := m.engine.Explain(set, q.direction, peers, ports)
	if !known {
		t.Fatalf("%s: %s, class %d, port class %d are not known", q, set, peers, ports)
	}
	if got.Sample {
		got.Decision, want = Decision{Allowed: got.Decision.Allowed}, Decision{Allowed: want.Allowed}
	}
	if !reflect.DeepEqual(got.Decision, want) {
		t.Fatalf("%s of %s: explained by %+v, Evaluate says %+v\n%s", q, got.Peers, got.Decision, want, m.engine.Describe(set))
	}
}

// checkRandom runs random events, drawn by rapid and by seeds.
func checkRandom(t *testing.T, limits Limits) {
	rapid.Check(t, func(t *rapid.T) { checkEvents(t, byRapid(t), limits) })
	runs := 300
	if testing.Short() {
		runs = 30
	}
	start := rand.Uint64()
	for run := range uint64(runs) {
		func() {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", start+run)
				}
			}()
			checkEvents(t, bySeed(start+run), limits)
		}()
	}
}

func checkEvents(t rapid.TB, d draw, limits Limits) {
	m := newModel(limits)
	questions := tuples(d, 400)
	answers := make([]answer, len(questions))
	for i := range answers {
		answers[i] = no
	}
	m.begin(d)
	answers = m.commit(t, questions, answers)
	for range d(9, "commits") {
		for range d(4, "events") + 1 {
			m.event(d)
		}
		answers = m.commit(t, questions, answers)
	}
	m.rebuild(t, questions)
	m.clear(t, questions, answers)
}

// rebuild checks that another engine, with the same content, gives the same verdicts.
func (m *model) rebuild(t rapid.TB, questions []tuple) {
	other := m.build()
	for _, q := range questions {
		if other.kernel(q) != m.kernel(q) {
			t.Fatalf("%s: a rebuilt engine answers %c\n%s\n%s", q, other.kernel(q), m.tables, other.tables)
		}
	}
	if got, want := other.engine.Size(), m.engine.Size(); got.Matchers != want.Matchers || m.engine.limits == unlimited() && got != want {
		t.Fatalf("size %+v, a rebuilt engine has %+v", want, got)
	}
}

// clear deletes everything, and checks that nothing remains.
func (m *model) clear(t rapid.TB, questions []tuple, answers []answer) {
	for _, p := range append([]Policy(nil), m.Policies...) {
		m.deletePolicy(p.Ref)
	}
	answers = m.commit(t, questions, answers)
	for _, p := range append([]Pod(nil), m.Pods...) {
		m.deletePod(p.Ref())
	}
	for name := range m.Namespaces {
		m.deleteNamespace(name)
	}
	for id := range m.endpoints {
		m.deleteEndpoint(id)
	}
	m.commit(t, questions, answers)
	if m.tables.Len() > 0 {
		t.Fatalf("not empty:\n%s", m.tables)
	}
	if got := m.engine.Size(); got != (Size{}) {
		t.Fatalf("the engine holds %+v", got)
	}
}

func unlimited() Limits { return Limits{Classes: 1 << 20, Rows: 1 << 20} }

func TestTheTablesJudgeAsEvaluateDoesAtEachStep(t *testing.T) { checkRandom(t, unlimited()) }

func TestTheTablesJudgeAsEvaluateDoesAtEachStepPastTheLimits(t *testing.T) {
	checkRandom(t, Limits{Classes: 3, Rows: 12})
}
