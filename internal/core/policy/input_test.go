package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// What is as it was needs no commit, and gives an empty one.
func TestAnInputThatChangesNothingIsNoChange(t *testing.T) {
	web := newPod("web", "10.0.0.1", labels.Set{"app": "web"})
	web.Ports = []NamedPort{{"http", TCP, 80}}
	for i := range 9 {
		web.Labels[fmt.Sprint("label", i)] = "x"
	}
	for name, again := range map[string]func(e *Engine){
		"nothing":                       func(*Engine) {},
		"the same pod":                  func(e *Engine) { e.SetPod(web) },
		"the same namespace":            func(e *Engine) { e.SetNamespace("shop", labels.Set{"team": "shop"}) },
		"the same policy":               func(e *Engine) { e.SetPolicy(toDB(fromPods("app=web"))) },
		"the same endpoint":             func(e *Engine) { e.SetEndpoint(1, PodRef{"shop", "db"}) },
		"an unknown pod":                func(e *Engine) { e.DeletePod(PodRef{"shop", "none"}) },
		"a pod of an unknown namespace": func(e *Engine) { e.DeletePod(PodRef{"none", "web"}) },
		"an unknown namespace":          func(e *Engine) { e.DeleteNamespace("none") },
		"an unknown one with pods":      func(e *Engine) { e.DeleteNamespace("gone") },
		"an unknown policy":             func(e *Engine) { e.DeletePolicy(Ref{"NetworkPolicy", "shop", "none"}) },
		"an unknown endpoint":           func(e *Engine) { e.DeleteEndpoint(9) },
	} {
		m := node(toDB(fromPods("app=web")))
		m.setPod(web)
		m.setPod(Pod{Namespace: "gone", Name: "x"})
		m.apply()
		if again(m.engine); m.engine.pending.any {
			t.Errorf("%s is a change", name)
		}
		if change := m.apply(); !change.Empty() {
			t.Errorf("%s: %s", name, change)
		}
	}
}

func TestAnInputThatChangesSomethingIsAChange(t *testing.T) {
	web := func(edit func(p *Pod)) func(e *Engine) {
		p := newPod("web", "10.0.0.1", labels.Set{"app": "web"})
		edit(&p)
		return func(e *Engine) { e.SetPod(p) }
	}
	for name, c := range map[string]func(e *Engine){
		"labels of a pod":            web(func(p *Pod) { p.Labels = labels.Set{"app": "job"} }),
		"one more label":             web(func(p *Pod) { p.Labels = labels.Set{"app": "web", "x": ""} }),
		"address of a pod":           web(func(p *Pod) { p.Addresses = []netip.Addr{addr("10.0.0.7")} }),
		"a second address":           web(func(p *Pod) { p.Addresses = append(p.Addresses, addr("fd00::7")) }),
		"no address":                 web(func(p *Pod) { p.Addresses = nil }),
		"named ports":                web(func(p *Pod) { p.Ports = []NamedPort{{"http", TCP, 80}} }),
		"network of a pod":           web(func(p *Pod) { p.HostNetwork = true }),
		"a new pod":                  func(e *Engine) { e.SetPod(Pod{Namespace: "shop", Name: "new"}) },
		"the end of a pod":           func(e *Engine) { e.DeletePod(PodRef{"shop", "web"}) },
		"labels of a namespace":      func(e *Engine) { e.SetNamespace("shop", labels.Set{"team": "other"}) },
		"no labels of a namespace":   func(e *Engine) { e.SetNamespace("shop", nil) },
		"a new namespace":            func(e *Engine) { e.SetNamespace("new", nil) },
		"the end of a namespace":     func(e *Engine) { e.DeleteNamespace("shop") },
		"a policy":                   func(e *Engine) { e.SetPolicy(toDB()) },
		"the end of a policy":        func(e *Engine) { e.DeletePolicy(toDB().Ref) },
		"a new endpoint":             func(e *Engine) { e.SetEndpoint(2, PodRef{"shop", "web"}) },
		"another pod of an endpoint": func(e *Engine) { e.SetEndpoint(1, PodRef{"shop", "web"}) },
		"an endpoint that ends":      func(e *Engine) { e.DeleteEndpoint(1) },
		"an endpoint that comes and goes": func(e *Engine) {
			e.DeleteEndpoint(1)
			e.SetEndpoint(1, PodRef{"shop", "web"})
		},
	} {
		m := node(toDB(fromPods("app=web")))
		m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "web"}))
		m.setPod(Pod{Namespace: "shop", Name: "bare"})
		m.apply()
		if c(m.engine); !m.engine.pending.any {
			t.Errorf("%s is no change", name)
		}
	}
}

// A caller may use its maps and slices again.
func TestTheEngineKeepsNoMapsOrSlicesOfPodsAndNamespaces(t *testing.T) {
	m := node(toDB(fromPods("app=new"), Rule{Peers: []Peer{{Pods: &PodSet{Namespaces: pods("team=new").Pods}}}, AnyPort: true}))
	set, p := labels.Set{"team": "new"}, newPod("new", "10.0.0.7", labels.Set{"app": "new"})
	p.Ports = []NamedPort{{"http", TCP, 80}}
	m.engine.SetNamespace("new", set)
	m.engine.SetPod(p)
	m.apply()
	before := snapshotOf(m.engine)
	set["team"], p.Labels["app"], p.Addresses[0], p.Ports[0].Port = "x", "x", addr("10.0.0.8"), 81
	if got := snapshotOf(m.engine); got != before {
		t.Errorf("%s", difference(got, before))
	}
	if got := m.engine.peers.pod(PodRef{"shop", "new"}); got.labels.value["app"] != "new" || got.ports.value[0].Port != 80 || m.engine.peers.namespaces["new"].labels["team"] != "new" {
		t.Errorf("%+v", got)
	}
}

func TestAnEndpointThatIsDeletedAndSetInOneCommitIsSwitchedOnce(t *testing.T) {
	for pod, want := range map[string]int{"db": 0, "web": 1} {
		m := node(toDB(fromPods("app=web")))
		m.deleteEndpoint(1)
		m.setEndpoint(1, PodRef{"shop", pod})
		if change := m.apply(); len(change.Switch) != want || count[deleteEndpoint](change) != 0 {
			t.Errorf("to pod %s: %s", pod, change)
		}
		if got, want := m.from("10.0.0.9", 80), map[string]answer{"db": no, "web": yes}[pod]; got != want {
			t.Errorf("to pod %s: %c", pod, got)
		}
	}
	m := node(toDB(fromPods("app=web")))
	m.setEndpoint(2, PodRef{"shop", "db"})
	m.deleteEndpoint(2)
	m.deleteEndpoint(1)
	m.deleteEndpoint(1)
	if change := m.apply(); m.tables.Len() != 0 {
		t.Errorf("%s\n%s", change, m.tables)
	}
}

// Of two pods with an address, the one has it that got it last; if it ends, the other has it.
func TestAnAddressIsOfThePodThatGotItLast(t *testing.T) {
	m := node()
	at := addr("10.0.0.7")
	check := func(what, want string) {
		t.Helper()
		if got, ok := m.engine.At(at); got.Name != want || ok != (want != "") || ok && got.Namespace != "shop" {
			t.Errorf("%s: it is of %q, want %q", what, got, want)
		}
		if got, want := snapshotOf(m.engine), snapshotOf(m.build().engine); got != want {
			t.Errorf("%s:\n%s", what, difference(got, want))
		}
	}
	set := func(name, address, app string) {
		m.setPod(newPod(name, address, labels.Set{"app": app}))
		m.apply()
	}
	end := func(name string) {
		m.deletePod(PodRef{"shop", name})
		m.apply()
	}
	check("nothing has it", "")
	set("a", "10.0.0.7", "x")
	check("the first", "a")
	set("b", "10.0.0.7", "x")
	check("the second", "b")
	set("c", "10.0.0.7", "x")
	check("the third", "c")
	set("a", "10.0.0.7", "y")
	check("other labels of the first", "c")
	end("c")
	check("the end of the third", "b")
	set("a", "10.0.0.8", "y")
	set("a", "10.0.0.7", "y")
	check("the first gets it again", "a")
	end("b")
	check("the end of the second", "a")
	set("b", "10.0.0.7", "x")
	set("b", "10.0.0.9", "x")
	check("the second gets another", "a")
	end("a")
	check("the end of the first", "")
}

func TestASelectorThatSelectsNoLongerFreesItsPeers(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	if ref, ok := m.engine.At(addr("10.0.0.1")); !ok || ref != (PodRef{"shop", "web"}) {
		t.Errorf("%s", ref)
	}
	m.setNamespace("shop", labels.Set{"team": "new"})
	if change := m.apply(); !change.Empty() || m.from("10.0.0.1", 80) != yes {
		t.Errorf("labels that no policy reads: %s", change)
	}
	m.deleteNamespace("shop")
	if m.apply(); m.tables.Endpoints[1] != SetPending || len(m.tables.Rows) != 0 || m.from("10.0.0.1", 80) != no {
		t.Errorf("%s", m.tables)
	}
	m.setNamespace("shop", nil)
	if m.apply(); m.from("10.0.0.1", 80) != yes {
		t.Errorf("%s", m.tables)
	}
}

func TestTheEngineNamesWhatIsInForce(t *testing.T) {
	first, unused := cluster(Admin, 1, "first", Rule{Action: Pass, AnyPeer: true, AnyPort: true}), toDB()
	unused.Ref.Name, unused.Subject = "unused", *pods("app=none")
	m := node(toDB(fromPods("app=web")), first, unused)
	if got, want := m.engine.Selecting(1), []Ref{first.Ref, toDB().Ref}; !slices.Equal(got, want) || m.engine.Selecting(9) != nil {
		t.Errorf("endpoint 1 is selected by %s", got)
	}
	if got, want := m.engine.Policies(), []Ref{first.Ref, toDB().Ref, unused.Ref}; !slices.Equal(got, want) {
		t.Errorf("policies %s", got)
	}
	for ref, want := range map[Ref]bool{first.Ref: true, toDB().Ref: true, unused.Ref: false, {"x", "y", "z"}: false} {
		if Selects(m.engine, ref) != want {
			t.Errorf("%s selects: %v", ref, !want)
		}
	}
	m.setEndpoint(2, PodRef{"none", "none"})
	m.setEndpoint(3, PodRef{"other", "job"})
	if got := m.engine.InForce(2); got != SetNone {
		t.Errorf("before the commit endpoint 2 has %s", got)
	}
	m.apply()
	for id, want := range map[endpoint.ID]SetID{1: 16, 2: SetPending, 3: 17, 9: SetNone} {
		if got := m.engine.InForce(id); got != want || got != m.tables.Endpoints[id] {
			t.Errorf("endpoint %d: %s, want %s", id, got, want)
		}
	}
	want := Size{Policies: 3, Pods: 3, Sets: 2, Matchers: 1, Classes: 1, Rows: 3}
	if got := m.engine.Size(); got != want || got.Rows != len(m.tables.Rows) {
		t.Errorf("size %+v, want %+v\n%s", got, want, m.tables)
	}
}

func TestThePodOfAPendingEndpointIsNamed(t *testing.T) {
	m := node()
	m.setEndpoint(9, PodRef{"shop", "none"})
	m.setEndpoint(4, PodRef{"none", "x"})
	m.apply()
	want := []Pending{{4, PodRef{"none", "x"}, "the pod is not known"}, {9, PodRef{"shop", "none"}, "the pod is not known"}}
	if got := m.engine.Pending(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	m.setPod(Pod{Namespace: "none", Name: "x", HostNetwork: true})
	if m.apply(); m.tables.Endpoints[4] != SetOpen {
		t.Errorf("a pod with its node's network has no policies, but is %s", m.tables.Endpoints[4])
	}
}

func TestAPolicyIsThatOfItsLastChangeBeforeACommit(t *testing.T) {
	x, y, web := toDB(fromPods("app=x")), toDB(fromPods("app=y")), toDB(fromPods("app=web"))
	for name, c := range map[string]struct {
		changes func(m *model)
		want    answer
	}{
		"changed twice":          {func(m *model) { m.setPolicy(x); m.setPolicy(y) }, no},
		"and back":               {func(m *model) { m.setPolicy(x); m.setPolicy(web) }, yes},
		"and deleted":            {func(m *model) { m.setPolicy(x); m.deletePolicy(x.Ref) }, yes},
		"deleted, and set again": {func(m *model) { m.deletePolicy(x.Ref); m.setPolicy(web) }, yes},
		"deleted, and another":   {func(m *model) { m.deletePolicy(x.Ref); m.setPolicy(x) }, no},
	} {
		m := node(web)
		c.changes(m)
		m.agrees(t, name, []string{"10.0.0.1", "192.0.2.1"}, []uint16{80})
		if got := m.from("10.0.0.1", 80); got != c.want {
			t.Errorf("%s: %c", name, got)
		}
	}
	m := node()
	m.setPolicy(x)
	m.deletePolicy(x.Ref)
	m.agrees(t, "set and deleted", []string{"10.0.0.1"}, []uint16{80})
}

func TestAnEndpointIsPendingAfterItsPod(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	m.deletePod(PodRef{"shop", "db"})
	if m.apply(); m.tables.Endpoints[1] != SetPending || m.engine.Size().Matchers != 0 {
		t.Errorf("%s", m.tables)
	}
	m = node(toDB(fromPods("app=web")))
	m.deleteEndpoint(1)
	if m.apply(); m.tables.Len() != 0 || m.engine.Size().Matchers != 0 || Selects(m.engine, toDB().Ref) {
		t.Errorf("%+v, %s", m.engine.Size(), m.tables)
	}
}

// Pods of equal labels and named ports hold them once.
func TestLabelsAndNamedPortsOfPodsAreShared(t *testing.T) {
	m := node()
	before := len(m.engine.peers.labels)
	for i := range 5 {
		p := newPod(fmt.Sprint("p", i), fmt.Sprint("10.0.1.", i), labels.Set{"app": "shared", "tier": "x"})
		p.Ports = []NamedPort{{"shared", TCP, 1}}
		m.setPod(p)
	}
	if got := m.engine.peers; len(got.labels) != before+1 || got.labels["app=shared,tier=x,"].uses != 5 || len(got.ports) != 3 {
		t.Errorf("%d labels, %d named ports", len(got.labels), len(got.ports))
	}
}

func TestTheOrderOfNamedPortsMakesNoDifference(t *testing.T) {
	m := node(toDB(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "sql"}}}), outOf(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}}}))
	db := *m.Pod(PodRef{"shop", "db"})
	list := []NamedPort{{"sql", TCP, 1}, {"sql", TCP, 2}, {"sql", TCP, 3}, {"sql", TCP, 4}}
	db.Ports = list
	m.setPod(db)
	for i := range 8 {
		web := newPod(fmt.Sprint("web", i), fmt.Sprint("10.0.1.", i), nil)
		web.Ports = []NamedPort{{"http", TCP, uint16(80 + i)}}
		m.setPod(web)
	}
	m.apply()
	for range 10 {
		list = append(slices.Clone(list[1:]), list[0])
		db.Ports = list
		m.setPod(db)
		if change := m.apply(); !change.Empty() {
			t.Fatalf("%v: %s", list, change)
		}
	}
}

func TestNumbersOfSetsAndClassesAreNotUsedAgain(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	sets, classes := map[SetID]bool{}, map[Class]bool{}
	for range 5 {
		for id := range m.tables.Sets {
			if sets[id] {
				t.Errorf("%s again", id)
			}
			sets[id] = true
		}
		for _, class := range m.tables.Classes {
			if classes[class] {
				t.Errorf("class %d again", class)
			}
			classes[class] = true
		}
		m.setPolicy(toDB())
		m.apply()
		for id := range m.tables.Sets {
			sets[id] = true
		}
		m.setPolicy(toDB(fromPods("app=web")))
		m.apply()
	}
}

func TestNumbersAreThoseOfTheFirstFreeOnes(t *testing.T) {
	m := node(toDB(fromPods("app=web")))
	if m.tables.Endpoints[1] != SetFirst || m.tables.Sets[SetFirst] != (Set{Scope: NodeScope, Ports: 1, Isolated: [2]bool{true, false}}) {
		t.Errorf("%s", m.tables)
	}
	for last, want := range map[Numbers]Set{
		{}:                            {Scope: 1, Ports: 1, Isolated: [2]bool{true, false}},
		{Set: 3, Scope: 4, Ports: 5}:  {Scope: 5, Ports: 6, Isolated: [2]bool{true, false}},
		{Set: 20, Scope: 0, Ports: 9}: {Scope: 1, Ports: 10, Isolated: [2]bool{true, false}},
	} {
		m := newModel(unlimited())
		m.engine = NewEngineAfter(unlimited(), last)
		fill(m)
		m.setPolicy(toDB(fromPods("app=web")))
		m.apply()
		if id := max(SetFirst, last.Set+1); m.tables.Endpoints[1] != id || m.tables.Sets[id] != want || m.from("10.0.0.1", 80) != yes {
			t.Errorf("after %+v: %s", last, m.tables)
		}
	}
}
