package policy

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// toAPI is a policy of the pod api, which is endpoint 2 of twoSets.
func toAPI(rules ...Rule) Policy {
	p := toDB(rules...)
	p.Ref.Name, p.Subject = "api", *pods("app=api")
	return p
}

// twoSets has endpoint 2, which web may connect to, beside endpoint 1 with the rules. The pod
// web has the labels x and y too.
func twoSets(rules ...Rule) *model {
	m := node(toDB(rules...), toAPI(fromPods("app=web")))
	m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "web", "x": "1", "y": "1"}))
	m.setPod(newPod("api", "10.0.0.5", labels.Set{"app": "api"}))
	m.setEndpoint(2, PodRef{"shop", "api"})
	m.apply()
	return m
}

func (m *model) to(id endpoint.ID, peer string) answer {
	return m.kernel(tuple{id, Ingress, addr(peer), TCP, 80})
}

func TestAPeerOfSeveralSetsIsJudgedByEachWhileOneIsReplaced(t *testing.T) {
	for name, c := range map[string]struct{ before, after []Rule }{
		"by another condition":     {[]Rule{fromPods("x=1")}, []Rule{fromPods("y=1")}},
		"by one more":              {[]Rule{fromPods("x=1")}, []Rule{fromPods("x=1"), fromPods("y=1")}},
		"by one less":              {[]Rule{fromPods("x=1"), fromPods("y=1")}, []Rule{fromPods("y=1")}},
		"by a block":               {[]Rule{fromPods("x=1")}, []Rule{fromBlock("10.0.0.0/24")}},
		"by the condition of both": {[]Rule{fromPods("x=1")}, []Rule{fromPods("app=web")}},
		"by a block, not by pods":  {[]Rule{fromBlock("10.0.0.0/24"), fromBlock("10.0.0.1/32")}, []Rule{fromPods("y=1")}},
	} {
		for _, conditions := range [][]string{{"app=web"}, {"app=none", "app=web", "app=x"}} {
			m := twoSets(c.before...)
			var rules []Rule
			for _, text := range conditions {
				rules = append(rules, fromPods(text))
			}
			m.setPolicy(toAPI(rules...))
			m.apply()
			m.setPolicy(toDB(c.after...))
			change := m.engine.Commit()
			for _, o := range change.All() {
				m.tables.Apply(o)
				for id := range m.endpoints {
					if m.to(id, "10.0.0.1") != yes || m.to(id, "192.0.2.1") != no {
						t.Errorf("%s: %s: endpoint %d: %c, a stranger %c\n%s", name, o, id, m.to(id, "10.0.0.1"), m.to(id, "192.0.2.1"), change)
					}
				}
			}
			if change.Epoch {
				t.Errorf("%s: live connections of sets that stay are judged again\n%s", name, change)
			}
		}
	}
}

// phases counts the operations on classes and rows of each phase.
func phases(c Change) string {
	text := ""
	for _, list := range [][]Operation{c.Before, c.Switch, c.After} {
		classes, deletes, rows, rest := 0, 0, 0, 0
		for _, o := range list {
			switch o.(type) {
			case putClass:
				classes++
			case deleteClass:
				deletes++
			case putRow:
				rows++
			default:
				rest++
			}
		}
		text += fmt.Sprintf("%d-%d/%d/%d ", classes, deletes, rows, rest)
	}
	return text + fmt.Sprint(c.Epoch)
}

// What a replacement of endpoint 1's set writes: entries of classes (put-deleted), rows, and the
// rest, in each phase.
func TestAReplacementWritesAPeersClassOnceIfItCan(t *testing.T) {
	x, y, web := fromPods("x=1"), fromPods("y=1"), fromPods("app=web")
	for name, c := range map[string]struct {
		before, after []Rule
		others        []labels.Set
		want          string
	}{
		"a condition goes: after the sets that use it": {[]Rule{x}, nil, nil, "0-0/2/1 0-0/0/1 1-0/0/4 false"},
		"a condition comes: before":                    {nil, []Rule{x}, nil, "1-0/3/1 0-0/0/1 0-0/0/3 false"},
		"another condition: both in between":           {[]Rule{x}, []Rule{y}, nil, "1-0/6/1 0-0/0/1 1-0/0/7 false"},
		"another that peers had":                       {[]Rule{x, y}, []Rule{y}, nil, "0-0/5/1 0-0/0/1 1-0/0/6 false"},
		"one that another set has":                     {[]Rule{x}, []Rule{web}, nil, "0-0/4/1 0-0/0/1 1-0/0/5 false"},
		"another, where a peer has both":               {[]Rule{x}, []Rule{y}, []labels.Set{{"app": "web", "x": "1", "y": "1"}}, "2-0/6/1 0-0/0/1 2-0/0/7 false"},
		"another, of other peers":                      {[]Rule{x}, []Rule{y}, []labels.Set{{"app": "web", "x": "1"}, {"app": "web", "y": "1"}}, "2-0/6/1 0-0/0/1 2-0/0/7 false"},
	} {
		m := twoSets(c.before...)
		for i, set := range c.others {
			m.setPod(newPod(fmt.Sprint("other", i), fmt.Sprint("10.0.0.", 10+i), set))
		}
		m.apply()
		m.setPolicy(toDB(c.after...))
		change := m.apply()
		if got := phases(change); got != c.want {
			t.Errorf("%s: %s, want %s\n%s", name, got, c.want, change)
		}
	}
}

// applied applies a change operation by operation; each verdict must be that of before or of after.
func (m *model) applied(t *testing.T, what string) Change {
	t.Helper()
	peers := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8", "10.1.0.1", "192.0.2.1"}
	verdicts := func() string {
		text := ""
		for id := range endpoint.ID(4) {
			for _, peer := range peers {
				text += string(rune(m.to(id, peer)))
			}
		}
		return text
	}
	before := verdicts()
	change := m.engine.Commit()
	list := []string{before}
	for _, o := range change.All() {
		m.tables.Apply(o)
		list = append(list, verdicts())
	}
	after := list[len(list)-1]
	for step, text := range list {
		for i := range text {
			if text[i] != before[i] && text[i] != after[i] {
				t.Errorf("%s: step %d: endpoint %d, %s: %c", what, step, i/len(peers), peers[i%len(peers)], text[i])
			}
		}
	}
	m.agrees(t, what, peers, []uint16{80})
	m.leaks(t)
	return change
}

// The labels of a peer change as a set of it is replaced: in between, the set that leaves judges
// it by the old labels, and others by the new ones.
func TestPeersChangeAsASetIsReplaced(t *testing.T) {
	old, now := labels.Set{"app": "web", "x": "1", "y": "1"}, labels.Set{"app": "job", "x": "1", "y": "1"}
	for name, c := range map[string]struct {
		before, after []Rule
		api           Rule
		old, now      labels.Set
	}{
		"it is no peer of the other":  {[]Rule{fromPods("x=1")}, []Rule{fromPods("y=1")}, fromPods("app=web"), old, now},
		"it is one of the other":      {[]Rule{fromPods("x=1")}, []Rule{fromPods("y=1")}, fromPods("app=job"), old, now},
		"it is one of both":           {[]Rule{fromPods("app=web")}, []Rule{fromPods("app=job")}, fromPods("app=job"), old, now},
		"it is none of both":          {[]Rule{fromPods("app=web")}, []Rule{fromPods("app=x")}, fromPods("app=web"), old, now},
		"it stays one of both":        {[]Rule{fromPods("app=web")}, []Rule{fromPods("app in (web,job)")}, fromPods("x=1"), old, now},
		"it loses what both have":     {[]Rule{fromPods("x=1"), fromPods("app=web")}, []Rule{fromPods("x=1"), fromPods("y=1")}, fromPods("x=1"), old, labels.Set{"y": "1"}},
		"it has what the old one has": {[]Rule{fromPods("x=1")}, []Rule{fromPods("app=web")}, fromPods("app=web"), labels.Set{"app": "web"}, labels.Set{"x": "1"}},
		"it gets all":                 {[]Rule{fromPods("x=1")}, []Rule{fromPods("y=1")}, fromPods("app=web"), nil, old},
		"it loses all":                {[]Rule{fromPods("x=1")}, []Rule{fromPods("y=1")}, fromPods("app=web"), old, nil},
		"in a block":                  {[]Rule{fromBlock("10.0.0.0/30"), fromPods("x=1")}, []Rule{fromPods("y=1"), fromBlock("10.0.0.0/8")}, fromPods("app=web"), old, now},
	} {
		for _, limits := range []Limits{unlimited(), {}} {
			m := newModel(limits)
			fill(m)
			m.setPolicy(toDB(c.before...))
			m.setPolicy(toAPI(c.api))
			m.setPod(newPod("web", "10.0.0.1", c.old))
			m.setPod(newPod("api", "10.0.0.5", labels.Set{"app": "api"}))
			m.setEndpoint(2, PodRef{"shop", "api"})
			m.apply()
			m.setPolicy(toDB(c.after...))
			m.setPod(newPod("web", "10.0.0.1", c.now))
			m.applied(t, name)
			m.setPolicy(toDB(c.before...))
			m.setPod(newPod("web", "10.0.0.1", c.old))
			m.applied(t, name+", and back")
			m.setPolicy(toDB(c.after...))
			m.deletePod(PodRef{"shop", "web"})
			m.applied(t, name+", as the peer ends")
			m.setPolicy(toDB(c.before...))
			m.setPod(newPod("web", "10.0.0.1", c.old))
			m.applied(t, name+", as the peer begins")
		}
	}
}

// withSharedSet has endpoints 1 and 2 of one set, and endpoint 3 of another.
func withSharedSet(limits Limits) *model {
	m := newModel(limits)
	fill(m)
	m.setPolicy(toDB(fromPods("app=job"), fromBlock("10.1.0.0/16")))
	second := toDB(fromPods("app=web"))
	second.Ref.Name, second.Subject = "second", *pods("app=second")
	m.setPolicy(second)
	m.setPod(newPod("db2", "10.0.0.8", labels.Set{"app": "db"}))
	m.setPod(newPod("second", "10.0.0.6", labels.Set{"app": "second"}))
	m.setEndpoint(2, PodRef{"shop", "db2"})
	m.setEndpoint(3, PodRef{"shop", "second"})
	m.apply()
	return m
}

// An endpoint leaves a set that others keep. Those that stay get another number if peers change
// at the same time, and only then.
func TestAnEndpointLeavesASharedSet(t *testing.T) {
	relabel := func(m *model, app string) {
		db := *m.Pod(PodRef{"shop", "db"})
		db.Labels = labels.Set{"app": app}
		m.setPod(db)
	}
	for name, c := range map[string]struct {
		leave  func(m *model)
		number bool // the other endpoint gets another
	}{
		"for another pod":                 {func(m *model) { m.setEndpoint(1, PodRef{"shop", "second"}) }, false},
		"by its labels, which are a peer": {func(m *model) { relabel(m, "second") }, true},
		"to none":                         {func(m *model) { relabel(m, "x") }, false},
		"with the change of a peer": {func(m *model) {
			m.setEndpoint(1, PodRef{"shop", "second"})
			m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "job"}))
		}, true},
		"with both endpoints": {func(m *model) {
			m.setEndpoint(1, PodRef{"shop", "second"})
			relabel(m, "x")
			m.setEndpoint(2, PodRef{"shop", "second"})
		}, true},
		"by its end": {func(m *model) { m.deleteEndpoint(1); m.setPod(newPod("web", "10.0.0.1", labels.Set{"app": "job"})) }, false},
	} {
		for _, limits := range []Limits{unlimited(), {}} {
			m := withSharedSet(limits)
			before := m.tables.Endpoints[2]
			c.leave(m)
			change := m.applied(t, name)
			if got := m.tables.Endpoints[2] != before; got != c.number {
				t.Errorf("%s: endpoint 2 has another set: %v\n%s", name, got, change)
			}
			if set := m.tables.Sets[m.tables.Endpoints[2]]; set.Prefixes != (m.tables.Endpoints[2] != m.tables.Endpoints[3]) || (set.Scope == NodeScope) != (limits == unlimited()) {
				t.Errorf("%s: endpoint 2 has %s", name, set)
			}
			last := m.engine.last.set
			m.setPod(newPod("db3", "10.0.0.7", labels.Set{"app": "db"}))
			m.setEndpoint(0, PodRef{"shop", "db3"})
			m.applied(t, name+", and another comes")
			if c.number && name != "with both endpoints" && (m.tables.Endpoints[0] != m.tables.Endpoints[2] || m.engine.last.set != last) {
				t.Errorf("%s: a new endpoint has %s, and those that stayed %s", name, m.tables.Endpoints[0], m.tables.Endpoints[2])
			}
			if got := m.engine.Describe(m.tables.Endpoints[0]); !strings.Contains(got, "isolated by NetworkPolicy shop/db") {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
}

// Live connections are judged again if one of them may be denied now, and only then.
func TestTheEpochIsSetIfAnUnchangedSetForbidsMore(t *testing.T) {
	deny := cluster(Admin, 1, "deny", Rule{Action: Deny, Peers: fromPods("y=1").Peers, Ports: []Port{{Protocol: TCP, First: 80, Last: 80}}})
	port := Rule{Peers: fromPods("z=1").Peers, Ports: []Port{{Protocol: TCP, First: 80, Last: 80}}}
	for name, c := range map[string]struct {
		old, now labels.Set
		epoch    bool
	}{
		"a rule accepts it":             {nil, labels.Set{"app": "web"}, false},
		"one more rule accepts it":      {labels.Set{"app": "web"}, labels.Set{"app": "web", "x": "1"}, false},
		"another rule accepts it":       {labels.Set{"app": "web"}, labels.Set{"x": "1"}, false},
		"no rule accepts it":            {labels.Set{"app": "web"}, nil, true},
		"a rule of fewer ports accepts": {labels.Set{"app": "web"}, labels.Set{"z": "1"}, true},
		"a rule of more ports accepts":  {labels.Set{"z": "1"}, labels.Set{"app": "web"}, false},
		"a rule denies it":              {labels.Set{"app": "web"}, labels.Set{"app": "web", "y": "1"}, true},
		"a rule denies it no longer":    {labels.Set{"app": "web", "y": "1"}, labels.Set{"app": "web"}, false},
		"what is denied is so still":    {labels.Set{"z": "1", "y": "1"}, labels.Set{"y": "1"}, false},
	} {
		for _, limits := range []Limits{unlimited(), {}} {
			m := newModel(limits)
			fill(m)
			m.setPolicy(toDB(fromPods("app=web"), fromPods("x=1"), port))
			m.setPolicy(deny)
			m.setPod(newPod("peer", "10.0.0.7", c.old))
			m.apply()
			m.setPod(newPod("peer", "10.0.0.7", c.now))
			if change := m.applied(t, name); change.Epoch != c.epoch {
				t.Errorf("%s: %s", name, change)
			}
		}
	}
}
