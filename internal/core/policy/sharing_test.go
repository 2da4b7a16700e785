package policy

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Sets with the same division of ports share its entries, which end with the last of them.
func TestSetsWithTheSamePortsShareTheirEntries(t *testing.T) {
	rule := func(app string) Rule {
		return Rule{Peers: fromPods(app).Peers, Ports: []Port{{Protocol: TCP, First: 80, Last: 80}, {Protocol: TCP, First: 90, Last: 99}}}
	}
	m := node(toDB(rule("app=web")), toAPI(rule("app=job")))
	m.setPod(newPod("api", "10.0.0.5", labels.Set{"app": "api"}))
	m.setEndpoint(2, PodRef{"shop", "api"})
	change := m.apply()
	if n := count[Put[PortKey, PortClass]](change) + count[Put[PortRange, PortClass]](change); n != 0 {
		t.Errorf("the second set writes %d ports again", n)
	}
	one, two := m.tables.Sets[m.tables.Endpoints[1]], m.tables.Sets[m.tables.Endpoints[2]]
	if one.Ports != two.Ports || m.tables.Endpoints[1] == m.tables.Endpoints[2] || !one.Ranges {
		t.Errorf("%s, %s", one, two)
	}
	entries := len(m.tables.Ports) + len(m.tables.PortRanges)
	m.deletePolicy(toAPI().Ref)
	if m.apply(); len(m.tables.Ports)+len(m.tables.PortRanges) != entries {
		t.Error("the end of one set takes the entries")
	}
	m.agrees(t, "one set", []string{"10.0.0.1", "192.0.2.1"}, []uint16{79, 80, 81, 90, 99, 100})
	m.deletePolicy(toDB().Ref)
	if m.apply(); len(m.tables.Ports)+len(m.tables.PortRanges) != 0 || len(m.engine.ports) != 0 {
		t.Errorf("the end of all leaves %s", m.tables)
	}
}

// Many endpoints of one set are one set, whatever the order of their changes.
func TestEndpointsOfTheSamePoliciesHaveOneSet(t *testing.T) {
	m := node(toDB(fromPods("app=web"), fromBlock("10.1.0.0/16")), outOf(Rule{AnyPeer: true, Ports: []Port{{Protocol: TCP, Name: "http"}}}))
	for i := range 12 {
		p := newPod(fmt.Sprint("peer", i), fmt.Sprint("10.0.2.", i), nil)
		p.Ports = []NamedPort{{"http", TCP, uint16(8000 + i)}}
		m.setPod(p)
	}
	m.apply()
	for i := range 12 {
		p := newPod(fmt.Sprint("db", i), fmt.Sprint("10.0.1.", i), labels.Set{"app": "db"})
		p.Ports = []NamedPort{{"sql", TCP, 5432}}
		m.setPod(p)
		m.setEndpoint(endpoint.ID(10+i), p.Ref())
		if change := m.apply(); change.Len() != 1 {
			t.Errorf("endpoint %d: %s", 10+i, change)
		}
	}
	if got := m.engine.Size(); got.Sets != 1 || len(m.tables.Sets) != 1 {
		t.Errorf("%+v", got)
	}
}
