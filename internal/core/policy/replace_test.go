package policy

import (
	"fmt"
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
