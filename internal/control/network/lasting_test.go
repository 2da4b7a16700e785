package network

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// inPlace is a route of another program in the place of ours.
func inPlace(r hostnet.Route) hostnet.Route {
	r.Link, r.Protocol = "eth0", 4
	return r
}

func TestAChangeBesideAForeignRouteThatLastsIsRepairedAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t)
		web := hostnet.ForEndpoint(g.pod("web"))
		g.mustPass()
		g.k.remove(web.Routes[0].Key())
		g.k.put(inPlace(web.Routes[0]))
		for range 3 {
			time.Sleep(time.Until(g.mustPass()))
		}
		standing := []string{web.Routes[0].String() + ": conflicts with " + inPlace(web.Routes[0]).String() + ", which is not ours"}
		time.Sleep(time.Minute)
		g.mustPass()
		g.check("the route", standing, 1, 1, 1)
		g.k.remove(web.Rules[0].Key())
		g.mustPass()
		g.check("the rule", standing, 2, 2, 1)
		if all := g.seen.events[len(g.seen.events)-1]; !strings.Contains(all, web.Rules[0].String()+": is missing (repaired)") {
			t.Errorf("event %q, want the rule", all)
		}
		g.k.remove(web.Links[0].Key()) // the route cannot be compared from here on
		g.k.remove(web.Rules[0].Key())
		g.seen.events = nil
		g.mustPass()
		if got := strings.Join(g.seen.events, "\n"); strings.Contains(got, "conflicts") || !strings.Contains(got, web.Rules[0].String()+": is missing (repaired)") {
			t.Errorf("events %q, want the rule, and not the route", got)
		}
		if err := g.State.Close(); err != nil { // its goroutines belong to the bubble
			t.Error(err)
		}
	})
}

func TestASetOfATableThatIsMissingIsNotRepaired(t *testing.T) {
	g, times := refusingFilter(t)
	g.k.nft(g.pod("web"), false)
	*times = 2
	compare := func() {
		t.Helper()
		if _, err := g.pass(t.Context(), true); err == nil {
			t.Error("the pass succeeded")
		}
	}
	compare()
	whole := g.k.rules
	g.k.rules = ruleset.Ruleset{}
	compare()
	g.check("while the tables are missing", nil, 0, 0, 0)
	g.k.rules = whole
	if err := g.RestoreFilter(t.Context()); err != nil {
		t.Error(err)
	}
	g.check("in the end", nil, 1, 5, 0) // two tables, and three sets of the pod
}
