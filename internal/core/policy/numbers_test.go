package policy

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// An agent that starts finds the tables of the one before, which are in force meanwhile.
func TestAnEngineBesideEarlierTablesUsesNoneOfTheirNumbers(t *testing.T) {
	fill := func(e *Engine) {
		e.SetNamespace("shop", labels.Set{})
		for _, p := range shop().Pods {
			e.SetPod(p)
		}
		e.SetPolicy(toDB(Rule{Peers: []Peer{{Pods: pods("app=web")}, {Block: &Block{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}, Ports: []Port{{Protocol: TCP, First: 5432, Last: 5440}, {Protocol: TCP, First: 22, Last: 22}}}))
		e.SetEndpoint(1, PodRef{"shop", "db"})
	}
	tables := NewTables()
	first := NewEngine(DefaultLimits())
	fill(first)
	tables.Apply(first.Commit().All()...)
	before := tables.Endpoints[1]
	web, outside := addr("10.0.0.1"), addr("192.0.2.7")
	last := Numbers{Set: before, Scope: tables.Sets[before].Scope, Ports: tables.Sets[before].Ports}

	second := NewEngineAfter(DefaultLimits(), last)
	fill(second)
	for _, o := range second.Commit().All() {
		tables.Apply(o)
		for port, want := range map[uint16]bool{5432: true, 22: true, 80: false} {
			for _, peer := range []string{web.String(), outside.String()} {
				if got, _, _ := tables.Judge(1, Ingress, addr(peer), TCP, port); got != want {
					t.Fatalf("after %s: %s to port %d: allowed %v", o, peer, port, got)
				}
			}
		}
	}
	set := tables.Endpoints[1]
	if now := tables.Sets[set]; set <= last.Set || now.Scope <= last.Scope || now.Ports <= last.Ports {
		t.Errorf("set %d %v, after %+v", set, now, last)
	}
	for key := range tables.Rows {
		if key.Set != set && key.Set != before {
			t.Errorf("a row of %s", key.Set)
		}
	}
}
